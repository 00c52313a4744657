"""Watched targets, the versions of their recipes, which their mainlines may bring, and the ids of their series.

A renamed provider keeps its history (`formerly` in its recipe): without that it begins anew, what was open is closed as
removed, and the trend ends.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, func, select, update
from sqlalchemy.orm import Session, aliased, joinedload, selectinload

from kernels.cases import Role
from service.db.engine import clock
from service.db.models import KernelTextRow, Measurement, RecipeRow, Revision, Run, Series, Target, VerdictRow
from service.db.paging import ResultPage, paged
from service.domain import forges
from service.domain.metrics import SeriesKey
from service.domain.policy import recipes
from service.domain.policy.recipes import Recipe
from service.domain.states import ForgeKind, TargetKind
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import SessionResult
from service.errors import BadInput, Conflict, NotFound
from service.forge import clients
from service.ledger import audit
from service.ledger.locking import insert_if_absent, lock
from service.reports.report import readable
from service.sources.source import Source

_OWN = (Role.HEAD, Role.PARENT, Role.LAST_GOOD, Role.PINNED, Role.CONTROL)
_LATELY = 200  # runs: what none of them measured has no history that goes on
# A target's name is part of addresses, of file names and of the hidden marker in comments.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.]|-(?!-)){0,79}")
_RESERVED = ("new",)  # addresses of pages


def carry_on(session: Session, target: Target, recipe: Recipe) -> None:
    """Rename what is stored of each provider that has another name now.

    Not where a run measured both, or both have something open: these are two providers, whatever the recipe says.
    """
    former = {provider.formerly: name for name, provider in recipe.providers.items() if provider.formerly is not None}
    used = {name for name in former if _has_history(session, target, name)}
    if not used:
        return
    lock(session, target.id)  # a run that ends at this moment stores its results before or after this
    for name in used:
        if not _has_series(session, target, former[name]) and not _together(session, target, name, former[name]):
            _rename(session, target, name, former[name])


def names_now(session: Session, run: Run) -> Mapping[str, str]:
    """By the names that providers had when the run was asked for, those that the target's recipe gave them since."""
    recipe_id = session.get_one(Target, run.target_id).recipe_id
    if recipe_id is None or recipe_id == run.recipe_id:
        return {}
    now, then = (readable(session.get_one(RecipeRow, row_id).text) for row_id in (recipe_id, run.recipe_id))
    if now is None or then is None:
        return {}
    return {
        provider.formerly: name
        for name, provider in now.providers.items()
        if provider.formerly and name not in then.providers
    }


def renamed(result: SessionResult, names: Mapping[str, str]) -> SessionResult:
    """The result with the names that its providers have now."""
    if not names:
        return result

    def named(values: Mapping[Name, str]) -> dict[Name, str]:
        return {(names.get(provider, provider), case): value for (provider, case), value in values.items()}

    own = {f"{role}:{former}": f"{role}:{name}" for role in _OWN for former, name in names.items()}
    return replace(
        result,
        taken=tuple(
            replace(taken, provider=names.get(taken.provider, taken.provider)) if taken.role in _OWN else taken
            for taken in result.taken
        ),
        texts=tuple(replace(text, contender=own.get(text.contender, text.contender)) for text in result.texts),
        last_good=named(result.last_good),
        earlier=named(result.earlier),
    )


def _has_history(session: Session, target: Target, provider: str) -> bool:
    lately = select(Run.id).where(Run.target_id == target.id).order_by(Run.id.desc()).limit(_LATELY)
    measured = exists().where(
        Measurement.run_id.in_(lately), Measurement.provider == provider, Measurement.role.in_(_OWN)
    )
    return _has_series(session, target, provider) or bool(session.scalar(select(measured)))


def _has_series(session: Session, target: Target, provider: str) -> bool:
    return bool(session.scalar(select(exists().where(Series.target_id == target.id, Series.provider == provider))))


def _together(session: Session, target: Target, former: str, name: str) -> bool:
    """Whether a run of the target measured both."""
    measurement, other = aliased(Measurement), aliased(Measurement)
    both = (
        select(Run.id)
        .join(measurement, measurement.run_id == Run.id)
        .join(other, other.run_id == Run.id)
        .where(Run.target_id == target.id, measurement.provider == former, other.provider == name)
        .where(measurement.role.in_(_OWN), other.role.in_(_OWN))
    )
    return bool(session.scalar(select(both.exists())))


def _rename(session: Session, target: Target, former: str, name: str) -> None:
    runs = select(Run.id).where(Run.target_id == target.id)
    series = Series.target_id == target.id, Series.provider == former
    session.execute(update(Series).where(*series).values(provider=name))
    for role in _OWN:
        was, now = f"{role}:{former}", f"{role}:{name}"
        of_role = Measurement.run_id.in_(runs), Measurement.role == role.value, Measurement.provider == former
        session.execute(update(Measurement).where(*of_role).values(provider=name, contender=now))
        texts = KernelTextRow.run_id.in_(runs), KernelTextRow.contender == was
        session.execute(update(KernelTextRow).where(*texts).values(contender=now))
    of_run = VerdictRow.run_id.in_(runs), VerdictRow.provider == former
    session.execute(update(VerdictRow).where(*of_run).values(provider=name))
    details = {"provider": name, "formerly": former}
    audit.record(session, "provider.rename", target=target.name, of=f"target {target.name}", details=details)


# The condition for a query that joins `Series`; its parameters are the fields of a key.
IS_SERIES = and_(
    Series.target_id == bindparam("target_id"),
    Series.device == bindparam("device"),
    Series.provider == bindparam("provider"),
    Series.case == bindparam("case"),
    Series.metric == bindparam("metric"),
)


def on_device(target_id: int, device: str) -> ColumnElement[bool]:
    """The condition for all series of a target on a device, in a query that joins `Series`."""
    return and_(Series.target_id == target_id, Series.device == device)


def series_of(session: Session, key: SeriesKey) -> int:
    """The id of a series; the row is inserted if it is absent."""
    return series_ids(session, [key])[key]


def series_ids(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    """The ids of several series; absent rows are inserted."""
    ids = _known(session, keys)
    absent = sorted(key for key in set(keys) if key not in ids)
    # Two transactions that insert the same series wait for each other.  Each takes the target's lock first: otherwise
    # one could wait for the lock while the other, which holds it, waits for a series of the first.
    for target_id in sorted({key.target_id for key in absent}):
        lock(session, target_id)
    for key in absent:
        insert_if_absent(session, Series, tuple(asdict(key)), asdict(key))
    return _known(session, keys) if absent else ids


def _known(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    rows = session.execute(
        select(Series.id, Series.target_id, Series.device, Series.provider, Series.case, Series.metric)
        .where(Series.target_id.in_({key.target_id for key in keys}), Series.device.in_({key.device for key in keys}))
        .where(Series.case.in_({key.case for key in keys}))
    )
    ids = {SeriesKey(*row[1:]): row[0] for row in rows}
    return {key: ids[key] for key in keys if key in ids}


def find(session: Session, name: str) -> Target | None:
    """The target of this name, if there is one, with its recipe."""
    return session.execute(
        select(Target).where(Target.name == name).options(joinedload(Target.recipe))
    ).scalar_one_or_none()


def target_named(session: Session, name: str) -> Target:
    """The target of this name, with its recipe.  Raises NotFound that says which there are."""
    target = find(session, name)
    if target is None:
        names = ", ".join(target.name for target in all_targets(session)) or "none yet"
        raise NotFound("target", name, f"Known: {names}. Add one with `kernelwatch target add`.")
    return target


def all_targets(session: Session) -> list[Target]:
    """Every target by name, with its recipe."""
    return list(session.execute(select(Target).order_by(Target.name).options(selectinload(Target.recipe))).scalars())


def by_name(session: Session, cursor: str | None = None, limit: int = 50) -> ResultPage[Target]:
    """A page of targets by name, with their recipes."""
    statement = select(Target).options(selectinload(Target.recipe))
    return paged(session, statement, (Target.name,), cursor, limit, ascending=True)


def targets_on(session: Session, kind: ForgeKind, repository: str) -> list[Target]:
    """The targets that watch this repository of a forge; its name is the same in small and capital letters."""
    same = (Target.forge_kind == kind, func.lower(Target.forge) == repository.lower())
    return list(
        session.execute(select(Target).where(*same).order_by(Target.id).options(selectinload(Target.recipe))).scalars()
    )


def register(
    session: Session,
    name: str,
    *,
    location: str,
    kind: TargetKind = TargetKind.GIT,
    package: str | None = None,
    branch: str | None = None,
    forge: str | None = None,
    trusted: bool = False,
    private: bool | None = None,
    allow_unsandboxed: bool | None = None,
    recipe_from_branch: bool = False,
    recipe_text: str | None = None,
    adapters: Mapping[str, str] | None = None,
) -> Target:
    """Watch a target, or change how a known one is watched.  A recipe that changed becomes a new version.

    A `branch` or `forge` that is not named stays as it was; an empty one is taken away.  `forge` is written as
    `service.domain.forges.read_repository` reads it.  So does `private` if it is
    None; a new target is public.

    Raises BadInput for what cannot be watched, and Conflict when the name is taken by another location: its history
    would be continued with other revisions.
    """
    _check(name, kind, package, trusted, allow_unsandboxed, recipe_from_branch, recipe_text)
    on_forge = forges.read_repository(forge, location, clients.addresses()) if forge else None
    target = find(session, name)
    if target is None:
        now = clock(session)
        # The first poll comes after the caller's backfill, which knows how far back to go.
        target = Target(name=name, kind=kind, location=location, package=package, created_at=now, poll_at=now + 10)
        session.add(target)
    elif (target.kind, target.location, target.package) != (kind, location, package):
        raise Conflict(f"Target {name} watches {target.location} already: choose another name for {location}.")
    target.branch = target.branch if branch is None else branch or None
    if forge is not None:
        target.forge_kind, target.forge = on_forge or (None, None)
    target.trusted = trusted
    target.private = bool(target.private) if private is None else private
    target.recipe_from_branch = recipe_from_branch
    if allow_unsandboxed is not None or not trusted:
        target.allow_unsandboxed = bool(allow_unsandboxed)
    session.flush()
    if recipe_text is not None:
        adopt_recipe(session, target, recipe_text, adapters or {})
    return target


def adopt_recipe(session: Session, target: Target, text: str, adapters: Mapping[str, str]) -> RecipeRow:
    """Make this the target's recipe, as a new version when it is not one that it had before."""
    parsed = recipes.parse(text)
    check_adapters(parsed, adapters)
    digest = hashlib.sha256(json.dumps([text, dict(adapters)], sort_keys=True).encode()).hexdigest()
    unique = {"target_id": target.id, "digest": digest}
    values = unique | {"text": text, "adapters": dict(adapters), "created_at": clock(session)}
    insert_if_absent(session, RecipeRow, tuple(unique), values)
    recipe = session.execute(select(RecipeRow).filter_by(**unique)).scalar_one()
    target.recipe_id = recipe.id
    session.flush()
    carry_on(session, target, parsed)
    session.expire(target, ["recipe"])
    session.refresh(target, ["recipe"])
    return recipe


def check_adapters(recipe: recipes.Recipe, adapters: Mapping[str, str]) -> None:
    """Every adapter that the recipe names is there, and none has a name that leads elsewhere."""
    for name in recipe.adapters:
        if PurePath(name).name != name or not name.endswith(".py"):
            raise BadInput(f"The adapter {name!r} must be the name of a Python file next to the recipe.")
    if missing := [name for name in recipe.adapters if name not in adapters]:
        raise BadInput(f"These adapters of the recipe do not exist: {', '.join(missing)}.")


def check_name(name: str) -> None:
    """Raise BadInput for what cannot be a target's name."""
    if name in _RESERVED:
        raise BadInput(f"A target cannot be named {name}: /targets/{name} is a page of the dashboard.")
    if not _NAME.fullmatch(name) or name.endswith("-"):
        raise BadInput(f"{name[:90]!r} cannot be a target's name: lower-case letters, digits, -, _ and ., at most 80.")


def _check(
    name: str,
    kind: TargetKind,
    package: str | None,
    trusted: bool,
    allow_unsandboxed: bool | None,
    recipe_from_branch: bool,
    recipe_text: str | None,
) -> None:
    check_name(name)
    if (kind is TargetKind.PACKAGE) != (package is not None):
        raise BadInput("A package target needs the name of its package, and only a package target has one.")
    if allow_unsandboxed and not trusted:
        raise BadInput(f"Target {name} is not trusted; only trusted targets may run without a sandbox.")
    if recipe_text is None and not recipe_from_branch:
        raise BadInput(f"Target {name} needs a recipe, or must take it from its default branch.")


RECIPE = "kernelwatch.toml"  # its name in a repository that brings its own
RecipeFiles = tuple[str, Mapping[str, str]]  # the recipe's text, and the adapters that it names


@dataclass(frozen=True)
class BranchRecipe:
    """A recipe, and the head of the mainline that it was read at."""

    tip: str
    text: str
    adapters: Mapping[str, str]


def branch_recipe(target: Target, source: Source) -> BranchRecipe | None:
    """The recipe at the head of the mainline, with its adapters; None where the target brings none itself."""
    if not target.recipe_from_branch:
        return None
    [tip] = source.mainline(target.branch, 1)
    text = _text(source, tip.sha, RECIPE)
    if text is None:
        if target.recipe_id is not None:
            return None
        raise BadInput(f"{target.location} has no {RECIPE} at {tip.sha[:10]}; add one, or register a recipe.")
    adapters = {name: _text(source, tip.sha, name) for name in recipes.parse(text).adapters}
    return BranchRecipe(tip.sha, text, {name: content for name, content in adapters.items() if content is not None})


def adopted(session: Session, target: Target, recipe: BranchRecipe | None, *, rewritten: bool = False) -> Target:
    """The target in this session, locked, with the recipe that its branch brought.

    The recipe was read some time ago.  It is left out where a person has given the target one of its own since, and
    where the mainline has gone on by now, unless that was `rewritten`.
    """
    lock(session, target.id)
    row = session.execute(with_recipe().where(Target.id == target.id)).scalar_one()
    if recipe is not None and row.recipe_from_branch and (rewritten or not _is_passed(session, row.id, recipe.tip)):
        adopt_recipe(session, row, recipe.text, recipe.adapters)
    return row


def _is_passed(session: Session, target_id: int, sha: str) -> bool:
    """Whether the recorded mainline has revisions after this one."""
    later = aliased(Revision)
    newer = exists().where(later.target_id == target_id, later.ordinal > Revision.ordinal)
    passed = select(Revision.id).where(Revision.target_id == target_id, Revision.sha == sha, newer)
    return session.scalar(passed) is not None


def with_recipe() -> Select[Target]:
    return select(Target).options(selectinload(Target.recipe))


def _text(source: Source, sha: str, path: str) -> str | None:
    content = source.read(sha, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path} at {sha[:10]} is not text in UTF-8.") from None
