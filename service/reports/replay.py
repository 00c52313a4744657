"""A replayed policy as a table and as Markdown."""

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernels.cases import Metric
from service.domain.metrics import WORDS, percent
from service.domain.text import one_line, printable
from service.domain.verdicts.replay import Fate, Sum
from service.reports.markdown import escaped, grid
from service.reports.views import Replay, ReplayedCase
from service.reports.words import of_replayed

SHOWN = 40  # of each kind; JSON has all of them
TITLES = {
    Fate.NEW: "New alarms",
    Fate.MISSED: "Missed: alarmed before, and would not alarm",
    Fate.SPARED: "Spared: dismissed by a person, and would not alarm",
    Fate.UNDECIDED: "Undecided: it needs trials that were never made",
}
COLUMNS = ("device", "provider", "metric", "cases", "alarmed", "stay", "new", "missed", "spared", "undecided")
ROW = ("run", "revision", "device", "provider", "case", "was", "would be", "change", "why")


def headline(replay: Replay) -> str:
    """Summarise the replay in one sentence."""
    if not replay.runs:
        return "No stored runs to replay."
    versions = ", ".join(f"{device} {digest[:10]}" for device, digest in sorted(replay.versions.items()))
    whole = replay.whole
    return (
        f"{replay.runs} runs from {_day(replay.first_at)} to {_day(replay.last_at)}, policy {versions}: "
        f"{whole.alarmed} alarmed, of which {whole.stay} stay, {whole.missed} missed and {whole.spared} spared; "
        f"{whole.new} new; {whole.undecided} undecided with the stored trials."
    )


def sentences(replay: Replay) -> list[str]:
    """Sentences on the cost in trials, the flags, and equal code."""
    whole, said = replay.whole, list[str]()
    if whole.made:
        said.append(
            f"Trials at cases: {whole.made:,} were made, {whole.used:,} of them would have been used"
            + (f", and at least {whole.lacking:,} more needed." if whole.lacking else ".")
        )
    if whole.behind_before or whole.behind:
        said.append(f"Cases behind SOTA: {whole.behind_before}; it would have been {whole.behind}.")
    if whole.leaks_before or whole.leaks:
        said.append(f"Cases slower than the pinned baseline: {whole.leaks_before}; it would have been {whole.leaks}.")
    if replay.equal.comparisons:
        said.append(
            f"Comparisons of equal code: {replay.equal.comparisons:,}; {replay.equal_before.alarmed} alarmed, "
            f"{replay.equal.alarmed} would have."
        )
    return said


def table(replay: Replay) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [Text(headline(replay), style="bold")]
    if replay.sums:
        sums = Table(*COLUMNS, box=None, pad_edge=False)
        for cells in _sums(replay):
            sums.add_row(*(Text(printable(cell)) for cell in cells))
        parts.append(sums)
    for fate, cases in _by_fate(replay):
        parts.append(Text(f"\n{TITLES[fate]}: {len(cases)}", style="bold"))
        rows = Table(*ROW, box=None, pad_edge=False)
        for one in cases[:SHOWN]:
            rows.add_row(*(Text(printable(cell), overflow="fold") for cell in _cells(one)))
        parts += [rows, *([Text(f"… and {len(cases) - SHOWN} more")] if len(cases) > SHOWN else [])]
    return Group(*parts, *(Text(said) for said in sentences(replay)))


def page(replay: Replay) -> str:
    """The same in Markdown."""
    lines = [escaped(headline(replay)), ""]
    if replay.sums:
        lines += [*grid(COLUMNS, _sums(replay)), ""]
    for fate, cases in _by_fate(replay):
        lines += [f"**{TITLES[fate]}: {len(cases)}**", "", *grid(ROW, [_cells(one) for one in cases[:SHOWN]])]
        lines += ["", *([f"… and {len(cases) - SHOWN} more", ""] if len(cases) > SHOWN else [])]
    return "\n".join([*lines, *sentences(replay)]).rstrip()


def _by_fate(replay: Replay) -> list[tuple[Fate, list[ReplayedCase]]]:
    kinds = [(fate, [one for one in replay.cases if one.replayed.fate is fate]) for fate in TITLES]
    return [(fate, cases) for fate, cases in kinds if cases]


def _sums(replay: Replay) -> list[tuple[str, ...]]:
    def cells(device: str, provider: str, metric: Metric, own: Sum) -> tuple[str, ...]:
        counts = (own.cases, own.alarmed, own.stay, own.new, own.missed, own.spared, own.undecided)
        return device, provider, WORDS[metric].name, *map(str, counts)

    return [cells(*group, own) for group, own in sorted(replay.sums.items())]


def _cells(found: ReplayedCase) -> tuple[str, ...]:
    one = found.replayed
    change = percent(one.verdict.comparison.ratio if one.verdict.comparison else None, one.metric)
    was = one.before.value if one.before else "not judged"
    place = (str(found.run_id), found.revision, found.device, one.provider, one.case)
    return *place, was, one.verdict.outcome.value, change, one_line(of_replayed(one))


def _day(at: float | None) -> str:
    return datetime.fromtimestamp(at or 0.0, UTC).date().isoformat()
