"""The result of a run as one frozen value that every renderer reads.  Pure: a Run in, a Report out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from kernels.cases import PACKAGES, Metric, Role, Rounding
from service.db.models import Measurement, PolicyRow, RegressionRow, Run, VerdictRow
from service.domain import roofline
from service.domain.codefacts.measured import Measured
from service.domain.metrics import metric_of, words
from service.domain.policy.policy import Policy, Written
from service.domain.policy.recipes import Recipe, parse
from service.domain.states import (
    BaselineKind,
    CellState,
    ForgeKind,
    FoundBy,
    GateState,
    Outcome,
    Purpose,
    Repeatability,
    RunState,
)
from service.domain.text import listed, one_line, short
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.reasons import ReasonCode
from service.domain.verdicts.totals import Summary
from service.errors import BadInput
from service.reports.gate import GateResult, gate, gate_of_case
from service.reports.rows import (
    NOT_CAUSED_BY_IT,
    AgainstSota,
    BaselineRow,
    Known,
    Row,
    Unsupported,
    WithoutSota,
    row_id,
)
from service.reports.words import cause_of, of_verdict

# What the reader must see first, one and several.  A wrong result comes before a slow one: its speed means nothing.
NOUNS = {
    Outcome.INVALID: ("wrong result", "wrong results"),
    Outcome.REGRESSION: ("regression", "regressions"),
    Outcome.FAILED: ("failed case", "failed cases"),
    Outcome.IMPROVEMENT: ("improvement", "improvements"),
    Outcome.INCONCLUSIVE: ("inconclusive", "inconclusive"),
    Outcome.STEADY: ("steady", "steady"),
    Outcome.NEW: ("new case", "new cases"),
    Outcome.REMOVED: ("removed case", "removed cases"),
}
WORST_FIRST = tuple(NOUNS)
Name = tuple[str, str]  # provider and case
ALARMING = (Outcome.REGRESSION, Outcome.INVALID, Outcome.FAILED)
_NO_REASON = {
    RunState.SKIPPED: "it changed nothing that is measured",
    RunState.SUPERSEDED: "a newer revision is measured instead",
    RunState.CANCELLED: "somebody cancelled it",
    RunState.HELD: "it comes from an outside contributor; a maintainer must approve it",
    RunState.QUEUED: "nothing to do yet",
}


@dataclass(frozen=True)
class Report:
    run_id: int
    url: str
    target: str
    forge: str | None
    sha: str
    revision: str  # the short name, for people
    subject: str
    author: str
    committed_at: float
    baseline: str | None  # short too
    pull: int | None
    device: str
    suite: str
    state: RunState
    stage: str | None
    reason: str | None
    log: str | None
    sandboxed: bool | None
    trusted: bool
    attempt: int
    max_attempts: int
    worker: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    stack: Mapping[str, Any]
    stack_digest: str | None
    telemetry: Mapping[str, Any]
    policy: Policy
    sota: str
    rows: tuple[Row, ...]
    unsupported: tuple[Unsupported, ...] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict)  # of the session: see service.domain.roofline
    summaries: tuple[Summary, ...] = ()  # the geometric mean of each op and direction
    policy_version: str | None = None  # that made the verdicts, short; None before there were versions
    purpose: Purpose = Purpose.WATCH
    bisection: int | None = None  # whose step it is
    last_good: str | None = None  # short: the last revision that was not slow, where the baseline is
    pinned: str | None = None  # short: the pinned baseline
    baseline_sha: str | None = None
    forge_url: str | None = None  # the web address of the repository at its forge
    forge_kind: ForgeKind | None = None
    public: bool = False  # anybody may read it, at an address that forges reach
    repeated: bool = False  # the controls of its first session were off, so it was measured once more
    provisional: bool = False  # its worker was not calibrated yet: its times block nothing
    awaits_second: bool = False  # a second session follows, which could decide what offsets of earlier ones leave open
    second_of: int | None = None  # the run whose second session it is

    def of(self, *outcomes: Outcome) -> tuple[Row, ...]:
        """The rows with these outcomes, the largest change first."""
        return tuple(sorted((row for row in self.rows if row.outcome in outcomes), key=self._by_size))

    def _by_size(self, row: Row) -> tuple[float, str, str]:
        """By what counts as a change in its metric: 25 % more to compile is less than 10 % more time of a kernel."""
        ratio = row.ratio or 1.0
        change = max(ratio, 1 / ratio) - 1
        smallest = row.smallest_change or self.policy.smallest_change_of(row.case)
        return -change / smallest, row.case, row.provider

    @cached_property
    def regressions(self) -> tuple[Row, ...]:
        return self.of(Outcome.REGRESSION)

    @property
    def behind(self) -> tuple[Row, ...]:
        """The cases that run behind SOTA, the furthest first; whether they changed or not."""
        return tuple(sorted((row for row in self.rows if row.behind), key=_by_gap))

    @property
    def without_sota(self) -> tuple[WithoutSota, ...]:
        """The cases that could not be compared with SOTA, by reason, the most cases first."""
        timed = (row.sota for row in self.rows if row.head and row.head.median is not None)
        reasons = Counter(sota.reason.rstrip(".") for sota in timed if sota and sota.ratio is None)
        return tuple(WithoutSota(reason, cases) for reason, cases in reasons.most_common())

    @property
    def rounding_before_weight(self) -> tuple[str, ...]:
        """The providers whose outputs are judged by that convention."""
        return self._with_fact("rounding", Rounding.BEFORE_WEIGHT)

    @property
    def inplace(self) -> tuple[str, ...]:
        """The providers that write their outputs into their inputs."""
        return self._with_fact("inplace", True)

    def _with_fact(self, name: str, value: object) -> tuple[str, ...]:
        facts = ((row.provider, row.head.facts) for row in self.rows if row.head)
        return tuple(sorted({provider for provider, each in facts if each.get(name) == value}))

    @property
    def sota_remedy(self) -> str:
        """How to fix that no case could be compared with SOTA; else empty."""
        if not self.without_sota or any(row.sota and row.sota.ratio is not None for row in self.rows):
            return ""
        other = f"name another `sota` for {self.device} in the recipe"
        package = None if self.device == "cpu" else PACKAGES.get(self.sota)
        if package is None or self.sota.removesuffix("-tuned") in self.stack:
            return other
        return f"install `{package}` in the stack that the recipe names (docs/operating.md, Stacks), or {other}"

    @property
    def behind_is_open(self) -> tuple[Row, ...]:
        """The cases that are perhaps behind SOTA: the session could neither show nor exclude it."""
        return tuple(row for row in self.rows if row.behind_is_open)

    @property
    def slow_before(self) -> tuple[Row, ...]:
        """The cases that an earlier revision made slow, and that still are."""
        return tuple(row for row in self.rows if row.slow_before)

    @property
    def slower_than_pinned(self) -> tuple[Row, ...]:
        """The cases that are slower than the pinned baseline, in steps that were too small by themselves or not."""
        return tuple(row for row in self.rows if row.slower_than_pinned)

    @cached_property
    def lost_repeatability(self) -> tuple[Row, ...]:
        """The cases whose baseline gives the same bits for the same inputs, and whose head does not."""
        return tuple(row for row in self.rows if row.repeatability is Repeatability.LOST)

    @property
    def slower_than_wrong(self) -> tuple[Row, ...]:
        """The cases that are slower than their parent, whose results were wrong, the largest change first."""
        rows = (row for row in self.rows if row.slower_than_wrong and row.outcome is not Outcome.FAILED)
        return tuple(sorted(rows, key=lambda row: -((row.wrong_parent and row.wrong_parent.ratio) or 1.0)))

    @property
    def far_behind(self) -> tuple[Row, ...]:
        """The new cases that are far behind SOTA, the furthest first."""
        return tuple(sorted((row for row in self.rows if row.far_behind), key=_by_gap))

    @property
    def correct_now(self) -> tuple[Row, ...]:
        """The cases whose results were wrong at the parent and are correct now."""
        return tuple(row for row in self.rows if row.correct_now)

    @property
    def less_exact(self) -> tuple[Row, ...]:
        """The cases whose measured error grew, within what is allowed."""
        return tuple(row for row in self.rows if row.less_exact)

    @property
    def alarms(self) -> bool:
        """Whether something is worse than before, or far worse than it could be from its first revision on."""
        worse = (self.lost_repeatability, self.slower_than_wrong, self.far_behind)
        return any(self._news(outcome) for outcome in ALARMING) or any(worse)

    @property
    def quarantined(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.quarantined)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The measured cases, in the order of the report."""
        found = {row.metric for row in self.rows}
        return tuple(metric for metric in Metric if metric in found)

    @property
    def counts(self) -> dict[Outcome, int]:
        """Number of rows by outcome, the worst first, without zeros."""
        found = Counter(row.outcome for row in self.rows)
        return {outcome: found[outcome] for outcome in WORST_FIRST if found[outcome]}

    @property
    def tally(self) -> list[tuple[str, str]]:
        """`("steady", "10 steady")` for each outcome, the worst first; what is quarantined is counted apart."""
        counts = self.counts | {Outcome.INCONCLUSIVE: self.counts.get(Outcome.INCONCLUSIVE, 0) - len(self.quarantined)}
        said = [(outcome.value, counted(outcome, counts[outcome])) for outcome in self.counts if counts[outcome]]
        return [*said, *[("quarantined", f"{len(self.quarantined)} quarantined")] * bool(self.quarantined)]

    @property
    def log_url(self) -> str:
        """URL of the full build log."""
        return self.url.replace("/runs/", "/api/v1/runs/") + "/log"

    @property
    def build_failed(self) -> bool:
        return self.state is RunState.FAILED and self.log is not None

    @cached_property
    def gate(self) -> GateResult:
        """Whether the revision may be merged by this, and why not."""
        return gate(
            self.state,
            self.rows,
            self.policy,
            build_failed=self.build_failed,
            purpose=self.purpose,
            provisional=self.provisional,
        )

    def gate_of(self, row: Row) -> GateState:
        """What one of its cases does to the gate."""
        return gate_of_case(row, self.policy, self.purpose, provisional=self.provisional)

    def row_of(self, verdict: VerdictRow) -> Row | BaselineRow | AgainstSota | None:
        """What it says of a verdict; of one against the parent it is the row of the case."""
        row = self._by_name.get((verdict.provider, verdict.case))
        return row and row.against(verdict.baseline_kind)

    @cached_property
    def _by_name(self) -> Mapping[Name, Row]:
        return {(row.provider, row.case): row for row in self.rows}

    @cached_property
    def verdict(self) -> str:
        """The result where no case changed; `comment_head.title` is that of every run."""
        match self.state:
            case RunState.DONE:
                return self._unchanged()
            case RunState.FAILED:
                return "Build failed" if self.build_failed else "Not measured"
            case RunState.SKIPPED:
                return "Skipped, no action needed"
            case RunState.SUPERSEDED | RunState.CANCELLED:
                return self.state.value.capitalize()
            case RunState.HELD:
                return "Held for approval"
            case RunState.QUEUED:
                return "Queued"
            case RunState.LEASED:
                return "In progress"

    @property
    def advice(self) -> str:
        """The reason, and what to do."""
        match self.state:
            case RunState.DONE:
                return one_line(self._to_do(), 400)  # in it are facts, which come from strangers
            case RunState.FAILED if self.build_failed:
                return "fix the build; see its log"
            case RunState.FAILED:
                return f"{one_line(self.reason or 'no reason was given')}; this says nothing about the change itself"
            case RunState.LEASED:
                return one_line(self.stage or "nothing to do yet")
            case state:
                return one_line(self.reason or _NO_REASON[state])

    def _unchanged(self) -> str:
        match self.gate.state:
            case GateState.UNDECIDED:
                return self._undecided()
            case GateState.PASS:
                return "No regression found" if self._open or self.behind_is_open else "No action needed"
        known = [counted(outcome, n) for outcome in ALARMING if (n := self.counts.get(outcome, 0))]
        if known:
            return f"{listed(known)} as before"
        return f"{len(self.behind)} behind {self.sota}" if self.behind else self._perhaps_behind()

    def _undecided(self) -> str:
        if not self.rows:
            return "Nothing measured"
        if not self._open and self.behind_is_open:
            return self._perhaps_behind()
        decided = sum(row.news and row.outcome is not Outcome.REMOVED for row in self.rows) - len(self._open)
        return f"{len(self._open)} of {len(self._open) + decided} cases undecided" if decided else "Nothing decided"

    def _perhaps_behind(self) -> str:
        return f"{len(self.behind_is_open)} perhaps behind {self.sota}"

    def _news(self, outcome: Outcome) -> tuple[Row, ...]:
        return tuple(row for row in self.of(outcome) if row.news)

    @property
    def _open(self) -> tuple[Row, ...]:
        return self._news(Outcome.INCONCLUSIVE)

    def _to_do(self) -> str:
        if self.purpose is Purpose.CALIBRATION and self.regressions:
            return "equal code against itself, so every difference is false; nothing to fix"
        if wrong := self._news(Outcome.INVALID):
            was_right = any(row.parent and row.parent.state is CellState.MEASURED for row in wrong)
            results = "the results changed" if was_right else "the results are wrong"
            return f"{results}; fix that first, because the times of wrong results do not count"
        if rows := self.regressions:
            worst = f"{rows[0].case} {words(rows[0].case).is_} {rows[0].because}"
            return f"fix or acknowledge it, {worst}" if len(rows) == 1 else f"fix or acknowledge them, first {worst}"
        if failed := self._news(Outcome.FAILED):
            return one_line(failed[0].reason)
        if slower := self.slower_than_wrong:
            return f"right results may take longer, but look at {slower[0].case}: {slower[0].against_wrong}"
        if lost := self.lost_repeatability:
            return f"restore repeatability, {lost[0].case} is {lost[0].notes[0]}"
        if far := self.far_behind:
            return f"new is not fast, {far[0].case} {far[0].sota.reason if far[0].sota else ''}"
        if not self.rows:
            none = (
                "its providers support no case of the suite"
                if self.unsupported
                else "the suite has no case for this device"
            )
            return one_line(self.reason or none)
        if self.gate.state is GateState.UNDECIDED and self._open:
            [(why, _)] = Counter(one_line(row.reason) for row in self._open).most_common(1)
            return f"{why}; run it again"
        # An alarming outcome that gets here was so before this revision.
        found = listed(f"{said}{' as before' * (word in ALARMING)}" for word, said in self.tally)
        if self.behind_is_open and self.gate.state is not GateState.WARN:
            found += f"; {self._perhaps_behind()}, which this session could not decide"
        if self.slow_before:
            found += f"; {self.slow_since()}"
        if self.slower_than_pinned:
            found += f"; {len(self.slower_than_pinned)} slower than the pinned baseline {self.pinned or ''}".rstrip()
        return found

    def slow_since(self, number: Callable[[int], str] = str, name: Callable[[str], str] = str) -> str:
        """`3 slow since 3f2a9c0d11 (regressions 12, 13 and 14): not caused by this revision`.

        `number` and `name` write the number of a regression and the name of a revision.
        """
        slow = self.slow_before
        known = [row.known for row in slow if row.known]
        since = {one.revision for one in known}
        said = f"{len(slow)} already slow"
        if len(known) == len(slow) and len(since) == 1:
            records = listed(map(number, sorted(one.regression for one in known)))
            said = f"{len(slow)} slow since {name(since.pop())} (regression{'s' * (len(known) > 1)} {records})"
        return f"{said}: {NOT_CAUSED_BY_IT}" if all(row.outcome is Outcome.STEADY for row in slow) else said


# What a report repeats of its run, and a row of its verdict.
_OF_RUN = (
    *("pull", "device", "suite", "state", "stage", "reason", "log", "sandboxed", "trusted", "repeated", "provisional"),
    *("awaits_second", "second_of"),
    *("worker", "attempt", "max_attempts", "created_at", "started_at", "finished_at"),
)
_OF_VERDICT = (
    *("provider", "case", "ratio", "low", "high", "trials", "rounds", "confirmed", "known_before"),
    *("p", "q", "smallest_change"),
)


@dataclass(frozen=True)
class RunContents:
    """What a run measured and decided: rows of the database, or values with their attributes."""

    measurements: Sequence[Measurement]
    verdicts: Sequence[VerdictRow]
    regressions: Sequence[RegressionRow]
    telemetry: Mapping[str, Any]
    policy: PolicyRow | None  # that made the verdicts


def report(
    run: Run,
    found: RunContents,
    *,
    policy: Written,
    address: str,
    forge: str = "",
    known: Mapping[Name, Known] | None = None,
    public: bool = False,
) -> Report:
    """Make the Report of a run, whose target, revision, recipe and stack must be loaded.

    Args:
        found: What it measured and decided, or the part of it that the reader needs.
        policy: The server's policy, under the recipe's.
        address: URL of the dashboard.
        forge: URL of the forge's pages.
        known: Regressions that were open when it was measured, by provider and case.
        public: Whether anybody may read it at `address`.
    """
    recipe = readable(run.recipe.text)
    in_force = _policy(found.policy, run, recipe, policy)
    rows = _rows(run, found, known or {}, in_force, f"{address}/runs/{run.id}")
    return Report(
        run_id=run.id,
        url=f"{address}/runs/{run.id}",
        target=run.target.name,
        forge=run.target.forge,
        sha=run.revision.sha,
        revision=run.revision.short,
        subject=run.revision.subject,
        author=run.revision.author,
        committed_at=run.revision.committed_at,
        baseline=short(run.baseline) if run.baseline else None,
        stack=run.stack.versions if run.stack else {},
        stack_digest=run.stack.digest if run.stack else None,
        telemetry=found.telemetry,
        policy=in_force,
        sota=(recipe.sota_on(run.device) if recipe else None) or "SOTA",
        rows=rows,
        unsupported=_unsupported(found.measurements, rows),
        ceilings=roofline.ceilings(found.telemetry),
        summaries=tuple(Summary.from_json(one) for one in run.summary or ()),
        policy_version=found.policy.digest[:10] if found.policy else None,
        purpose=run.purpose or Purpose.WATCH,
        bisection=run.bisection_id,
        baseline_sha=run.baseline,
        forge_url=f"{forge}/{run.target.forge}" if forge and run.target.forge else None,
        forge_kind=run.target.forge_kind,
        last_good=short(run.last_good) if run.last_good else None,
        pinned=short(run.pinned) if run.pinned else None,
        public=public,
        **{name: getattr(run, name) for name in _OF_RUN},
    )


def _policy(made: PolicyRow | None, run: Run, recipe: Recipe | None, server: Written) -> Policy:
    """The policy that made the verdicts; of a run without any the recipe's of today."""
    usual = recipe.policy_on(run.device, server) if recipe else Policy()
    try:
        return Policy.model_validate(made.values) if made else usual
    except ValidationError:  # written by another version of this program
        return usual


def readable(text: str) -> Recipe | None:
    """A stored recipe; None when it was written for another version of this program."""
    try:
        return parse(text)
    except BadInput:
        return None


def _rows(run: Run, found: RunContents, known: Mapping[Name, Known], policy: Policy, page: str) -> tuple[Row, ...]:
    measured = defaultdict[str, dict[Name, Measured]](dict)
    best_of = roofline.ceilings_by_case(found.telemetry)
    for m in found.measurements:
        measured[m.role][m.provider, m.case] = _measured(m, best_of(m.case))
    heads, parents, controls = measured[Role.HEAD], measured[Role.PARENT], measured[Role.CONTROL]
    best = {case: one for (_, case), one in measured[Role.SOTA].items()}
    decided = defaultdict[BaselineKind, dict[Name, VerdictRow]](dict)
    for verdict in found.verdicts:
        decided[verdict.baseline_kind][verdict.provider, verdict.case] = verdict
    sotas = decided[BaselineKind.SOTA]
    # Of two records of a case, what the pair itself found is the verdict's.
    pair_last = sorted(found.regressions, key=lambda one: (one.found_by is FoundBy.PAIR, -one.id))
    opened = {(one.provider, one.case): one for one in pair_last}

    def compared(kind: BaselineKind, *roles: Role) -> dict[Name, BaselineRow]:
        rows = {}
        for (provider, case), verdict in decided[kind].items():
            who = verdict.baseline or "" if kind is BaselineKind.BEST else provider
            sides = (measured[role].get((who, case)) for role in roles)
            rows[provider, case] = _baseline_row(verdict, next(filter(None, sides), None))
        return rows

    wrong_parent = compared(BaselineKind.WRONG_PARENT, Role.PARENT)
    last_good = compared(BaselineKind.LAST_GOOD, Role.LAST_GOOD)
    pinned = compared(BaselineKind.PINNED, Role.PINNED)
    best_baseline = compared(BaselineKind.BEST, Role.RIVAL, Role.SOTA)

    def row(verdict: VerdictRow) -> Row:
        name = verdict.provider, verdict.case
        sota, record = sotas.get(name), opened.get(name)
        return Row(
            outcome=Outcome(verdict.outcome),
            reason=of_verdict(verdict),
            instead=short(verdict.baseline) if verdict.baseline not in (None, run.baseline) else None,
            head=heads.get(name),
            parent=parents.get(name),
            control=controls.get(name),
            sota=_against_sota(sota, best.get(verdict.case)) if sota else None,
            quarantined=verdict.quarantined_by is not None,
            control_ratio=verdict.control,
            suspected=bool(verdict.suspected),
            doubt=Doubt(verdict.doubt) if verdict.doubt else None,
            cause=cause_of(verdict),
            regression=record.id if record else None,
            incident=record.incident_id if record else None,
            page=f"{page}?unfold=all#{row_id(*name)}",
            known=known.get(name),
            last_good=last_good.get(name),
            pinned=pinned.get(name),
            best=best_baseline.get(name),
            by_code=verdict.reason_code == ReasonCode.EQUAL_CODE,
            wrong_parent=wrong_parent.get(name),
            far_behind=_is_far_behind(verdict, sota, policy),
            **{name: getattr(verdict, name) for name in _OF_VERDICT},
        )

    return tuple(row(verdict) for verdict in decided[BaselineKind.PARENT].values())


def _is_far_behind(verdict: VerdictRow, sota: VerdictRow | None, policy: Policy) -> bool:
    """Whether a case that has only SOTA to be compared with is far behind it."""
    if verdict.outcome != Outcome.NEW or sota is None or not sota.behind_sota or sota.ratio is None:
        return False
    return sota.ratio > 1 + policy.at(verdict.case).far_behind_sota


def _measured(m: Measurement, ceilings: Mapping[str, float]) -> Measured:
    return Measured(
        m.contender,
        m.provider,
        m.state,
        m.reason,
        m.median,
        metric_of(m.case).unit,
        m.gb_s,
        m.trials,
        m.rounds,
        m.facts or {},
        m.case,
        ceilings,
    )


def _baseline_row(verdict: VerdictRow, measured: Measured | None) -> BaselineRow:
    return BaselineRow(
        baseline=short(verdict.baseline or verdict.baseline_kind),
        outcome=Outcome(verdict.outcome),
        ratio=verdict.ratio,
        low=verdict.low,
        high=verdict.high,
        reason=of_verdict(verdict),
        cause=cause_of(verdict),
        measured=measured,
        limit=(verdict.reason_args or {}).get("limit"),
    )


def _unsupported(measurements: Sequence[Measurement], rows: Sequence[Row]) -> tuple[Unsupported, ...]:
    judged = {(row.provider, row.case) for row in rows}  # what the baseline does and the head no longer: a failure
    return tuple(
        Unsupported(m.provider, m.case, m.reason or "it gave no reason")
        for m in measurements
        if m.role == Role.HEAD and m.state is CellState.UNSUPPORTED and (m.provider, m.case) not in judged
    )


def _against_sota(verdict: VerdictRow, best: Measured | None) -> AgainstSota:
    provider = best.provider if best else verdict.baseline or "SOTA"
    return AgainstSota(
        provider,
        verdict.ratio,
        verdict.low,
        verdict.high,
        verdict.behind_sota,
        of_verdict(verdict),
        best,
        cause_of(verdict),
        is_open=verdict.outcome == Outcome.INCONCLUSIVE,
    )


def _by_gap(row: Row) -> tuple[float, str, str]:
    return -((row.sota.ratio if row.sota else None) or 1.0), row.case, row.provider


def cases(n: int) -> str:
    """`1 case`, `2 cases`."""
    return f"{n} case{'s' * (n != 1)}"


def counted(outcome: Outcome, n: int) -> str:
    """`1 regression`, `2 wrong results`, `10 steady`."""
    return f"{n} {NOUNS[outcome][n != 1]}"
