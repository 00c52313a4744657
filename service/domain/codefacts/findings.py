"""The result of comparing compiled code, with the limits of a recipe that it breaks.  Pure.

Table, JSON and Markdown render it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from service.domain.codefacts import diff
from service.domain.codefacts.compiled import Compiled, CompiledPlace, State, kernel_pairs
from service.domain.codefacts.diff import MAX_ALIKE, STATES, CodeChange, Group, What, some, spelled
from service.domain.codefacts.measured import Difference
from service.domain.codefacts.texts import KernelText, SourceLines
from service.domain.policy.policy import FactsPolicy
from service.domain.states import UNDECIDED
from service.domain.text import listed, short

MAX_FINDINGS = 12  # lines of each kind that are kept
MAX_KERNELS = 100  # of those at known places
MENDS = {
    "over_limit": "use smaller blocks, fewer stages or a narrower tile: the kernel cannot be launched as it is",
    "refused": 'use smaller blocks or fewer stages, or allow the fallback with refused = "report"',
    "spills_allowed": "use more warps per row, keep fewer values live, or allow it with spills_allowed",
    "broken": 'fix the compilation, or allow it with broken = "report"',
    "more_kernels": 'find what ended the fusion, or allow it with more_kernels = "report"',
    "registers_growth": "keep fewer values live, or allow it with registers_growth",
}


@dataclass(frozen=True)
class ComparedRevision:
    """One of the two revisions."""

    sha: str
    subject: str = ""

    @property
    def short(self) -> str:
        return short(self.sha)


@dataclass(frozen=True)
class Violation:
    """A limit of the policy that the head breaks and the base did not."""

    rule: str  # the setting in [facts]
    said: str
    places: tuple[CompiledPlace, ...]


@dataclass(frozen=True)
class Uncompiled:
    """Places that were not compiled at the head, all for one reason."""

    state: State
    reason: str
    places: tuple[CompiledPlace, ...]


@dataclass(frozen=True)
class FactsReport:
    """`base` is None where there is nothing to compare with; `skipped` says why nothing was compiled."""

    target: str
    suite: str
    archs: tuple[str, ...]
    providers: tuple[str, ...]
    head: ComparedRevision
    base: ComparedRevision | None = None
    changes: tuple[CodeChange, ...] = ()
    violations: tuple[Violation, ...] = ()
    known_before: tuple[CompiledPlace, ...] = ()
    uncompiled: tuple[Uncompiled, ...] = ()
    unjudged: tuple[CompiledPlace, ...] = ()  # failed at the head and absent at the base, so no limit was checked
    compiled: int = 0  # places of the head
    compared: int = 0  # those that compiled at both
    same: int = 0
    notes: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    skipped: str | None = None
    seconds: float = 0.0
    facts: tuple[tuple[CompiledPlace, Compiled], ...] = ()  # of the head
    texts: tuple[KernelText, ...] = ()  # of the kernels that changed, where they are to be stored

    @property
    def groups(self) -> list[Group]:
        """The changes as lines to read, without what a broken limit says already."""
        named = {
            place
            for violation in self.violations
            if violation.rule in ("over_limit", "refused")
            for place in violation.places
        }
        return diff.grouped(
            change for change in self.changes if change.what is not What.LIMIT or change.place not in named
        )

    @property
    def unexplained(self) -> tuple[Uncompiled, ...]:
        """Cases that did not compile, except those already reported as a broken limit."""
        named = {place for violation in self.violations for place in violation.places}
        return tuple(row for row in self.uncompiled if not named.issuperset(row.places))

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a limit is broken, 2 nothing could be compiled, 3 some cases could not, with no base to say why."""
        if self.violations:
            return 1
        if not (self.compiled or self.skipped or self.known_before):
            return 2
        return UNDECIDED if self.unjudged else 0

    @property
    def headline(self) -> str:
        """`3 cases break a limit; the same machine code at 38 of 40 cases`."""
        if self.skipped:
            return self.skipped
        broken = len({place for violation in self.violations for place in violation.places})
        limits = f"{_cases(broken)} break{'s' * (broken == 1)} a limit; " if broken else ""
        limits += (
            f"{_cases(len(self.unjudged))} undecided: not compiled, and not at the base; " if self.unjudged else ""
        )
        if not self.compiled:
            return f"{limits}nothing could be compiled"
        if self.base is None:
            return f"{limits}{_cases(self.compiled)} compiled, with nothing to compare with"
        if not self.compared:
            return f"{limits}no case compiled at both revisions, and {_cases(self.compiled)} at the head"
        if self.same == self.compared:
            return f"{limits}the same machine code at {_all(self.compared)}"
        if not self.same:
            return f"{limits}other machine code at {_all(self.compared)}"
        return f"{limits}the same machine code at {self.same} of {_cases(self.compared)}"


@dataclass(frozen=True)
class Finding:
    """One line of what a comparison found."""

    said: str
    where: str
    cases: int
    worse: bool | None = None  # None where a person has to know


@dataclass(frozen=True)
class KernelFindings:
    """The changes of one kernel for one architecture, or of the function that launches kernels of others."""

    source: SourceLines
    kernel: str  # its name; empty where the changes are those of a whole case
    arch: str
    changes: tuple[Finding, ...]
    broken: bool = False  # whether a limit of the recipe's `[facts]` is

    @property
    def worse(self) -> bool:
        return self.broken or any(change.worse for change in self.changes)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "KernelFindings | None":
        source, changes = SourceLines.read(kept["source"]), tuple(Finding(**change) for change in kept["changes"])
        return cls(source, kept["kernel"], kept["arch"], changes, kept["broken"]) if source and changes else None


@dataclass(frozen=True)
class Findings:
    """The summary of a report that is stored, and shown with the times of a run."""

    headline: str
    base: str | None  # the revision compared with, short
    broken: tuple[Finding, ...] = ()  # limits of the recipe's `[facts]`
    changes: tuple[Finding, ...] = ()
    uncompiled: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    more: int = 0  # lines that were left out
    kernels: tuple[KernelFindings, ...] = ()  # those at known places in the source

    @classmethod
    def of(cls, report: FactsReport) -> "Findings":
        groups = report.groups
        return cls(
            report.headline,
            report.base.short if report.base else None,
            tuple(
                Finding(
                    f"{violation.said}: {MENDS[violation.rule]}",
                    at(violation.places),
                    len(violation.places),
                    worse=True,
                )
                for violation in report.violations[:MAX_FINDINGS]
            ),
            tuple(map(finding_of, groups[:MAX_FINDINGS])),
            tuple(
                Finding(f"{uncompiled.state.value}: {uncompiled.reason}", at(uncompiled.places), len(uncompiled.places))
                for uncompiled in report.unexplained[:MAX_FINDINGS]
            ),
            report.notes[:MAX_FINDINGS],
            max(0, len(groups) - MAX_FINDINGS),
            by_kernel(report),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Findings":
        lines = {
            name: tuple(Finding(**finding) for finding in kept[name]) for name in ("broken", "changes", "uncompiled")
        }
        kernels = filter(None, map(KernelFindings.from_json, kept.get("kernels", ())))  # old rows have none
        notes, more = tuple(kept["notes"]), kept["more"]
        return cls(kept["headline"], kept["base"], **lines, notes=notes, more=more, kernels=tuple(kernels))


def by_kernel(report: FactsReport) -> tuple[KernelFindings, ...]:
    """The changes at known places in the source, those that are worse first."""
    facts = dict(report.facts)
    found: dict[tuple[SourceLines, str, str], list[CodeChange]] = defaultdict(list)
    for change in report.changes:
        if change.source is not None:
            kernels = facts[change.place].kernels if change.place in facts else ()
            name = change.kernel or next((kernel.name for kernel in kernels if kernel.source == change.source), "")
            found[change.source, name, change.place.arch].append(change)
    broken = {(rule.rule, place) for rule in report.violations for place in rule.places}
    listed = [
        KernelFindings(
            source,
            kernel,
            arch,
            tuple(finding_of(replace(group, kernel="")) for group in diff.grouped(changes)[:MAX_FINDINGS]),
            any((rule, change.place) in broken for change in changes for rule in _RULES.get(change.what, ())),
        )
        for (source, kernel, arch), changes in found.items()
    ]
    return tuple(
        sorted(
            listed,
            key=lambda findings: (
                not findings.broken,
                not findings.worse,
                findings.source.file,
                findings.source.first,
                findings.arch,
            ),
        )[:MAX_KERNELS]
    )


# The limits that a change of a property can break.
_RULES = {
    What.SPILLS: ("spills_allowed",),
    What.LIMIT: ("over_limit", "refused"),
    What.STATE: ("broken",),
    What.KERNELS: ("more_kernels",),
    What.REGISTERS: ("registers_growth",),
}


def finding_of(group: Group) -> Finding:
    words = f"{group.said} ({group.kernel})" if group.kernel else group.said
    return Finding(words, at(group.places), len(group.places), group.worse)


def compared(report: FactsReport, was: diff.Facts | None, now: diff.Facts, policy: FactsPolicy) -> FactsReport:
    """The report with what the facts of base and head say."""
    before = was or {}
    return replace(
        report,
        changes=tuple(diff.changes(before, now)),
        violations=tuple(violations(was, now, policy)),
        known_before=known_before(was, now),
        uncompiled=_uncompiled(now),
        unjudged=tuple(
            place
            for place, compiled in now.items()
            if compiled.state is State.FAILED and not compiled.over and place not in before
        ),
        compiled=sum(map(_compiled, now.values())),
        compared=sum(_compiled(before.get(place)) and _compiled(compiled) for place, compiled in now.items()),
        same=len(diff.same_code(before, now)),
        facts=tuple(now.items()),
    )


def violations(base: diff.Facts | None, head: diff.Facts, policy: FactsPolicy) -> list[Violation]:
    """The limits that the head breaks and the base did not.  Without a base: `over_limit` alone.

    Equal violations are merged; more than `MAX_ALIKE` of one rule are merged into the worst of them.
    """
    places: dict[str, dict[str, list[CompiledPlace]]] = defaultdict(dict)
    sizes: dict[tuple[str, str], float] = {}
    for place, now in head.items():
        for rule, words, size in _broken((base or {}).get(place), now, policy):
            places[rule].setdefault(words, []).append(place)
            sizes[rule, words] = size
    broken = []
    for rule, sayings in places.items():
        worst = sorted(sayings, key=lambda words: -sizes[rule, words])
        if len(worst) > MAX_ALIKE:
            every = chain(*(sayings[words] for words in worst))
            broken.append(Violation(rule, f"{worst[0]}, and {len(worst) - 1} others", tuple(every)))
        else:
            broken += [Violation(rule, words, tuple(sayings[words])) for words in worst]
    return broken


def known_before(base: diff.Facts | None, head: diff.Facts) -> tuple[CompiledPlace, ...]:
    """Places that are over a hard limit now and were so before."""
    return tuple(place for place, now in head.items() if now.over and base and place in base and base[place].over)


def _broken(was: Compiled | None, now: Compiled, policy: FactsPolicy) -> Iterator[tuple[str, str, float]]:
    if now.over and not (was and was.over) and policy.over_limit:
        yield "over_limit", now.over, _excess(now.over)
    if was is None or was.state is not State.COMPILED:
        return
    if now.state is not State.COMPILED:
        if policy.broken == "fail" and not now.over:
            yield "broken", f"compiled before, and now {STATES[now.state]}: {now.reason or 'no reason was given'}", 0
        return
    if policy.refused == "fail" and now.refused and not was.refused:
        yield "refused", f"a kernel no longer fits ({now.refused[0]}), another took its place", _excess(now.refused[0])
    if was.spills is not None and now.spills is not None and was.spills <= policy.spills_allowed < now.spills:
        yield "spills_allowed", f"spills {spelled(was.spills)} → {spelled(now.spills)}", now.spills
    if policy.more_kernels == "fail" and now.count > was.count:
        yield "more_kernels", f"{some(now.count, 'kernel')} instead of {was.count}", now.count - was.count
    if policy.registers_growth is not None and (grown := _growth(was, now)):
        old, new = grown
        if new > old * (1 + policy.registers_growth):
            yield "registers_growth", f"registers {old} → {new}", new / old


def _excess(over: str) -> float:
    """Return the requested amount over the limit; 0 if the text does not contain them."""
    asked = re.search(r"asks for ([0-9]{1,15}) .*of ([1-9][0-9]{0,14})$", over, re.ASCII)
    return int(asked[1]) / int(asked[2]) if asked else 0


def _growth(was: Compiled, now: Compiled) -> tuple[int, int] | None:
    """The registers, before and after, of the kernel in which they grew the most."""
    pairs = ((old.registers, new.registers) for old, new in kernel_pairs(was.kernels, now.kernels))
    grown = [(old, new) for old, new in pairs if old and new]
    return max(grown, key=lambda pair: pair[1] / pair[0], default=None)


def at(places: Iterable[CompiledPlace], shown: int = 1) -> str:
    """`rmsnorm.fwd.4096x1024.bf16 and 9 more cases, on sm_90 and sm_100`."""
    places = list(places)
    cases, archs = (
        list(dict.fromkeys(place.case for place in places)),
        sorted({place.arch for place in places}, key=_number),
    )
    more = len(cases) - shown
    first = ", ".join(cases[:shown]) if more > 0 else listed(cases)
    return f"{first}{f' and {_cases(more, other=True)}' if more > 0 else ''} on {listed(archs)}"


def _uncompiled(head: diff.Facts) -> tuple[Uncompiled, ...]:
    alike: dict[tuple[State, str], list[CompiledPlace]] = defaultdict(list)
    for place, compiled in head.items():
        if compiled.state is not State.COMPILED:
            alike[compiled.state, compiled.over or compiled.reason or "no reason was given"].append(place)
    rows = [Uncompiled(state, reason, tuple(places)) for (state, reason), places in alike.items()]
    return tuple(sorted(rows, key=lambda row: (row.state is not State.FAILED, -len(row.places), row.reason)))


def _compiled(compiled: Compiled | None) -> bool:
    """Whether there is machine code.  A case that only calls other libraries has none."""
    return compiled is not None and compiled.state is State.COMPILED and compiled.code is not None


def _number(arch: str) -> tuple[int, str]:
    digits = "".join(letter for letter in arch if letter.isdigit())
    return int(digits or 0), arch


def _cases(count: int, *, other: bool = False) -> str:
    return f"{count} {'more ' * other}case{'' if count == 1 else 's'}"


def _all(count: int) -> str:
    return "the one case" if count == 1 else f"all {count} cases"
