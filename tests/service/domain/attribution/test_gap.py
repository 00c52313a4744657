"""Who moved against the best, as a table of stories: two mainline sessions, and the sentence that a person reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.attribution.causes import Cause, CauseCode, Kind
from service.domain.attribution.collect import GapSide, Shift, gap_cause
from service.reports.rows import CauseWords
from service.reports.words import of_cause

CASE = "rmsnorm.fwd.4096x4096.bf16"
OWN, QUACK = GapSide("norms", 100.0, {"sm_mhz": 1980}), GapSide("quack", 80.0, {"code": "q", "sm_mhz": 1980})
STEADY = Shift(CASE, "abc1234567", (OWN, OWN), (QUACK, QUACK), 0.01)


def ours(us: float, **facts: object) -> Shift:
    return replace(STEADY, own=(OWN, replace(OWN, took=us, facts={**OWN.facts, **facts})))


def theirs(us: float, **facts: object) -> Shift:
    return replace(STEADY, baseline=(QUACK, replace(QUACK, took=us, facts={**QUACK.facts, **facts})))


SPILLED = {"what": "the kernel now spills 50 registers at N=4096", "size": None, "also": [], "doubt": None}
SPILLS = Cause(Kind.CODE, CauseCode.EXPLAINED, {"slower": True, "confirmed": True} | SPILLED)
NOISE = Cause(Kind.NOISE, CauseCode.NOT_REPEATED, certain=False)
NEWER = {"quack": ("0.6.4", "0.6.5")}

NOTHING_MOVED = [
    STEADY,
    ours(100.9),
    replace(ours(106.0), baseline=theirs(84.8).baseline),  # the machine was slower for both
]
CERTAIN = [
    # -- this commit
    (
        replace(ours(108.0), confirmed=1.08, why=SPILLS),
        Kind.CODE,
        "this commit is 8 % slower than its baseline because the kernel now spills 50 registers at N=4096",
    ),
    (replace(ours(92.0), confirmed=0.92), Kind.CODE, "this commit is 8 % faster than its baseline"),
    (
        replace(ours(108.0), case=f"{CASE}.memory", confirmed=1.08),
        Kind.CODE,
        "this commit takes 8 % more memory than its baseline",
    ),
    # -- the baseline
    (
        replace(theirs(75.2), stack=NEWER),
        Kind.BASELINE,
        "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster",
    ),
    (
        replace(theirs(88.0), stack=NEWER),
        Kind.BASELINE,
        "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 10 % slower",
    ),
    (
        replace(theirs(75.2), stack=NEWER, confirmed=0.97),
        Kind.BASELINE,
        "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster",
    ),  # a commit that became faster is not why it is behind
    (
        replace(
            theirs(75.2),
            baseline=(GapSide("inductor", 80.0), GapSide("inductor", 75.2)),
            stack={"torch": ("2.11", "2.13")},
        ),
        Kind.BASELINE,
        "not your commit: torch 2.11 → 2.13 made the baseline 6 % faster",
    ),
    (
        replace(STEADY, baseline=(QUACK, GapSide("inductor", 70.0))),
        Kind.BASELINE,
        "not your commit: the best is inductor now, and was quack at abc1234567",
    ),
]
UNCERTAIN = [
    # -- this commit
    (
        replace(ours(108.0), confirmed=1.08, why=NOISE),
        Kind.NOISE,
        "this commit is 8 % slower than its baseline: probably noise: fresh trials did not repeat it",
    ),
    # -- the baseline
    (
        replace(theirs(75.2), stack={"torch": ("2.11.0", "2.13.0"), **NEWER}),
        Kind.BASELINE,
        "probably the stack, not your commit: quack became 6 % faster after torch 2.11.0 → 2.13.0 and Quack 0.6.4 "
        "→ 0.6.5; kernelwatch isolate finds out which of them did it",
    ),
    (
        replace(theirs(75.2), stack={"driver": ("570.1", "575.2")}),
        Kind.STACK,
        "probably the stack, not your commit: quack became 6 % faster after driver 570.1 → 575.2",
    ),
    (
        theirs(75.2, sm_mhz=2100),
        Kind.MACHINE,
        "probably the machine: quack became 6 % faster, and the SM clock was 6.1 % higher",
    ),
    (
        theirs(75.2),
        Kind.MACHINE,
        "probably the machine, not your commit: quack became 6 % faster with the same code and stack",
    ),
    (theirs(75.2, code="r"), Kind.BASELINE, "not your commit: quack became 6 % faster, and no stored data explains it"),
    # -- our own time, by nobody's commit
    (
        replace(ours(105.0), stack={"triton": ("3.6.0", "3.7.0")}),
        Kind.STACK,
        "probably the stack, not your commit: our own time became 5 % slower after Triton 3.6.0 → 3.7.0",
    ),
    (
        ours(105.0, sm_mhz=1880),
        Kind.MACHINE,
        "probably the machine: our own time became 5 % slower, and the SM clock was 5.1 % lower",
    ),
    (
        ours(105.0),
        Kind.UNKNOWN,
        "not certain: our own time became 5 % slower since abc1234567, and no single commit was shown to cause it",
    ),
    (
        replace(ours(100.9), baseline=theirs(79.3).baseline),
        Kind.UNKNOWN,
        "not certain: neither side moved enough to be the cause",
    ),
]
STORIES = [
    *((shift, None) for shift in NOTHING_MOVED),
    *((shift, CauseWords(kind, words)) for shift, kind, words in CERTAIN),
    *((shift, CauseWords(kind, words, certain=False)) for shift, kind, words in UNCERTAIN),
]


@pytest.mark.parametrize(
    ("shift", "told"), STORIES, ids=[(one[1].words if one[1] else "nothing")[:60] for one in STORIES]
)
def test_who_moved(shift: Shift, told: CauseWords | None):
    found = gap_cause(shift)
    assert (of_cause(found, shift.case) if found else None) == told


@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.5, 2), st.booleans())
def test_nothing_is_said_of_a_distance_that_stayed_and_our_commit_is_named_only_where_it_was_confirmed(
    own, their, moved, confirmed
):
    shift = replace(ours(100.0 * own), baseline=theirs(80.0 * their).baseline, confirmed=moved if confirmed else None)
    found = gap_cause(shift)
    assert (found is None) is (abs(own / their - 1) <= 0.01) or abs(abs(own / their - 1) - 0.01) < 1e-9
    if found and found.code is CauseCode.HEAD_MOVED:
        assert confirmed
        assert (moved > 1) is (own > their)
