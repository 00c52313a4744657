"""The sentences for the codes of verdicts: each code has one, in the terms of the case's metric."""

import pytest

from service.db.models import ChangePoint, VerdictRow
from service.domain.states import PointReason as P
from service.domain.stats import counts
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.reasons import ReasonCode as R
from service.reports.words import _POINT_REASONS, of_point, of_point_reason, of_reason, of_verdict

CASE = "rmsnorm.fwd.4096x1024.bf16"
SENTENCES = [
    (reason(R.NO_BASELINE), "there is no earlier revision to compare with"),
    (reason(R.NO_BASELINE, note="1.0 does not build"), "1.0 does not build"),
    (reason(R.BASELINE_UNFIT, state="invalid", said="y is wrong"), "the baseline is invalid here: y is wrong"),
    (reason(R.BASELINE_UNFIT, state="failed", said=None), "the baseline is failed here: no reason given"),
    (reason(R.REMOVED, last="c0"), "no longer in the recipe; last measured at c0"),
    (reason(R.INVALID, said="y is wrong"), "y is wrong"),
    (reason(R.FAILED, said="out of memory"), "out of memory"),
    (reason(R.UNSUPPORTED, said="too wide"), "no longer supported, although the baseline supports it: too wide"),
    (reason(R.WITHIN, smallest_change=0.005), "within 0.5% of its baseline"),
    (
        reason(R.NOT_REPEATED, smallest_change=0.02, trials=3),
        "within 2% of its baseline: 3 fresh trials did not repeat the suspected change",
    ),
    (
        reason(R.EQUAL_CODE, trials=3),
        "its compiled kernels and their launches are the same as its baseline's, though the times of 3 trials vary"
        " too much to show it",
    ),
    (
        reason(R.EQUAL_CODE, trials=1),
        "its compiled kernels and their launches are the same as its baseline's, and one trial showed no change",
    ),
    (reason(R.AS_BEFORE, run=7, baseline="quack"), "as run 7 compared the same code with quack"),
    (
        reason(R.CONFIRMED, ratio=1.0512, trials=3, control=None),
        "5.1% slower than its baseline, confirmed by 3 fresh trials",
    ),
    (
        reason(R.CONFIRMED, ratio=0.9, trials=5, control="compiled"),
        "10.0% faster than its baseline, confirmed by 5 fresh trials, with the A/A control of compiled",
    ),
    (
        reason(R.CONFIRMED, ratio=2.5, trials=3, control=False),
        "2.5 times as slow as its baseline, confirmed by 3 fresh trials, without an A/A control at this case",
    ),
    (reason(R.MACHINE), "the machine: most cases of this session moved this way, and equal code moved with them"),
    (
        reason(R.CONTROL_OFF, size=0.019, smallest_change=0.02),
        "the A/A control is off: a second copy of the baseline differs from it by +1.90% here, "
        "too much to decide a change of 2%",
    ),
    (
        reason(R.COPIES_DIFFER, spread=0.011, smallest_change=0.02),
        "copies of the baseline differ too much (1.10%) to decide a change of 2% here; more trials do not help",
    ),
    (
        reason(R.COPIES_DIFFER, spread=None, smallest_change=0.02),
        "copies of the baseline differ too much to decide a change of 2% here; more trials do not help",
    ),
    (
        reason(R.COPIES_DIFFERED, spread=0.011, smallest_change=0.02),
        "copies of the baseline differed too much in earlier sessions (1.10%) to decide a change of 2% here; "
        "more trials do not help",
    ),
    (
        reason(R.BUILDS_DIFFERED, spread=0.011, smallest_change=0.02),
        "two builds of one source differed too much in earlier calibrations (1.10%) to decide a change of 2% here; "
        "more trials do not help",
    ),
    (reason(R.SESSION_ENDED, suspected=False), "the session ended before more trials could decide it"),
    (
        reason(R.SESSION_ENDED, suspected=True),
        "it looks like a change, but the session ended before fresh trials could confirm it",
    ),
    (
        reason(R.ROUNDS_LOST, suspected=False, lost=8, trials=8),
        "a throttled device spoiled the rounds of 8 of 8 trials",
    ),
    (
        reason(R.ROUNDS_LOST, suspected=True, lost=7, trials=8),
        "it looks like a change, but a throttled device spoiled the rounds of 7 of 8 trials",
    ),
    (reason(R.TOO_WIDE, trials=8), "the confidence interval is still too wide after 8 trials"),
    (reason(R.UNCONFIRMED), "it looked like a change, but fresh trials did not confirm it"),
    (
        reason(R.SAME_CODE),
        "suspect the machine, not the code: its compiled kernels and their launches are the same as its baseline's",
    ),
    (reason(R.QUARANTINED, why="9 of 60 copies differed"), "quarantined: 9 of 60 copies differed"),
    (
        reason(R.BASELINE_UNFIT, baseline="quack", state="unsupported", said="no CUDA"),
        "quack is unsupported here: no CUDA",
    ),
    (reason(R.BASELINE_ABSENT, baseline="v1.2"), "v1.2 was not measured in this session"),
    (reason(R.NO_TIMES), "no baseline has times for this case"),
    (reason(R.NO_TIMES, baseline="quack"), "quack has no times for this case"),
    (reason(R.COUNTED, now=3, before=2, smallest=1), "3 kernels instead of 2"),
    (reason(R.COUNTED, now=1, before=0, smallest=1), "1 kernel instead of 0"),
    (reason(R.COUNTED, now=2, before=2, smallest=1), "2 kernels, like its baseline"),
    (reason(R.COUNTED, now=0, before=0, smallest=1, baseline="quack"), "0 kernels, like quack"),
    (reason(R.COUNTED, now=3, before=1, smallest=1, baseline="quack"), "3 kernels instead of 1 of quack"),
    (
        reason(R.COUNTED, now=3, before=2, smallest=2),
        "3 kernels instead of 2, less than the smallest change that matters",
    ),
    (
        reason(R.COUNTS_VARY, now=[2, 3], before=[2]),
        "its trials disagree: 2 or 3 kernels, and 2 of its baseline; counts must not vary",
    ),
    (reason(R.CHANGED, ratio=1.05, baseline="v1.2", limit=0.03), "5.0% slower than v1.2"),
    (reason(R.CHANGED, ratio=0.9, baseline="v1.2", limit=0.03), "10.0% faster than v1.2"),
    (reason(R.NOT_SLOWER, limit=0.03, baseline="v1.2"), "not more than 3% slower than v1.2"),
    (
        reason(R.UNDECIDED, limit=0.03, baseline="v1.2"),
        "this session could not decide whether it is more than 3% slower than v1.2",
    ),
    (reason(R.TAKES, ratio=1.2, baseline="quack", faster=False), "takes 1.20 times as long as quack"),
    (reason(R.TAKES, ratio=0.8, baseline="quack", faster=True), "1.25 times as fast as quack"),
    (reason(R.WITHIN_LIMIT, limit=0.05, baseline="quack"), "within 5% of quack"),
    (reason(R.NOT_CLEARLY_BEHIND, baseline="quack"), "not clearly behind quack"),
    (
        reason(R.PERHAPS_BEHIND, baseline="quack", low=0.98, high=1.4),
        "perhaps behind quack: its interval is 0.98 to 1.40 times",
    ),
    (
        reason(R.BEHIND_SINCE, baseline="quack", since="c1", first=False, then=1.2, now=1.5, changed=True),
        "behind quack since c1; the gap grew from 1.20 to 1.50 times",
    ),
    (
        reason(R.BEHIND_OPEN, baseline="quack", since="c0", then=2.5, at="c0", now=1.1),
        "behind quack since c0, 2.50 times at c0; this session could not decide whether it still is (1.10 times)",
    ),
]


@pytest.mark.parametrize(("why", "sentence"), SENTENCES)
def test_a_reason_is_one_clause(why: Reason, sentence: str) -> None:
    counted = why.code in (R.COUNTED, R.COUNTS_VARY)
    assert of_reason(why, f"{CASE}.kernels" if counted else CASE) == sentence


def test_every_code_has_a_sentence() -> None:
    assert {why.code for why, _ in SENTENCES} == set(ReasonCode)


@pytest.mark.parametrize(
    ("ratio", "begins"), [(1.25, "25.0% more memory than its baseline"), (2.0, "2.0 times as much memory as its")]
)
def test_a_change_of_memory_is_not_said_to_be_one_of_time(ratio: float, begins: str) -> None:
    why = reason(R.CONFIRMED, ratio=ratio, trials=3, control=None)
    assert of_reason(why, f"{CASE}.memory").startswith(begins)


def test_the_gap_of_a_count_is_a_number() -> None:
    then, now = counts.ratio(1), counts.ratio(3)
    grew = reason(R.BEHIND_SINCE, baseline="quack", since="c1", first=False, then=then, now=now, changed=True)
    assert of_reason(grew, f"{CASE}.kernels") == (
        "behind quack since c1; the gap grew from 1 more kernel to 3 more kernels"
    )


def test_what_was_so_before_says_so() -> None:
    wrong = reason(R.INVALID, said="y is wrong")
    assert of_reason(wrong, CASE, known_before=True) == "already invalid before this revision: y is wrong"


def test_a_row_without_a_code_shows_its_own_text() -> None:
    assert of_verdict(VerdictRow(case=CASE, reason="within 2% of its parent")) == "within 2% of its parent"


def test_a_row_of_a_newer_version_shows_its_code() -> None:
    assert of_verdict(VerdictRow(case=CASE, reason_code="cosmic_rays", reason_args={})) == "cosmic rays"


def test_a_stored_row_has_the_sentence_of_its_code() -> None:
    row = VerdictRow(case=CASE, reason_code="failed", reason_args={"said": "out of memory"}, known_before=True)
    assert of_verdict(row) == "already failed before this revision: out of memory"


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"revisions": 64}, "not known: p 2e-09 from 64 revisions"),
        ({"revisions": None}, ""),
        (
            {"revisions": 80, "course": [{"revision": "a" * 40, "ratio": 1.02}, {"revision": "b" * 40, "ratio": 1.05}]},
            "a leak: 2% at aaaaaaaaaa and 5% at bbbbbbbbbb",
        ),
    ],
)
def test_a_change_point_shows_its_evidence(evidence, said):
    assert of_point(ChangePoint(p=2e-9, **evidence)) == said


@pytest.mark.parametrize(
    ("code", "args", "said"),
    [
        (P.BASELINE, {"ratio": 0.92}, "the baseline moved, not this: SOTA is 8.0 % faster from here on"),
        (P.BASELINE, {"ratio": 1.05}, "the baseline moved, not this: SOTA is 5.0 % slower from here on"),
        (P.SAME_CODE, {}, "the machine: the code did not change, and no other case moved"),
        (P.LOST, {}, "it is not found any more: the level changes at another revision next to it"),
        (P.PART, {"leak": 7}, "a part of the leak of change point 7"),
        (
            P.CONTRADICTED,
            {"ratio": 0.9999, "low": 0.996, "high": 1.008, "p": 2.2e-4, "revisions": 46, "reported": 1.031},
            "46 revisions show +0.0 % here (-0.4 % to +0.8 %), and not +3.1 %: p 0.0002 of half of that",
        ),
        (
            P.NOT_REPEATED,
            {"bisection": 3, "sessions": 1},
            "1 new session of bisection 3 did not repeat it: the machine, not the code",
        ),
        (
            P.NOT_REPEATED,
            {"bisection": 3, "sessions": 2},
            "2 new sessions of bisection 3 did not repeat it: the machine, not the code",
        ),
        (P.REGRESSION, {"regression": 4}, "regression 4"),
        (P.REGRESSION, {"regression": 4, "bisection": 3}, "regression 4, by bisection 3"),
        (P.DISMISSED, {"regression": 4}, "regression 4, which was dismissed"),
        (P.DISMISSED, {"regression": 4, "why": "noise"}, "regression 4, which was dismissed: noise"),
        (P.IMPROVEMENT, {"run": 9}, "improvement of run 9"),
        (P.HELD, {"revisions": 30}, "faster, and held for more than 30 measured revisions"),
        (P.MACHINE, {"targets": ["a", "b", "c"]}, "the machine: a, b and c changed within the same hours"),
        (P.REWRITTEN, {}, "the mainline was rewritten without its revision"),
        (P.BISECTION, {"bisection": 3}, "bisection 3"),
        (P.INCONCLUSIVE, {"bisection": 3, "said": "stopped"}, "bisection 3 was inconclusive: stopped"),
        (P.NOT_BISECTABLE, {"said": "no such device"}, "cannot be bisected: no such device"),
        ("cosmic_rays", {}, "cosmic rays"),  # of a newer version
        (P.TEXT, {"text": "its own text"}, "its own text"),  # of an older one
        (P.NOT_REPEATED, {"text": "its own text"}, "its own text"),
        (P.NOT_REPEATED, None, "not repeated"),
        (None, None, None),
    ],
)
def test_the_reason_of_a_change_point_is_made_of_its_code(code, args, said):
    assert of_point_reason(ChangePoint(reason_code=code, reason_args=args)) == said


def test_every_reason_of_a_change_point_has_a_sentence():
    assert set(_POINT_REASONS) == set(P)
