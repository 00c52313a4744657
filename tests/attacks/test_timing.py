"""Wrong or slow kernels that try to measure as fast, in real sandboxed contenders on the CPU."""

import sys
from pathlib import Path

import pytest

from kernels.arena.clock_audit import MAX_PASS
from kernels.cases import Case
from tests import needs
from tests.attacks import cheats
from tests.attacks.timing import CASE, attack
from workers.machine import environments
from workers.sandbox import freezing, sandbox

WALL = "truth of timing"
FACTOR = 1.5  # on a shared host, equal code varies by less


@pytest.fixture(autouse=True)
def stack(state: Path) -> None:
    if sandbox.self_test() is not None:
        needs.skip("bubblewrap")
    if freezing.group_for(None, leaves := freezing.ExitStack()) is None:
        needs.skip("root")
    leaves.close()
    environments.adopt_stack("host", Path(sys.executable), [])


@pytest.mark.parametrize("module", [cheats.HONEST, cheats.SLOW], ids=["honest", "slow"])
@pytest.mark.attack
def test_the_honest_pass(module, tmp_path, outcome):
    seen = attack(module, tmp_path)
    held = seen.state == "measured" and seen.others == "measured, measured"
    outcome(
        WALL,
        "none: an honest kernel" + ", twice as slow" * (module is cheats.SLOW),
        held=held,
        seen=seen,
        goal="measured",
    )


FORGED = {
    "CLAIMS_HALF": "the server's answers say half of the time",
    "CLAIMS_MORE_CALLS": "the server's answers say four times the calls",
    "ONE_HONEST_CALL": "the server makes one pass in a turn and claims many",
    "WORKS_NOT_AT_ALL": "Server.turn and Server.check replaced, nothing computed",
    "SLOW_CLOCK": "the clock of the server replaced by a slower one",
    "PIPE": "forged lines on the driver's pipe",
    "HALF_WHEN_TIMED": "half of the rows when `turn` is on the stack",
    "CACHES_WHEN_TIMED": "outputs kept by address when `turn` is on the stack",
    "CACHES_IN_A_TURN": "outputs kept by content within a turn",
    "CHILD_COMPUTES": "a child computes half of the rows on another core",
    "WRITES_AFTER_THE_ANSWER": "a thread writes the outputs after the answer",
    "LIES_ABOUT_ADDRESSES": "a copy instead of the inputs for the driver to write to",
    "ADDRESSES_OF_NOTHING": "outputs at an address that is not mapped",
    "NO_ADDRESSES": "no addresses at all",
    "WRONG_IN_ROWS_WHEN_TIMED": "one column left out when `turn` is on the stack",
    "LOW_PRECISION_WHEN_TIMED": "bf16 instead of fp32 when `turn` is on the stack",
    "WRITES_INPUTS_WHEN_TIMED": "writes into its inputs when `turn` is on the stack",
    "THREADS_BURN": "threads that stay and use another core",
}


@pytest.mark.attack
@pytest.mark.parametrize("name", FORGED)
def test_a_wrong_kernel_is_never_fast(name, tmp_path, outcome):
    # A pass over the inputs must be long enough to bound the number of calls.
    case = Case.parse("rmsnorm.fwd.4096x2048.fp32") if name == "CLAIMS_MORE_CALLS" else CASE
    seen = attack(getattr(cheats, name), tmp_path, case=case)
    held = seen.state in ("invalid", "failed") or (seen.ratio is not None and seen.ratio > 1 / 1.1)
    outcome(WALL, FORGED[name], held=held, seen=seen, goal="invalid, or not faster")


GAIN = MAX_PASS  # of a kernel that computes less than is counted
UNCOUNTED = {
    "LAZY_UNTIL_ENABLE": "outputs computed once the collector is enabled again",
    "ONE_RESULT_IN_A_TURN": "one result of each input kept for a turn",
    "KEPT_BY_THE_FIRST_NUMBER": "one result kept until the first number of its input changes",
    "EVERY_SECOND_IS_A_COPY": "a copy of the result at every second call",
    "EVERY_THIRD_IS_MISSING": "every third call never computed",
    "CLOCK_AT_THREE_QUARTERS": "the clock of the process runs at three quarters",
}


@pytest.mark.attack
@pytest.mark.parametrize("case", ["rmsnorm.fwd.8x1024.fp32", "rmsnorm.fwd.256x1024.fp32"])
@pytest.mark.parametrize("name", UNCOUNTED)
def test_every_call_of_a_short_case_counts(name, case, tmp_path, outcome):
    seen = attack(getattr(cheats, name), tmp_path, case=Case.parse(case))
    # next to the faster of parent and control, because other programs may slow one of them
    against = min(1.0, seen.control or 1.0)
    held = seen.state in ("invalid", "failed") or (seen.ratio is not None and seen.ratio / against > 1 / GAIN)
    outcome(
        WALL,
        f"{UNCOUNTED[name]} ({case.split('.')[2]})",
        held=held,
        seen=seen,
        goal="invalid, or at most twice as fast",
    )


BURNING = {
    "CHILDREN_BURN": "children use both cores all the time",
    "CHILDREN_REST_IN_OWN_TURNS": "children rest in its turns, use both cores in those of others; twice as slow",
    "DAEMONS_BURN": "daemons that left their parent use both cores",
    "TIMERS_WAKE_CHILDREN": "timers send SIGCONT to stopped children",
}


@pytest.mark.attack
@pytest.mark.parametrize("name", BURNING)
def test_others_are_not_slowed(name, tmp_path, outcome):
    """A head that is twice as slow must not come near its parent, because its children slow that down."""
    seen = attack(getattr(cheats, name), tmp_path)
    least = 1.5 if name == "CHILDREN_REST_IN_OWN_TURNS" else 1 / 1.1
    held = seen.state == "invalid" or (seen.ratio is not None and seen.ratio > least)
    outcome(WALL, BURNING[name], held=held, seen=seen, goal=f"invalid, or at least {least:.1f} of its parent's time")


@pytest.mark.attack
def test_stopped_children_that_wake_are_seen(tmp_path, outcome, monkeypatch):
    """Without a control group."""
    monkeypatch.setattr(freezing, "group_for", lambda *_: None)
    seen = attack(cheats.TIMERS_WAKE_CHILDREN, tmp_path)
    held = seen.state != "measured" and "measured" in seen.others
    outcome(WALL, "timers send SIGCONT to stopped children, no control group", held=held, seen=seen, goal="invalid")
