"""The page of a target in words and cells: its verdict, and what each revision did on each device."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.domain.health.strips import Mark, mark_of
from service.domain.states import RunState, TargetKind
from service.domain.verdicts import totals
from service.domain.verdicts.totals import SotaMean
from service.ledger.reading.mainline import MainlineRevision
from service.reports.health.facts import RecentRun, TargetLately
from service.reports.health.lately import BEHIND, LEVEL
from service.reports.health.needs import MIN_POLL_FAILURES

_SIGNS = {
    Mark.SLOWER: ("slower", "▲"),
    Mark.FASTER: ("faster", "▼"),
    Mark.STEADY: ("steady", "–"),
    Mark.FAILED: ("failed", "✕"),
    Mark.UNMEASURED: ("unmeasured", "…"),
}


@dataclass(frozen=True)
class DeviceCell:
    """What a revision did on one device."""

    run_id: int
    tone: str
    sign: str
    text: str  # "3 slower"
    mean: float | None  # times SOTA
    step: float | None  # the mean over that of the revision before; None where the cases differ
    title: str

    @property
    def behind(self) -> bool:
        return self.mean is not None and self.mean > BEHIND

    @property
    def moved(self) -> bool:
        return self.step is not None and abs(self.step - 1) >= LEVEL


def rows(found: Sequence[MainlineRevision], shown: int) -> list[tuple[MainlineRevision, dict[str, DeviceCell]]]:
    """The first revisions, newest first, with their cells; those after them only tell what was before."""
    before = dict[str, SotaMean]()
    made = []
    for one in reversed(found):
        cells = {device: _cell(run, before.get(device)) for device, run in one.runs.items()}
        before |= {device: run.result.mean for device, run in one.runs.items() if run.result.mean is not None}
        made.append((one, cells))
    return made[::-1][:shown]


def cells(runs: Mapping[str, RecentRun]) -> dict[str, DeviceCell]:
    """The cells of a head of a pull request."""
    return {device: _cell(run, None) for device, run in runs.items()}


def _cell(run: RecentRun, before: SotaMean | None) -> DeviceCell:
    tone, sign = _SIGNS[mark_of([run.result])]
    mean = run.result.mean
    step = totals.change({"": mean}, {"": before}) if mean and before else None
    counts = _counts(run)
    said = [counts, f"{mean.ratio:.3f} times {run.sota or 'SOTA'}" if mean else ""]
    if step is not None and abs(step - 1) >= 0.0005:
        said.append(f"{(step - 1) * 100:+.1f} % since the revision before")
    return DeviceCell(run.run_id, tone, sign, counts, mean.ratio if mean else None, step, "; ".join(filter(None, said)))


def _counts(run: RecentRun) -> str:
    if run.state != RunState.DONE:
        return {RunState.LEASED: "running", RunState.HELD: "needs approval"}.get(RunState(run.state), run.state)
    named = ((run.result.slower, "slower"), (run.result.newly_broken, "newly wrong"), (run.result.faster, "faster"))
    return ", ".join(f"{n} {word}" for n, word in named if n)


def changes(one: TargetLately) -> dict[str, float]:
    """The change of the mean over a week, as a ratio, on each device where it can be compared."""
    found = {}
    for device, mean in one.means.items():
        then = one.a_week_ago.get(device)
        change = totals.change({device: mean}, {device: then.mean}) if then and then.mean else None
        if change is not None:
            found[device] = change
    return found


def verdict(one: TargetLately, regressions: int, behind: int) -> str:
    """The state of a target: its change over a week where it is the largest, and what is open."""
    if not one.revisions:
        nothing = "no releases yet" if one.row.kind is TargetKind.PACKAGE else "no revisions yet"
        return f"{nothing}; paused" if one.row.paused_at is not None else nothing
    parts = []
    compared = changes(one)
    moved = {device: change for device, change in compared.items() if abs(change - 1) >= LEVEL}
    if moved:
        device = max(moved, key=lambda name: abs(math.log(moved[name])))
        change = moved[device]
        word = "slower" if change > 1 else "faster"
        parts.append(f"{abs(change - 1) * 100:.1f} % {word} than a week ago on {device}")
    elif compared:
        parts.append("as fast as a week ago")
    elif not one.newest:
        parts.append("not measured yet")
    broken = sum(run.broken for run in one.newest.values())
    if broken:
        parts.append(f"{broken} wrong or failed")
    if regressions:
        parts.append(f"{regressions} open regression{'s' * (regressions != 1)}")
    elif one.newest:
        parts.append("no open regressions")
    if one.row.paused_at is not None:
        parts.append("paused")
    elif one.row.poll_failures >= MIN_POLL_FAILURES:
        parts.append("not polled")
    if not regressions and behind:
        parts.append(f"{behind} behind SOTA")
    return "; ".join(parts)


def devices(found: Iterable[MainlineRevision], wanted: Iterable[str]) -> list[str]:
    """The devices of the columns: those of the recipe, then others that were measured."""
    measured = {device for one in found for device in one.runs}
    return list(dict.fromkeys((*wanted, *sorted(measured))))
