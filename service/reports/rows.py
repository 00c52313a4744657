"""One case of a report, and two revisions side by side: verdicts, baselines and explanations.  Pure values."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import quote

from kernels.cases import Metric
from service.db.models import FactsCheck, Revision
from service.domain.attribution.causes import Kind
from service.domain.codefacts.comparison import differences, grown_errors, repeatability
from service.domain.codefacts.diff import moved_definition
from service.domain.codefacts.measured import Measured
from service.domain.codefacts.texts import SourceLines
from service.domain.metrics import amount, instead, metric_of, percent
from service.domain.states import BaselineKind, CellState, ComparisonMethod, Direction, Outcome, Repeatability
from service.domain.text import listed, one_line
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.samples import PairedRatio
from service.domain.verdicts.totals import slower_than_wrong

NOT_CAUSED_BY_IT = "not caused by this revision"


@dataclass(frozen=True)
class CauseWords:
    """A cause as people read it.  Where it begins with a direction ("slower because …"), `after` is what follows it."""

    kind: Kind
    words: str
    certain: bool = True
    after: str | None = None
    code: str | None = None  # a service.domain.attribution.causes.CauseCode; None where only its text is stored
    by: str | None = None  # a service.domain.attribution.explanations.By: what of the code explains it


@dataclass(frozen=True)
class AgainstSota:
    """The second flag, never mixed up with the first: how far this case is from the best known."""

    provider: str
    ratio: float | None
    low: float | None
    high: float | None
    behind: bool
    reason: str
    best: Measured | None
    cause: CauseWords | None = None  # of the gap: who moved
    is_open: bool = False  # perhaps behind: the session could neither show nor exclude it

    @property
    def summary(self) -> str:
        """Since when, and who moved."""
        return one_line("; ".join(filter(None, (self.reason.rstrip("."), self.cause.words if self.cause else ""))), 400)


@dataclass(frozen=True)
class BaselineRow:
    """The head against a baseline other than its parent: the last good, the pinned or the best baseline."""

    baseline: str  # short, for people: a commit, a release or a provider
    outcome: Outcome
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    cause: CauseWords | None
    measured: Measured | None
    limit: float | None = None  # what it was tested for, relative; None where that decided nothing

    @property
    def slower(self) -> bool:
        return self.outcome is Outcome.REGRESSION


@dataclass(frozen=True)
class Known:
    """A regression that was already open when a run was measured: its id, and the revision that introduced it."""

    regression: int
    revision: str  # short


@lru_cache(8192)  # a page asks for that of each of its rows several times
def row_id(provider: str, case: str) -> str:
    """The id of a row on the page of a run."""
    return quote(f"{case}~{provider}", safe="~.-_")


@dataclass(frozen=True)
class Row:
    """One case of one provider: its verdict, the times, and its gap to SOTA."""

    provider: str
    case: str
    outcome: Outcome
    ratio: float | None
    low: float | None
    high: float | None
    trials: int
    rounds: int
    confirmed: bool
    reason: str
    head: Measured | None
    parent: Measured | None
    control: Measured | None
    sota: AgainstSota | None
    instead: str | None = None  # short: what it was compared with, where the baseline of the run is broken
    known_before: bool = False  # the baseline does not compute this case either: no news, and not this revision's doing
    quarantined: bool = False  # its change raises no alarm, because it alarms without cause too often
    control_ratio: float | None = None  # the A/A control, paired as the verdict is: 1 where the machine is fair
    suspected: bool = False  # the first trials looked like a change
    p: float | None = None  # of the fresh trials where there are any, else of the first
    q: float | None = None  # p among the family of the run
    smallest_change: float | None = None  # the smallest change that matters at this case, relative
    doubt: Doubt | None = None  # what equal code of the session says against deciding it
    cause: CauseWords | None = None
    regression: int | None = None  # the record that this run opened for it
    incident: int | None = None  # of which event that is
    page: str = ""  # the address of its row on the page of the run
    known: Known | None = None  # the regression that was open at the baseline already
    last_good: BaselineRow | None = None  # where the baseline is slow already: the last revision that was not
    pinned: BaselineRow | None = None
    best: BaselineRow | None = None
    by_code: bool = False  # steady because its compiled code is the same, whatever its times show
    wrong_parent: BaselineRow | None = None  # times alone, where the head or its parent computes something else
    far_behind: bool = False  # new, and far behind SOTA

    def against(self, kind: BaselineKind) -> "Row | BaselineRow | AgainstSota | None":
        """What it is against a baseline: itself against the parent."""
        match kind:
            case BaselineKind.PARENT:
                return self
            case BaselineKind.WRONG_PARENT:
                return self.wrong_parent
            case BaselineKind.LAST_GOOD:
                return self.last_good
            case BaselineKind.PINNED:
                return self.pinned
            case BaselineKind.BEST:
                return self.best
            case BaselineKind.SOTA:
                return self.sota

    @property
    def correct_now(self) -> bool:
        """Whether the head is right where its parent was wrong."""
        return self.parent_is_wrong and self.head is not None and self.head.state is CellState.MEASURED

    @property
    def parent_is_wrong(self) -> bool:
        return self.parent is not None and self.parent.state is CellState.INVALID

    @property
    def slower_than_wrong(self) -> bool:
        """Whether it is, or seems to be, slower than its parent, whose results were wrong."""
        other = self.wrong_parent
        if other is None or not self.parent_is_wrong:
            return False
        return slower_than_wrong(other.outcome, other.ratio, other.limit)

    @property
    def against_wrong(self) -> str:
        """`the parent was wrong (dweight …) and took 223 µs; correct now, it takes 577 µs`; empty without its times."""
        why = f" ({one_line(self.parent.reason, 300)})" if self.parent and self.parent.reason else ""
        return self._against_wrong(why)

    @property
    def times_against_wrong(self) -> str:
        """The same without the reason, for a place that gives the reason itself."""
        return self._against_wrong("")

    def _against_wrong(self, why: str) -> str:
        sides = [self.parent, self.head]
        if self.wrong_parent is None or not all(side and side.timed for side in sides):
            return ""
        before, now = (amount(side.timed if side else None, self.metric) for side in sides)
        is_wrong = self.outcome is Outcome.INVALID
        was = f"the parent was {'wrong' if self.parent_is_wrong else 'correct'}"
        return f"{was}{why} and took {before}; {'wrong' if is_wrong else 'correct'} now, it takes {now}"

    @cached_property
    def less_exact(self) -> str:
        """`dweight is less exact: its error grew 1.4 times, to 2.7e-03`; empty where no error grew."""
        grown = grown_errors(self.head.facts, self.parent.facts, self.case) if self.head and self.parent else {}
        said = (
            f"{name} is less exact: its error grew {now / before:.1f} times, to {now:.1e}"
            for name, (before, now) in grown.items()
        )
        return "; ".join(said)

    @property
    def news(self) -> bool:
        """Whether it raises an alarm: not if it was so before, nor if it is quarantined."""
        return not (self.known_before or self.quarantined)

    @property
    def slow_before(self) -> BaselineRow | None:
        """The last good revision, where the head is slower than that and its baseline was so already."""
        return (
            self.last_good
            if self.last_good and self.last_good.slower and self.outcome is not Outcome.REGRESSION
            else None
        )

    def as_before(self, number: Callable[[int], str] = str, name: Callable[[str], str] = str) -> str:
        """`slow since 3f2a9c0d11 (regression 12): not caused by this revision`; empty where it is not.

        `number` and `name` write the number of a regression and the name of a revision.
        """
        known = self.known
        uncompared = known is not None and self.last_good is None and self.outcome is Outcome.STEADY
        if self.slow_before is None and not uncompared:
            return ""
        record = f"{name(known.revision)} (regression {number(known.regression)})" if known else ""
        since = f"slow since {record}" if known else "already slow"
        if uncompared:
            return f"{since}; not compared with its last good revision in this session"
        # If the pair is undecided or partly fixed, it is not known how much of it this revision causes.
        return f"{since}{': ' + NOT_CAUSED_BY_IT if self.outcome is Outcome.STEADY else ''}"

    @property
    def slower_than_pinned(self) -> bool:
        return self.pinned is not None and self.pinned.slower

    @property
    def because(self) -> str:
        """Its size and cause in one sentence: `10.2 % slower because the kernel now spills`."""
        if self.cause is None:
            return f"{self.change} ({listed(self.explained[:3])})" if self.explained else self.change
        return f"{self.change}{f' ({self.cause.words})' if self.cause.after is None else self.cause.after}"

    @property
    def behind(self) -> bool:
        return self.sota is not None and self.sota.behind

    @property
    def behind_is_open(self) -> bool:
        """Perhaps behind SOTA: the session could neither show nor exclude it."""
        return self.sota is not None and self.sota.is_open

    @property
    def metric(self) -> Metric:
        return metric_of(self.case)

    @property
    def key(self) -> str:
        return row_id(self.provider, self.case)

    @property
    def change(self) -> str:
        """`10.2 % slower`, `3.0 % less memory`, `3 kernels instead of 2`."""
        counts = instead(self.head.median, self.parent.median, self.metric) if self.head and self.parent else ""
        return counts or percent(self.ratio, self.metric)

    @property
    def explained(self) -> tuple[str, ...]:
        """What the compiler says about the change: "registers 40 → 64"; empty where it says nothing."""
        return differences(self.head.facts, self.parent.facts) if self.head and self.parent else ()

    @property
    def source(self) -> SourceLines | None:
        """Where the revision defines the code that differs from its baseline's; None where nobody knows."""
        return moved_definition(self.head.facts, self.parent.facts if self.parent else {}) if self.head else None

    @cached_property
    def repeatability(self) -> Repeatability | None:
        """Whether the head lost or gained it against its baseline.  It raises an alarm whatever the head's speed."""
        return repeatability(self.head.facts, self.parent.facts) if self.head and self.parent else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that a reader of the head's figures needs, besides the verdict."""
        return self.head.notes if self.head else ()

    @property
    def of_ceiling(self) -> str:
        """The head's share of the device's ceiling; empty if unknown."""
        return self.head.speed.of_ceiling if self.head else ""

    @property
    def summary(self) -> str:
        """Its cause and reason, and what a reader of the head's figures has to know: on one bounded line."""
        return _joined(self.cause_words, one_line(self.reason), self.context)

    @property
    def cause_words(self) -> str:
        """Its cause on one bounded line; empty where none is known."""
        return one_line(self.cause.words) if self.cause else ""

    @property
    def context(self) -> str:
        """What a reader of its figures has to know: what it was compared with, what was so before, and notes."""
        leak = one_line(self.pinned.reason) if self.pinned and self.slower_than_pinned else ""
        other = (
            f"compared with {self.instead}, since the run's baseline is wrong or failed here" if self.instead else ""
        )
        return _joined(other, self.as_before(), self.times_against_wrong, leak, self.less_exact, *self.notes)


def _joined(*parts: str) -> str:
    return one_line("; ".join(part for part in parts if part), 500)


@dataclass(frozen=True)
class WithoutSota:
    """Cases with a time of their own that SOTA has no time for, all for one reason."""

    reason: str
    cases: int


@dataclass(frozen=True)
class Unsupported:
    """A case that a provider of the head says it does not support: neither measured nor judged."""

    provider: str
    case: str
    reason: str


Facts = Mapping[str, Any]


@dataclass(frozen=True)
class FactsSide:
    """One contender at one case, as one of two revisions."""

    run_id: int
    state: CellState
    facts: Facts


@dataclass(frozen=True)
class FactsPair:
    """What is known of both revisions at a case of a provider on a device; a side is None where it was not measured."""

    device: str
    provider: str
    case: str
    base: FactsSide | None
    head: FactsSide | None

    @property
    def same_code(self) -> bool | None:
        """None where the code of a side is not known."""
        codes = [side.facts.get("code") for side in (self.base, self.head) if side]
        return codes[0] == codes[1] if len(codes) == 2 and all(codes) else None

    @property
    def differences(self) -> tuple[str, ...]:
        return differences(self.head.facts, self.base.facts) if self.head and self.base else ()

    @property
    def repeatability(self) -> Repeatability | None:
        return repeatability(self.head.facts, self.base.facts) if self.head and self.base else None

    @property
    def changed(self) -> bool:
        """Whether anything is known to differ, or a side is missing."""
        return None in (self.base, self.head) or any(one != "same code" for one in self.differences)


@dataclass(frozen=True)
class FactsDiff:
    """Two revisions without their times."""

    base: Revision
    head: Revision
    check: FactsCheck | None  # of exactly these two
    pairs: Sequence[FactsPair]
    stack_changes: Mapping[str, tuple[str, ...]]  # by device, where the two were measured on different stacks

    @property
    def counts(self) -> Counter[str]:
        """Pairs by what is known of their code: same, changed or unknown."""
        names = {True: "same", False: "changed", None: "unknown"}
        return Counter(names[pair.same_code] for pair in self.pairs)


@dataclass(frozen=True)
class ComparedCase:
    """Two revisions at one case of a provider; no ratio where they were not paired."""

    provider: str
    case: str
    method: ComparisonMethod
    direction: Direction
    base_median: float | None
    head_median: float | None
    ratio: PairedRatio | None
    runs: tuple[int, ...]  # whose sessions it rests on
    via: str | None = None  # the third revision or provider
    outcome: str | None = None  # the stored verdict, of a pair
    reason: str | None = None  # why it is not paired


@dataclass(frozen=True)
class ComparedSide:
    """One of the two revisions, with the run whose medians are shown."""

    revision: Revision
    pull: int | None
    run_id: int
    worker: str | None
    recipe_id: int


@dataclass(frozen=True)
class RevisionsCompared:
    """Two revisions on one device."""

    device: str
    base: ComparedSide
    head: ComparedSide
    stack_changes: tuple[str, ...]
    cases: Sequence[ComparedCase]
