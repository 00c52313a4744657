"""The targets in one line each, what changed since yesterday, and what is fine.  Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from service.domain.health.overview import Mark, trend
from service.domain.states import TargetKind
from service.domain.text import listed, one_line, short
from service.domain.verdicts import totals
from service.reports.health.facts import EqualCodeSum, HealthFacts, TargetLately
from service.reports.health.needs import MIN_POLL_FAILURES, Disk, control_polls

LEVEL = 0.008  # a change of the mean over a week that is not worth a word
BEHIND = 1.02  # a mean against SOTA that is
MAX_CHANGES = 7


@dataclass(frozen=True)
class TargetLine:
    """A target in one line."""

    key: int
    name: str
    href: str
    marks: tuple[Mark, ...]
    marks_in_words: str
    mean: float | None  # times SOTA, over the devices
    mean_in_words: str
    points: tuple[float | None, ...]  # the mean after each revision
    week: float | None  # the change of the mean, as a ratio; None where the cases differ
    cases: int
    measured_at: float | None
    tone: str  # of the state; empty where nothing is to be said
    state: str
    sample: bool

    @property
    def behind(self) -> bool:
        return self.mean is not None and self.mean > BEHIND

    @property
    def level(self) -> bool:
        return self.week is not None and abs(self.week - 1) < LEVEL


def target_lines(facts: HealthFacts) -> list[TargetLine]:
    """One line for each target, by name."""
    slower = Counter[int]()
    for one in facts.incidents:
        slower[one.target_id] += one.count
    return [target_line(one, slower[one.row.id]) for one in facts.targets]


def target_line(one: TargetLately, slower: int) -> TargetLine:
    """A target, of which so many regressions need a person."""
    marks = tuple(revision.mark for revision in one.revisions)
    newest, means = one.newest, one.means
    measured = [run.at for run in newest.values() if run.at is not None]
    then = {device: run.mean for device, run in one.a_week_ago.items() if run.mean is not None}
    tone, state = _state(one, slower)
    each = [f"{mean.ratio:.2f} on {device}" for device, mean in sorted(means.items())]
    sota = listed(sorted({run.sota for run in newest.values() if run.sota}) or ["SOTA"])
    return TargetLine(
        key=one.row.id,
        name=one.row.name,
        href=f"/targets/{quote(one.row.name, safe='')}",
        marks=marks,
        marks_in_words=in_words(marks),
        mean=totals.joined(means.values()),
        mean_in_words=f"times {sota}: {', '.join(each)}" if each else "not compared with SOTA",
        points=tuple(trend(one.revisions)),
        week=totals.change(means, then),
        cases=max((run.cases for run in newest.values()), default=0),
        measured_at=max(measured, default=None),
        tone=tone,
        state=state,
        sample=one.row.is_sample,
    )


def in_words(marks: Sequence[Mark]) -> str:
    """`Last 30 revisions: 26 steady, 1 slower`."""
    if not marks:
        return "No revisions yet"
    counts = Counter(marks)
    said = ", ".join(f"{counts[mark]} {mark.value}" for mark in Mark if counts[mark])
    return f"Last {len(marks)} revisions, newest last: {said}"


def _state(one: TargetLately, slower: int) -> tuple[str, str]:
    """The worst that there is to say of a target; nothing of a steady one."""
    broken = sum(run.broken for run in one.newest.values())
    behind = sum(run.behind for run in one.newest.values())
    if slower:
        return "regression", f"{slower} slower"
    if broken:
        return "invalid", f"{broken} wrong"
    if one.failed:
        return "failed", "failed"
    if one.row.poll_failures:
        return "failed", "not polled" if one.row.poll_failures >= MIN_POLL_FAILURES else "poll failed"
    if one.row.paused_at is not None:
        return "held", "paused"
    if behind:
        return "behind", f"{behind} behind"
    return ("", "") if one.newest else ("new", "not measured")


def fine(facts: HealthFacts, lines: Sequence[TargetLine], disk: Disk) -> list[str]:
    """What is fine, in a few words each; `lines` are those of the targets."""
    own = [one for one in lines if not one.sample]
    steady = sum(one.tone in ("", "behind") for one in own)
    workers = [one for queue in facts.queues.devices for one in queue.workers]
    online = sum(one.online for one in workers)
    parts = [f"{steady} of {len(own)} targets steady"] if steady else []
    if control_polls(facts):
        parts.append("control polls")
    if not facts.unsent:
        parts.append("no message waits")
    if online:
        of = f"{online} of {len(workers)}" if online < len(workers) else f"{online}"
        parts.append(f"{of} worker{'s' * (len(workers) != 1)} online")
    spread = trusted(facts.nights).spread
    if spread is not None:
        parts.append(f"A/A {spread * 100:.2f} %")
    parts.append(f"disk {disk.used * 100:.0f} % full")
    accepted = sum(one.accepted for one in facts.watched.incidents)
    if accepted:
        parts.append(f"{accepted} regression{'s' * (accepted != 1)} accepted")
    return parts


def trusted(nights: Sequence[EqualCodeSum]) -> EqualCodeSum:
    """All nights together."""
    return sum(nights, EqualCodeSum())


@dataclass(frozen=True)
class News:
    """Something that happened since yesterday."""

    tone: str
    text: str
    href: str
    at: float | None


def since_yesterday(facts: HealthFacts) -> list[News]:
    """What was opened and fixed, gaps, configurations that drifted, other stacks and releases: the last first."""
    found = [*_opened(facts), *_fixed(facts), *_gaps(facts), *_drifted(facts), *_stacks(facts), *_revisions(facts)]
    return sorted(found, key=lambda one: -(one.at or 0.0))


def _opened(facts: HealthFacts) -> Iterator[News]:
    names = {one.row.id: one.row.name for one in facts.targets}
    for one in facts.incidents:
        if one.opened_at >= facts.since and one.count and one.worst:
            case = f"{one.count} case{'s' * (one.count != 1)} slower on {listed(sorted(one.devices))}"
            text = f"{names[one.target_id]}: {case}, since {short(one.sha)}"
            yield News("regression", text, f"/regressions/{one.worst.regression_id}", one.opened_at)


def _fixed(facts: HealthFacts) -> Iterator[News]:
    names = {one.row.id: one.row.name for one in facts.targets}
    for one in facts.fixed:
        case = f"{one.count} regression{'s' * (one.count != 1)} fixed on {listed(one.devices)}"
        yield News("fixed", f"{names[one.target_id]}: {case} by {short(one.sha)}", f"/runs/{one.run_id}", one.at)


def _gaps(facts: HealthFacts) -> Iterator[News]:
    for one in facts.targets:
        for device, run in one.newest.items():
            before = one.a_day_ago.get(device)
            mean = run.result.mean
            same = before and before.mean and mean and before.mean.digest == mean.digest
            if before is None or not same or before.behind == run.behind:
                continue  # where a case is missing, it has not caught up
            what = "caught up with" if run.behind < before.behind else "fell behind"
            text = (
                f"{one.row.name} on {device} {what} {run.sota or 'SOTA'}: {before.behind} → {run.behind} cases behind"
            )
            yield News("improvement" if run.behind < before.behind else "behind", text, f"/runs/{run.run_id}", run.at)


def _drifted(facts: HealthFacts) -> Iterator[News]:
    names = {one.row.id: one.row.name for one in facts.targets}
    for one in facts.drifted:
        name = names[one.target_id]
        what = f"{one.count} configuration{'s' * (one.count != 1)} on {one.device} changed without a commit"
        yield News("drift", f"{name}: {what}", f"/targets/{quote(name, safe='')}/facts#drifts", one.at)


def _stacks(facts: HealthFacts) -> Iterator[News]:
    for one in facts.stacks:
        changes = f"{', '.join(one.changes[:2])}{f' and {len(one.changes) - 2} more' if len(one.changes) > 2 else ''}"
        yield News("new", f"{one.device}: {one_line(changes)}", f"/runs/{one.run_id}", one.at)


def _revisions(facts: HealthFacts) -> Iterator[News]:
    """Releases of packages, and revisions that are faster."""
    for one in facts.targets:
        href = f"/targets/{quote(one.row.name, safe='')}"
        if one.row.kind is TargetKind.PACKAGE:
            for revision in one.revisions:
                if revision.committed_at >= facts.since:
                    yield News(
                        "new", f"{one.row.name}: release {one_line(revision.sha, 40)}", href, revision.committed_at
                    )
        for run in one.runs:
            if run.at is not None and run.at >= facts.since and run.result.faster and not run.result.slower:
                cases = f"{run.result.faster} case{'s' * (run.result.faster != 1)}"
                text = f"{one.row.name}: {cases} faster on {run.device} with {short(run.sha)}"
                yield News("improvement", text, f"/runs/{run.run_id}", run.at)
