"""Find everything in the sources of a checkout, and write the recipe that measures it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kernels.functions import Function
from service.domain.adopt.benchmarks import operators, perf_reports
from service.domain.adopt.candidates import Candidate, CandidateKind, slug
from service.domain.adopt.kernels import helion_kernels, norms
from service.domain.adopt.pytest_tests import tests
from service.domain.adopt.sources import TOO_DEEP, Layout, Module, parsed
from service.domain.text import one_line

MAX_TAKEN = 24  # functions; with four cases each a revision takes minutes
# With no end to the distance, "def test(" written 100,000 times would have taken minutes.
_WORDS: Mapping[Any, re.Pattern[str]] = {
    perf_reports: re.compile("perf_report"),
    operators: re.compile("BenchmarkOperator"),
    tests: re.compile(r"def test\w*\([^)]{0,1000}\bbenchmark\b"),
    helion_kernels: re.compile(r"@helion\."),
    norms: re.compile(r"def [^(]{0,200}(rms|layer_?norm)", re.IGNORECASE),
}
_TESTS = re.compile(r"(^|/)(tests?|docs?)/|(^|/)(test_|bench)[^/]*$|_test\.py$")  # kernels in these are not the product
SUITE = "first"  # of a recipe with norms, because the built-in suites have other ops than it


@dataclass(frozen=True)
class Candidates:
    """What was found, where modules are imported from, and which files could not be read, with why."""

    all: Sequence[Candidate]
    import_paths: Sequence[str]
    commands: Sequence[str]  # that build its extensions
    unreadable: Mapping[str, str]

    @property
    def taken(self) -> list[Candidate]:
        return [candidate for candidate in self.all if candidate.taken]

    def first(self, most: int) -> "Candidates":
        """So many cases: one of each of the first candidates, or several of a single one; of middle size."""
        chosen = self.taken[:most]
        count = most // max(len(chosen), 1)
        return replace(self, all=[_cut(candidate, count) for candidate in chosen])


def _cut(candidate: Candidate, count: int) -> Candidate:
    first = max(len(candidate.cases) - count, 0) // 2
    return replace(candidate, entry={**candidate.entry, "cases": candidate.cases[first : first + count]})


def find(sources: Mapping[str, str], paths: Sequence[str], within: str = "") -> Candidates:
    """Benchmarks and kernels of the files in the folder `within`; `paths` are all Python files of the checkout."""
    layout = Layout(paths)
    looks = {path: _looks(path, text) for path, text in sorted(sources.items())}
    read = {path: parsed(path, sources[path]) for path in looks if looks[path] or path.endswith("conftest.py")}
    modules = {path: module for path, module in read.items() if isinstance(module, Module)}
    candidates = list[Candidate]()
    for path, module in modules.items():
        if not PurePosixPath(path).is_relative_to(within or "."):
            continue
        try:
            for look in looks[path]:
                candidates += tests(module, modules) if look is tests else look(module, layout)
        except RecursionError:  # a sum of a thousand terms parses, and cannot be walked
            read[path] = TOO_DEEP
    candidates = [_fitting(candidate) for candidate in _named(_bounded(candidates))]
    folders = {candidate.folder for candidate in candidates if candidate.taken and candidate.folder}
    return Candidates(
        candidates,
        sorted({*layout.roots, *folders}, key=lambda folder: (folder != ".", folder)),
        ["python setup.py build_ext --inplace"] if "ext_modules" in sources.get("setup.py", "") else [],
        {path: why for path, why in read.items() if isinstance(why, str)},
    )


def _fitting(candidate: Candidate) -> Candidate:
    """A candidate that a recipe may have, or why it may not: a name that is too long, say."""
    if not candidate.taken or candidate.kind is CandidateKind.NORM:
        return candidate
    try:
        TypeAdapter(Function).validate_python({"name": candidate.name, **candidate.entry})
    except ValidationError as error:
        return replace(candidate, lacks=one_line(error.errors()[0]["msg"]))
    return candidate


def _looks(path: str, text: str) -> list[Any]:
    """What is worth the time to look for in a file: parsing a large checkout takes half a minute."""
    kernels_too = not _TESTS.search(path)
    return [
        look
        for look, words in _WORDS.items()
        if (kernels_too or look not in (helion_kernels, norms)) and words.search(f"def {path}\n{text}")
    ]


def _bounded(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates of which so many are taken that a first verdict is not long in coming: by turns of each file."""
    turn = Counter[str]()
    order = list[tuple[int, int]]()
    for index, candidate in enumerate(candidates):
        if candidate.taken:
            order.append((turn[candidate.path], index))
            turn[candidate.path] += 1
    later = {index for _, index in sorted(order)[MAX_TAKEN:]}
    lacks = f"a first recipe has {MAX_TAKEN}; remove the # to measure it too"
    return [
        replace(candidate, lacks=lacks) if index in later else candidate for index, candidate in enumerate(candidates)
    ]


def _named(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Functions whose names differ: equal ones get those of their file and folder before, at last a number."""
    named = list(candidates)
    for part in ("stem", "folder", "number"):
        counts = Counter(candidate.name for candidate in named if _needs_name(candidate))
        numbers = Counter[str]()
        for index, candidate in enumerate(named):
            if not _needs_name(candidate) or counts[candidate.name] < 2:
                continue
            numbers[candidate.name] += 1
            path = PurePosixPath(candidate.path)
            before = {"stem": slug(path.stem), "folder": slug(path.parent.name or "top")}.get(part)
            name = f"{before}/{candidate.name}" if before else f"{candidate.name}-{numbers[candidate.name]}"
            named[index] = replace(candidate, name=name)
    return named


def _needs_name(candidate: Candidate) -> bool:
    return bool(candidate.entry) and candidate.kind is not CandidateKind.NORM


def written(candidates: Candidates, devices: Sequence[str]) -> str:
    """The recipe; what has to be filled in is a comment."""
    norms = [candidate for candidate in candidates.taken if candidate.kind is CandidateKind.NORM]
    functions = [candidate for candidate in candidates.all if candidate.entry and candidate not in norms]
    blocks = [f"devices = {_toml(devices)}", *([f"suite = {_toml(SUITE)}"] if norms else []), "\n[build]"]
    blocks += [f"commands = {_toml(candidates.commands)}"] if candidates.commands else []
    blocks.append(f"import_paths = {_toml(candidates.import_paths)}")
    if norms:
        blocks += _providers(norms)
        others = [f"{candidate.name}/{case}" for candidate in functions if candidate.taken for case in candidate.cases]
        listed = dict.fromkeys(f"{candidate.name}.{case}" for candidate in norms for case in candidate.cases)
        blocks.append(f"\n[suites]\n{SUITE} = {_toml([*listed, *others])}")
    return "\n".join([*blocks, *map(_function, functions)]) + "\n"


def _providers(norms: Sequence[Candidate]) -> Iterator[str]:
    """A provider for the functions of each file; a second function of the same op has one of its own."""
    providers: dict[str, list[str]] = {}
    numbers = Counter[tuple[str, str]]()
    for norm in norms:
        stem = slug(PurePosixPath(norm.path).stem).lower().strip("_")[:30] or "norms"
        numbers[stem, norm.name] += 1
        number = numbers[stem, norm.name]
        call = f"{norm.name} = {_toml(norm.entry['call'])}  # {one_line(f'{norm.path}:{norm.line}')}"
        providers.setdefault(stem if number == 1 else f"{stem}-{number}", []).append(call)
    for name, calls in providers.items():
        yield "\n".join([f"\n[providers.{name}]", *calls])


def _function(candidate: Candidate) -> str:
    head = f"\n# {one_line(f'{candidate.path}:{candidate.line}, {candidate.title}', 200)}"
    comments = [f"# {one_line(text, 400)}" for text in (candidate.lacks, *candidate.notes) if text]
    entry = {"name": candidate.name, **candidate.entry}
    lines = ["[[function]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    return "\n".join([head, *comments, *(line if candidate.taken else f"# {line}" for line in lines)])


def _toml(value: Any) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{" + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case bool():
            return str(value).lower()
    return repr(value)


def _key(name: str) -> str:
    """A Python name as a key of TOML, where one without quotes has ASCII letters alone."""
    return name if name.isascii() else _toml(name)
