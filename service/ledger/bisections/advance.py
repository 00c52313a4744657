"""Read from sources what bisections need: lines of revisions, and the commits of a merge.

No transaction is open while a source answers.  The answer is stored afterwards, if the bisection is still open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import structlog

from service.db.engine import reading, transaction
from service.db.models import Target
from service.domain.policy.recipes import Recipe
from service.domain.states import TargetKind
from service.errors import BadInput, Refused, ServiceError, SourceFailed
from service.ledger import audit, targets
from service.ledger.bisections import bisections
from service.ledger.bisections.steps import moved_between
from service.ledger.locking import backoff, lock
from service.ledger.runs.revisions import recipe_of
from service.ledger.side_by_side import SideBySide
from service.reports.bisection_text import Merge
from service.sources import open_source

log = structlog.get_logger()


@dataclass(frozen=True)
class RequestedBisection:
    """The bisection that covers a request; `created` is false if it was open already."""

    id: int
    created: bool


def search(
    name: str,
    good: str,
    bad: str,
    *,
    device: str | None = None,
    suite: str | None = None,
    patterns: Sequence[str] = (),
    max_runs: int | None = None,
    incident_id: int | None = None,
    asked_by: str,
) -> RequestedBisection:
    """Start a bisection between two revisions of target `name`, or find the open one of the same.

    Without `patterns` it covers the cases that the newest stored comparison of the two found slower, and the whole
    suite where there is none.  `incident_id` is the incident that it is for.  Raises BadInput and NotFound.
    """
    with reading() as session:
        target = targets.target_named(session, name)
        _, recipe = recipe_of(session, target)
    source = open_source(target)
    source.refresh()
    first, last = source.resolve(good), source.resolve(bad)
    line = source.between(first, last)
    if not line and first != last:
        raise BadInput(f"No commits in {good}..{bad}; put the older revision first.")
    if not source.is_on_branch(last):  # a branch that contains the last one contains the line
        raise Refused(
            f"No branch of {name} contains {bad}: it may be a stranger's, and a bisection measures without approval. "
            "Push it to a branch first."
        )
    on = device or _only_device(recipe)
    with transaction() as session:
        lock(session, target.id)
        open_ids = bisections.open_ids(session, target.id)
        cases = _matching(recipe, suite or recipe.suite_on(on), patterns)
        row = bisections.start(
            session,
            target,
            on,
            first,
            last,
            cases or moved_between(session, target, on, first, last),
            asked_by=asked_by,
            suite=suite,
            incident_id=incident_id,
            max_runs=max_runs,
            line=line,
        )
        created = row.id not in open_ids
        if created:
            details = {"good": first, "bad": last, "device": on, "as": asked_by}
            audit.record(session, "bisection.start", target=name, of=f"bisection {row.id}", details=details)
        return RequestedBisection(row.id, created)


_searches = SideBySide("bisections")


def advance_due(*, wait: bool = True) -> int:
    """Advance every open bisection whose last step has ended, side by side.  Returns how many were advanced.

    Several processes may do so at once: the second finds the next step queued.  Without `wait` this returns once they
    have begun; what cannot begin in a while waits for the next call.
    """
    with reading() as session:
        due = [found for found in bisections.due(session) if not backoff.should_skip(("bisection", found))]
    return _searches.each(due, _advance_one, wait=wait)


def _advance_one(bisection_id: int) -> int:
    key = "bisection", bisection_id
    try:
        _advance(bisection_id)
        backoff.succeeded(key)
    except SourceFailed as failure:
        backoff.failed(key)
        log.warning("bisection waits for its source", bisection=bisection_id, error=str(failure))
    except Exception:  # one bisection must not hold up the others
        backoff.failed(key)
        log.exception("bisection failed", bisection=bisection_id)
    return 1


def _advance(bisection_id: int) -> None:
    with reading() as session:
        if bisections.waits(session, bisection_id):
            return
        bisection = bisections.one(session, bisection_id)
        target = session.get_one(Target, bisection.row.target_id)
    if bisection.done or bisection.pending is not None:
        return
    if not bisection.row.line:
        try:
            line = open_source(target).between(bisection.row.good, bisection.row.bad)
            with transaction() as session:
                bisections.store_line(session, bisection_id, line)
        except ServiceError as refusal:
            if isinstance(refusal, SourceFailed) and refusal.passing:
                raise
            with transaction() as session:
                bisections.give_up(session, bisection_id, str(refusal))
            return
    culprit = bisection.progress.culprit if bisection.progress else None
    merge = _merge(target, culprit) if culprit else None
    with transaction() as session:
        bisections.advance(session, bisection_id, merge)


def _merge(target: Target, culprit: str) -> Merge | None:
    """The commits that a merge brought in, where the culprit is one; None where the source does not know.

    Raises SourceFailed where it may answer later: a search that has ended is not asked again.
    """
    if target.kind is not TargetKind.GIT:
        return None
    try:
        source = open_source(target)
        tip = source.resolve(f"{culprit}^2")
        base = source.merge_base(source.resolve(f"{culprit}^1"), tip)
        line = source.between(base, tip)
    except ServiceError as failure:
        if isinstance(failure, SourceFailed) and failure.passing:
            raise
        return None
    return Merge(base if line[0].parent == base else None, tip, len(line)) if line else None


def _only_device(recipe: Recipe) -> str:
    if len(recipe.devices) > 1:
        raise BadInput(f"The recipe has several devices; choose one of them: {', '.join(recipe.devices)}.")
    return recipe.devices[0]


def _matching(recipe: Recipe, suite: str, patterns: Sequence[str]) -> list[str]:
    cases = [str(case) for case in recipe.cases(suite)]
    for pattern in patterns:
        if not any(fnmatchcase(case, pattern) for case in cases):
            raise BadInput(f"No case of suite {suite} matches {pattern!r}; the first of {len(cases)} is {cases[0]}.")
    return [case for case in cases if any(fnmatchcase(case, pattern) for pattern in patterns)]
