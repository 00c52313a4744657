"""Subjects of a compilation without a GPU: a watched target, or a local checkout.  Writes no rows."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.db.engine import reading
from service.domain.policy import recipes
from service.domain.policy.recipes import Recipe
from service.domain.states import TargetKind
from service.errors import BadInput, Refused
from service.ledger.intake import targets
from service.ledger.intake.branch_recipes import RECIPE
from service.sources import open_source
from service.sources.checkout import Checkout
from service.sources.source import Source
from service.sources.trees import read_beneath
from workers.sandbox import sandbox

MAX_OWN = 4 << 20  # bytes of a recipe or an adapter


@dataclass(frozen=True)
class Subject:
    """What is compiled: a watched target, or a local checkout."""

    name: str
    kind: str
    source: Source
    recipe: Recipe
    adapters: Mapping[str, str]
    sandboxed: bool
    branch: str | None = None  # the mainline; None for the default branch

    def check_trust(self, *shas: str) -> None:
        """Raise Refused for a commit that may be a stranger's, if there is no sandbox for it."""
        if self.sandboxed or isinstance(self.source, Checkout):
            return
        for sha in shas:
            if not self.source.is_on_branch(sha):
                raise Refused(f"No branch of {self.name} contains {sha[:10]}: its code runs only in a sandbox.")


def subject(
    target: str, recipe: tuple[str, Mapping[str, str]] | None = None, *, without_sandbox: bool = False
) -> Subject:
    """Resolve a target's name or a folder (with a slash).  `recipe`: text and adapters, instead of its own.

    Raises NotFound, BadInput and Refused in words for people.
    """
    if "/" in target or target in (".", ".."):
        return _checkout(Path(target), recipe, without_sandbox)
    with reading() as session:
        watched = targets.target_named(session, target)
        own = (watched.recipe.text, watched.recipe.adapters) if watched.recipe else None
    if (told := recipe or own) is None:
        raise BadInput(f"Target {target} has no recipe yet: name one with --recipe.")
    source = open_source(watched)
    source.refresh()
    allowed = watched.trusted and watched.allow_unsandboxed
    walls = _sandboxed(without_it=allowed, mend=f"run `kernelwatch target allow-unsandboxed {target}` if you trust it")
    return Subject(target, watched.kind.value, source, _recipe(*told), told[1], walls, watched.branch)


def _checkout(folder: Path, recipe: tuple[str, Mapping[str, str]] | None, without_sandbox: bool) -> Subject:
    source = Checkout(folder)
    recipe = recipe or own_recipe(source)
    walls = _sandboxed(without_it=without_sandbox, mend="use --allow-unsandboxed if this is your own code")
    return Subject(source.name, TargetKind.GIT.value, source, _recipe(*recipe), recipe[1], walls)


def own_recipe(source: Checkout) -> tuple[str, dict[str, str]]:
    """The recipe that is in a checkout, with its adapters.  Raises BadInput if there is none."""
    text = _own(source.root, RECIPE)
    parsed = recipes.parse(text)
    targets.check_adapters(parsed, dict.fromkeys(parsed.adapters, ""))  # names that lead elsewhere are not read
    return text, {name: _own(source.root, name) for name in parsed.adapters}


def _own(root: Path, name: str) -> str:
    """The text of a file of the checkout.  Who wrote it may be a stranger: a link could lead to the host's files."""
    file = root / name
    plain = f"{file} is not a plain file: a link is not followed out of a checkout."
    try:
        content = read_beneath(root, name, MAX_OWN)
        if content is None:
            raise BadInput(plain)
        if len(content) > MAX_OWN:
            raise BadInput(f"{file} has more than {MAX_OWN >> 20} MiB.")
        return content.decode()
    except FileNotFoundError:
        raise BadInput(f"There is no {file}: write it, or name a recipe with --recipe.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise BadInput(plain if linked else f"{file}: {error.strerror}.") from None


def _recipe(text: str, adapters: Mapping[str, str]) -> Recipe:
    parsed = recipes.parse(text)
    targets.check_adapters(parsed, adapters)
    return parsed


def _sandboxed(*, without_it: bool, mend: str) -> bool:
    """Whether there is a sandbox to compile in.  Raises Refused where there is none and it may not go without."""
    trouble = sandbox.self_test()
    if trouble and not without_it:
        raise Refused(f"The sandbox does not work: {trouble}. Fix it, or {mend}.")
    return trouble is None
