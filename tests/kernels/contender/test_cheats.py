"""Cheats are detected.  Each cheat runs in a real contender process."""

import re
import time
from pathlib import Path

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender, Pace, run_trial
from kernels.cases import Case, Role

from .cheats import by_rows, tampering

CHEATS = str(Path(__file__).with_name("cheats"))


def provider(module, *directions):
    return protocol.targets_own("cheat", {f"rmsnorm.{one}": f"{module}:{two}ward" for one, two in directions})


FORWARD, BACKWARD = ("fwd", "for"), ("bwd", "back")


@pytest.fixture(scope="module")
def channel(open_contender):
    return open_contender(PYTHONPATH=CHEATS)


@pytest.fixture
def played(channel):
    """(state, reason) of a cheat: prepared, timed and checked as by the arena."""

    def play(module, rows, *, thorough=True, cols=512):
        if getattr(channel, "plays", None) != module:
            assert channel.ask(protocol.start(provider(module, FORWARD), "cpu", 1, None), 120)["ready"]
            channel.plays = module
        case = Case.parse(f"rmsnorm.fwd.{rows}x{cols}.fp32")
        answer = prepared = channel.ask(protocol.prepare(case, 7, thorough=thorough), 60)
        if answer.get("state") == "measured":
            for _ in range(2):
                assert len(channel.ask(protocol.turn(1, 11), 60)["samples"]) == 11
            answer = channel.ask(protocol.CHECK, 60)
        channel.ask(protocol.FREE, 60)
        return answer["state"], answer["reason"] or "", prepared

    return play


@pytest.mark.parametrize("thorough", [True, False])
def test_the_honest_pass(played, thorough):
    state, reason, prepared = played("by_rows", by_rows.ROWS["honest"], thorough=thorough)

    assert (state, reason) == ("measured", "")
    assert bool(prepared["facts"]) is thorough
    steps = {"bind", "inputs", "clock"} | ({"facts", "oracle", "repeat"} if thorough else set())
    assert prepared["spent"].keys() == steps


ALWAYS = [
    ("keeps_by_pointer", "after the timing, with other numbers in its inputs: y is wrong by"),
    ("writes_into_inputs", "changed its input x"),
    ("returns_an_input", "its input x"),
    ("reuses_a_buffer", "y shares memory with the y that an earlier call returned"),
    ("finishes_in_the_next_call", "y (is wrong|has)"),
    ("works_in_a_thread", "worked in the background: "),
]


@pytest.mark.parametrize(("cheat", "complaint"), ALWAYS)
@pytest.mark.parametrize("thorough", [True, False])
def test_caught_in_every_trial(played, cheat, complaint, thorough):
    state, reason, _ = played("by_rows", by_rows.ROWS[cheat], thorough=thorough)

    assert state == "invalid", reason
    assert re.search(complaint, reason)


@pytest.mark.parametrize(
    ("cheat", "complaint"),
    [
        ("keeps_by_content", "does less on numbers it has seen before: "),
        ("skips_new", "y "),
    ],
)
def test_right_at_every_check_and_yet_caught(played, cheat, complaint):
    state, reason, _ = played("by_rows", by_rows.ROWS[cheat])

    assert state == "invalid"
    assert complaint in reason


def test_varying_bits_are_a_fact_and_not_an_error(played):
    state, _, prepared = played("by_rows", by_rows.ROWS["differs"])

    assert state == "measured"
    assert prepared["facts"]["repeatable"] is False
    assert prepared["facts"]["distinct"] > 1


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("replaced", ["comparing", "reading_numbers", "the_oracle", "copying"])
def test_replaced_checks_are_detected(played, replaced, thorough):
    state, reason, _ = played("tampering", tampering.ROWS[replaced], thorough=thorough)

    assert state == "invalid", reason
    assert reason.startswith(
        ("the checks were tampered with: ", "after the timing, with other numbers in its inputs: ")
    )


@pytest.mark.parametrize("replaced", ["nothing", "comparing", "reading_numbers", "the_oracle", "copying"])
def test_replaced_checks_of_a_block_are_detected(open_contender, replaced):
    """Each in a process of its own: what it replaces is torch's."""
    channel = open_contender(PYTHONPATH=CHEATS)
    own = protocol.targets_own("cheat", {"rmsnorm.fwdbwd": "tampering:norm"})
    assert channel.ask(protocol.start(own, "cpu", 1, None), 120)["ready"]
    case = Case.parse(f"rmsnorm.fwdbwd.{tampering.ROWS[replaced]}x128.fp32.block")

    answer = channel.ask(protocol.prepare(case, 7), 60)
    if answer["state"] == "measured":
        channel.ask(protocol.turn(0, 1), 60)
        answer = channel.ask(protocol.CHECK, 60)
    channel.close()

    if replaced in ("nothing", "comparing"):  # torch.equal was taken before it came
        assert (answer["state"], answer["reason"]) == ("measured", None)
    else:
        assert answer["state"] == "invalid", answer
        assert answer["reason"].startswith("the checks were tampered with: ")


@pytest.mark.parametrize("harmless", ["nothing", "the_garbage_collector"])
def test_functions_referenced_before_cannot_be_replaced(played, harmless):
    assert played("tampering", tampering.ROWS[harmless])[:2] == ("measured", "")


@pytest.mark.parametrize("thorough", [True, False])
def test_outputs_finished_later_are_wrong(played, thorough):
    """The last of those in the first process: its threads are busy for a while."""
    state, reason, _ = played("by_rows", by_rows.ROWS["finishes_in_the_background"], thorough=thorough)

    assert state == "invalid"
    assert re.search("^y |worked in the background: |^after the timing, with other numbers in its inputs: y ", reason)


def test_a_timer_of_its_own_gains_nothing(open_contender):
    channel = open_contender(PYTHONPATH=CHEATS)
    assert channel.ask(protocol.start(provider("timer", FORWARD), "cpu", 1, None), 120)["ready"]
    assert channel.ask(protocol.prepare(Case.parse("rmsnorm.fwd.256x512.fp32"), 7), 60)["state"] == "measured"
    channel.ask(protocol.turn(0, 1), 60)

    began = time.perf_counter()
    turn = channel.ask(protocol.turn(0, 20), 60)
    waited_s = time.perf_counter() - began

    assert 0.3 * waited_s < sum(turn["samples"]) * turn["calls"] / 1e6 < waited_s


def test_a_manipulated_clock_disagrees_with_the_driver(open_contender):
    cheat = Contender("head", Role.HEAD, provider("timer", BACKWARD), lambda: open_contender(PYTHONPATH=CHEATS))
    honest = Contender("sota", Role.SOTA, protocol.built_in("eager"), open_contender)
    case = Case.parse("rmsnorm.bwd.256x512.fp32")
    pace = Pace(rounds=2, warm=0, timed=10, start_limit_s=120)

    cells = run_trial([cheat, honest], [case], pace, device="cpu", seed=1).cells

    assert (cells["sota", case].state, cells["sota", case].reason) == ("measured", None)
    assert cells["head", case].state == "invalid"
    assert "its clock disagrees with the driver's: " in cells["head", case].reason
