"""`kernelwatch init`: find the benchmarks of a checkout, and write a recipe that measures them."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.measure.compare import measured
from service.commands.noun import Where, single
from service.errors import BadInput, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from service.domain.adopt.candidates import Candidate
    from service.domain.adopt.recipe import Candidates
    from service.sources.checkout import Checkout

MAX_SOURCE = 1 << 20  # bytes of a file that is read
CHECKED_CASES = 2


def init(
    directory: Annotated[Path, typer.Argument(help="A checkout, or a folder of it to look in.")] = Path(),
    device: Annotated[
        list[str] | None, typer.Option(help="A device to measure on; may be repeated.  By default this machine's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a recipe that is there.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the recipe instead of writing it.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Then measure two cases of HEAD against HEAD~1 on this machine.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option(help="For --check, a Python with torch; by default as `compare` has it.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option("--allow-unsandboxed", help="Check without a sandbox; only for your own code.")
    ] = False,
) -> None:
    """Find the benchmarks of a checkout and write a recipe that measures them.

    It looks for benchmarks of triton.testing.perf_report, operators of tritonbench, tests of pytest-benchmark, kernels
    of helion and functions of norms, and writes kernelwatch.toml at the top of the checkout.  Nothing of the checkout
    is imported or run to find them.

    Exit codes: 0 written, or the check passed, 2 nothing can be measured yet, and for --check those of `compare`.
    """
    from service.commands.output.console import err, out
    from service.domain.adopt import recipe
    from service.ledger.targets import RECIPE
    from service.sources.checkout import Checkout
    from workers import control

    source = Checkout(directory)
    target = source.root / RECIPE
    if target.exists() and not (force or only_print):
        raise BadInput(f"There is {target} already: --force replaces it, --print only prints what would be written.")
    shas = _two_commits(source) if check else None
    candidates = _candidates(source, directory)
    devices = device or [control.here().name]
    text = recipe.written(candidates, devices)
    told = err if only_print else out
    _tell(candidates, told)
    if only_print:
        print(text, end="")  # noqa: T201
    else:
        _write(target, text, force=force)
    if not candidates.taken:
        raise BadInput(
            "Nothing can be measured yet: fill in what is missing"
            + ("." if only_print else f" in {RECIPE}, and remove the # before it.")
        )
    if not only_print:
        _tell_next(source, directory, candidates, checked=check, to=told)
    if shas:
        _check(
            source,
            shas,
            recipe.written(candidates.first(CHECKED_CASES), [control.here().name]),
            python,
            allow_unsandboxed,
        )


init_app = single(init, where=Where.HERE)


def _write(target: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there; a link of the checkout, which may lead anywhere, is not followed."""
    try:
        if force:
            target.unlink(missing_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}.") from None


def _two_commits(source: "Checkout") -> tuple[str, str]:
    try:
        return source.resolve("HEAD~1"), source.resolve("HEAD")
    except NotFound:
        hint = "fetch its history (`git fetch --unshallow`)" if source.shallow else "commit a change"
        raise BadInput(f"{source.root} has one commit, and --check compares two: {hint}, or leave --check.") from None


def _candidates(source: "Checkout", directory: Path) -> "Candidates":
    """What the tracked files of the folder hold.  Raises BadInput if that is nothing."""
    from service.domain.adopt.recipe import find

    paths = source.tracked("*.py")
    within = directory.resolve().relative_to(source.root.resolve()).as_posix()
    texts = dict(_sources(source, paths))
    sources = {path: text for path, text in texts.items() if text is not None}
    large = {path: f"it has more than {MAX_SOURCE >> 20} MiB" for path, text in texts.items() if text is None}
    candidates = find(sources, paths, "" if within == "." else within)
    candidates = replace(candidates, unreadable={**candidates.unreadable, **large})
    if candidates.all:
        return candidates
    unread = "".join(f"\n{path} could not be read: {why}" for path, why in candidates.unreadable.items())
    raise BadInput(
        f"No benchmark was found in {len(sources):,} tracked Python files of {directory.resolve()}.  `init` looks for "
        "functions below @triton.testing.perf_report, subclasses of tritonbench's BenchmarkOperator, tests with the "
        "fixture `benchmark`, functions below @helion.kernel, and functions such as rms_norm(x, weight, eps).  "
        f"docs/adapters.md and docs/recipes.md say how to name others.{unread}"
    )


def _sources(source: "Checkout", paths: list[str]) -> Iterator[tuple[str, str | None]]:
    """The text of each file; None of one that is too large."""
    from service.sources.source import read_beneath

    for path in paths:
        try:
            content = read_beneath(source.root, path, MAX_SOURCE)
        except OSError:  # deleted, or behind a link
            continue
        if content is not None:
            yield path, content.decode(errors="replace") if len(content) <= MAX_SOURCE else None


def _tell(candidates: "Candidates", to: "Console") -> None:
    """Print what was found: what is measured, then what is left, with why."""
    from service.commands.output.console import line

    for taken in (True, False):
        of_state = [candidate for candidate in candidates.all if candidate.taken is taken]
        alike = Counter(map(_words, of_state))
        for candidate in {_words(candidate): candidate for candidate in of_state}.values():
            count = alike[words := _words(candidate)]
            line(*words, *([f" ({count} of them)"] if count > 1 else []), to=to)
            for note in candidate.notes if taken else ():
                line(f"    {note}", to=to)
    for path, why in candidates.unreadable.items():
        line(f"not read   {path}: {why}", to=to)


def _words(candidate: "Candidate") -> tuple[str | tuple[str, str], ...]:
    about = f"{candidate.path}:{candidate.line}  {candidate.kind} {candidate.title}"
    if candidate.taken:
        return ("measured", "green"), f"   {about}: {candidate.name} {' '.join(candidate.cases)}"
    state = "to fill in" if candidate.entry else "left out"
    return (state, "yellow"), f"{'':{11 - len(state)}}{about}: {candidate.lacks}"


def _tell_next(source: "Checkout", directory: Path, candidates: "Candidates", *, checked: bool, to: "Console") -> None:
    from service.commands.output.console import line
    from service.domain.adopt.candidates import CandidateKind
    from service.domain.text import counted
    from service.ledger.targets import RECIPE

    line(f"\nWrote {source.root / RECIPE} with {counted(len(candidates.taken), 'benchmark')}.", to=to)
    tests = any(candidate.kind is CandidateKind.TEST for candidate in candidates.taken)
    if needed := [*(["pytest"] if tests else []), *_dependencies(source)]:
        line(f"The environment that measures needs, besides torch: {', '.join(needed)}.", to=to)
    if not checked:
        where = "" if directory.resolve() == Path.cwd() else f" --checkout {shlex.quote(str(directory))}"
        line(f"Next: kernelwatch compare HEAD~1{where}", to=to)
    line("Then commit it, and watch the repository: kernelwatch target add NAME LOCATION", to=to)


def _dependencies(source: "Checkout") -> list[str]:
    """The packages besides torch and Triton that the project requires, by name."""
    import tomllib

    from packaging.requirements import InvalidRequirement, Requirement

    from service.sources.source import read_beneath

    try:
        text = (read_beneath(source.root, "pyproject.toml", MAX_SOURCE) or b"").decode()
        listed = tomllib.loads(text).get("project", {}).get("dependencies", [])
        return [name for name in (Requirement(each).name for each in listed) if name not in ("torch", "triton")]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, InvalidRequirement):
        return []  # what is no plain list is no help


def _check(source: "Checkout", shas: tuple[str, str], text: str, python: Path | None, allow_unsandboxed: bool) -> None:
    import sys

    from service.commands.output.formats import Format, show
    from workers.checkouts import Wanted

    view = measured(Wanted(source, *shas, text, {}, None, python, allow_unsandboxed), every=True)
    show(view, Format.TABLE)
    if view.code:
        sys.exit(view.code)
