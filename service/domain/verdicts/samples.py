"""The input of a verdict: the samples of one case of one provider in a run and those of its baseline.  Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from service.domain.states import Outcome, Rounds
from service.domain.stats import counts
from service.domain.stats.estimates import trial_effects
from service.domain.verdicts.reasons import Quarantined, Reason

Name = tuple[str, str]  # provider and case


@dataclass(frozen=True)
class Pairs:
    """Candidate and baseline, trial by trial and round by round, in the unit of their metric."""

    candidate: tuple[Rounds, ...] = ()
    baseline: tuple[Rounds, ...] = ()
    counts: bool = False  # the metric counts things

    def made(self, most: int | None = None) -> list[float | None]:
        """The log of candidate over baseline for each trial that was made, or for the first `most` of them.

        None for a trial that lost all its rounds.
        """
        trials = self.trials[:most]
        return [counts.trial_effect(*trial) for trial in trials] if self.counts else trial_effects(trials)

    @property
    def trials(self) -> list[tuple[Rounds, Rounds]]:
        """Candidate and baseline in each trial that was made."""
        return [(mine, theirs) for mine, theirs in zip(self.candidate, self.baseline, strict=False) if mine]

    def effects(self) -> list[float]:
        """The effects of the trials that did not lose all their rounds."""
        return [effect for effect in self.made() if effect is not None]

    @property
    def rounds(self) -> int:
        return sum(len(rounds) for rounds in self.candidate)


def made(many: Sequence[Pairs]) -> list[list[float | None]]:
    """`Pairs.made` for many pairs, none of which are counts, in one call, which is faster."""
    trials = [one.trials for one in many]
    effects = iter(trial_effects([trial for some in trials for trial in some]))
    return [list(islice(effects, len(some))) for some in trials]


@dataclass(frozen=True)
class Trouble:
    """The head is invalid or failed at a case; `known_before`: so was a revision before it."""

    outcome: Outcome
    reason: Reason
    known_before: bool = False


@dataclass(frozen=True)
class Cell:
    """Everything that decides the verdict of one case of one provider in one run."""

    provider: str
    case: str
    screened: Pairs = Pairs()
    confirmed: Pairs = Pairs()  # trials of the confirmation
    control: Pairs = Pairs()  # the baseline against a second copy of itself
    borrowed: str | None = None  # the provider whose control it is, if this one has none
    trouble: Trouble | None = None  # why the head has no times here, where it has none
    baseline_trouble: Reason | None = None  # why the baseline has no times here, where it has none
    same_code: bool = False  # facts say that head and parent compiled to the same code
    quarantined: Quarantined | None = None  # why this case raises no alarm

    @property
    def name(self) -> Name:
        return self.provider, self.case

    @property
    def comparable(self) -> bool:
        """Did both the head and the baseline produce times from correct results?"""
        return not (self.trouble or self.baseline_trouble) and bool(self.screened.baseline)
