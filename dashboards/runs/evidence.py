"""What a cause rests on: the differences of the compiled code, those first that its sentence names.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from dashboards.runs.facts import Sides
from service.domain.attribution.explanations import WORK, By
from service.domain.codefacts.comparison import LABELS
from service.domain.codefacts.compiled import Kernel, kernel_pairs, kernels_of
from service.domain.codefacts.diff import What, kernel_changes
from service.domain.text import one_line
from service.reports.rows import Row

MAX_EVIDENCE = 40  # lines; facts come from strangers
# What each cause is seen in: changes of kernels, and facts of the whole call.
_SEEN_IN: Mapping[str, frozenset[str]] = {
    By.TRAFFIC: frozenset({"kernels", "ops", "operators", "ran"}),
    By.ATOMICS: frozenset({"atomic"}),
    By.SPILLS: frozenset({What.SPILLS, What.STACK}),
    By.REREADS: frozenset({What.READS}),
    By.WIDTH: frozenset({What.LOADS, What.STORES}),
    By.WORK: frozenset(WORK),
    By.WAVES: frozenset({What.GRID}),
    By.OCCUPANCY: frozenset({What.OCCUPANCY, What.REGISTERS, What.SHARED}),
    By.COMPILER: frozenset({"graphs", "graph_breaks", "recompiles", "recompiled_at_rows"}),
    By.CONFIGURATION: frozenset({What.CONFIGURATION, "config"}),
    By.HINTS: frozenset({What.HINTS}),
    By.INSTRUCTIONS: frozenset({What.INSTRUCTIONS}),
    By.RESOURCES: frozenset({What.REGISTERS, What.SHARED}),
}
_NAMES = {"atomic": "atomic operations", "layout_bytes": "bytes that change layout", **LABELS}
_SAME_FACT = {"config": What.CONFIGURATION}  # other facts of a call have the name of the kernels' property


@dataclass(frozen=True)
class Evidence:
    """One difference of the two builds; `named` by the cause."""

    name: str
    kernel: str  # of several; empty for the whole call
    before: str
    now: str
    named: bool


def evidence(row: Row, sides: Sides) -> list[Evidence]:
    """What differs between the code of head and baseline, without what differs from session to session."""
    was, now = (kernels_of(side.facts.get("triton")) if side else () for side in (row.parent, row.head))
    seen_in = _SEEN_IN.get(row.cause.by or "", frozenset()) if row.cause else frozenset()
    found = [
        (str(what), Evidence(_named(what), kernel, _number(before), _number(after), what in seen_in))
        for kernel, (what, _, before, after, _) in kernel_changes(was, now)
    ]
    found += [(kind, one) for before, after in kernel_pairs(was, now) for kind, one in _work(before, after, seen_in)]
    of_kernels = {what for what, _ in found}
    found += [
        (line.key, Evidence(line.name, "", line.before, line.now, line.key in seen_in))
        for line in sides.lines
        if line.differs and _SAME_FACT.get(line.key, line.key) not in of_kernels
    ]
    return sorted((one for _, one in found), key=lambda one: not one.named)[:MAX_EVIDENCE]


def _work(was: Kernel, now: Kernel, seen_in: frozenset[str]) -> list[tuple[str, Evidence]]:
    """The elements by kind of operation, where the cause is one of them."""
    kinds = [kind for kind in ("atomic", *WORK) if kind in seen_in and was.work.get(kind, 0) != now.work.get(kind, 0)]
    sides = ((kind, *(f"{side.work.get(kind, 0):,}" for side in (was, now))) for kind in kinds)
    return [(kind, Evidence(_named(kind), now.name, before, after, named=True)) for kind, before, after in sides]


def _named(what: str) -> str:
    return _NAMES.get(what) or (WORK[what][1].removeprefix("more ") if what in WORK else one_line(what, 60))


def _number(text: str) -> str:
    return f"{int(text):,}" if text.isascii() and text.isdigit() else one_line(text, 160)
