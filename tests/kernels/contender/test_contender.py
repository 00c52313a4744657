"""Real contender processes on the CPU: right ones, wrong ones, cheats, and processes that die."""

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Pace, run_trial
from kernels.arena.sizes import sets_of_pass
from kernels.cases import Case, Role
from kernels.contender.server import Server
from kernels.metrics.clocks import NotCaptured
from kernels.providers import Provider

from ..conftest import OWN

QUICK = Pace(rounds=2, warm=1, timed=3, start_limit_s=120, prepare_limit_s=60, turn_limit_s=30)


def case_of(moods, mood):
    return Case.parse(f"rmsnorm.fwd.{moods[mood]}x64.fp32")


@pytest.fixture(scope="module")
def own(open_contender) -> Channel:
    """The target's own provider, started once: what it does at one case must not matter at the next."""
    channel = open_contender()
    ready = channel.ask(protocol.start(OWN, "cpu", 1, 0), 120)
    assert ready["ready"] is True
    assert ready["stack"]["torch"]
    assert ready["device"]["threads"] == 1
    return channel


def measured(channel, case, seed=1):
    """(state, reason) of preparing, timing and checking a case, as the arena would do it."""
    answer = channel.ask(protocol.prepare(case, seed), 60)
    if answer.get("state") == "measured":
        taken = channel.ask(protocol.turn(1, 3), 60)["samples"]
        assert len(taken) == 3
        assert all(us > 0 for us in taken)
        answer = channel.ask(protocol.CHECK, 60)
    channel.ask(protocol.FREE, 60)
    return answer["state"], answer["reason"]


def test_an_honest_one_is_measured(own, moods):
    prepared = own.ask(protocol.prepare(case_of(moods, "honest"), 1), 60)

    assert (prepared["state"], prepared["reason"]) == ("measured", None)
    assert prepared["errors"]["y"] < 1e-6
    assert prepared["sets"] == 2
    of_pass = sets_of_pass(case_of(moods, "honest"))
    assert len(prepared["inputs"]) == min(of_pass, 2 * prepared["calls"])
    assert prepared["facts"]["kind"] == "operators"
    assert "aten::rsqrt" in prepared["facts"]["ops"]
    taken = own.ask(protocol.turn(1, 3), 60)["samples"]
    assert min(taken) * prepared["calls"] > 500  # a timed sample is about two milliseconds
    assert own.ask(protocol.CHECK, 60) == {"state": "measured", "reason": None}


@pytest.mark.parametrize(
    ("mood", "state", "reason"),
    [
        ("wrong", "invalid", "y is wrong by 3 % of the largest value in row "),
        ("nan", "invalid", "y has 1 value that is not finite"),
        ("half", "invalid", "y is fp16 instead of fp32"),
        ("shape", "invalid", "y has the shape (103, 64) instead of (104, 64)"),
        ("nothing", "invalid", "y is nothing instead of a tensor"),
        ("writes", "invalid", "x"),
        ("keeps", "invalid", "after the timing, with other numbers in its inputs: y is wrong by"),
        ("reuses", "invalid", "y shares memory with the y that an earlier call returned"),
        ("sometimes", "invalid", "changed its input x"),
        ("forgets_eps", "invalid", "y is wrong by"),
        ("threads", "invalid", "changed the number of threads from 1 to 2"),
        ("prints", "measured", None),
        ("exits", "failed", "called sys.exit(3) (norms.py:"),
        ("raises", "failed", "ValueError: the message (norms.py:"),
    ],
)
def test_never_fast_when_wrong(own, moods, mood, state, reason):
    found = measured(own, case_of(moods, mood))

    assert found[0] == state, found
    assert (reason is None and found[1] is None) or reason in found[1]
    assert measured(own, case_of(moods, "honest")) == ("measured", None)


def test_garbage_is_collected_after_the_start_but_not_what_was_imported(open_contender, moods):
    channel = open_contender()
    channel.ask(protocol.start(OWN, "cpu", 1, 0), 120)
    assert measured(channel, case_of(moods, "collects")) == ("measured", None)


def test_backwards(own):
    assert measured(own, Case.parse("rmsnorm.bwd.64x96.bf16-fp32")) == ("measured", None)


def test_the_targets_preparation_is_not_timed(own):
    assert measured(own, Case.parse("layernorm.fwd.64x96.fp32")) == ("measured", None)
    assert measured(own, Case.parse("layernorm.fwd.7x96.fp32")) == ("unsupported", "no seven rows")


def test_a_module_that_does_not_import_is_named(own):
    state, reason = measured(own, Case.parse("layernorm.bwd.64x96.fp32"))

    assert state == "failed"
    assert reason.startswith(
        "cannot import kernels.broken: ModuleNotFoundError: No module named 'a_library_nobody_has'"
    )
    assert "broken.py:2" in reason


def test_lost_contenders_are_replaced_and_the_others_measured(contender, moods):
    names = ("honest", "crashes", "hangs", "closes", "honest")
    cases = [Case.parse(f"rmsnorm.fwd.{moods[name]}x{64 + 8 * number}.fp32") for number, name in enumerate(names)]
    contenders = [contender("head:norms"), contender("sota:eager", protocol.built_in("eager"), Role.SOTA)]
    pace = Pace(rounds=2, warm=1, timed=3, start_limit_s=120, prepare_limit_s=12, turn_limit_s=30)

    trial = run_trial(contenders, cases, pace, device="cpu", seed=5, core=0)

    head = [trial.cells["head:norms", case] for case in cases]
    assert [cell.state for cell in head] == ["measured", "failed", "failed", "measured", "measured"]
    assert head[1].reason.startswith("killed by SIGSEGV; last lines: ")
    assert "Segmentation fault" in head[1].reason
    assert head[2].reason.startswith("no answer to 'prepare' in 12 s")
    assert all(trial.cells["sota:eager", case].state == "measured" for case in cases)
    assert len(head[0].samples) == 2


def test_what_is_not_exact_enough_is_timed_apart_and_in_later_trials_as_well(contender, moods):
    case = case_of(moods, "honest")
    inexact = protocol.targets_own("norms", {"rmsnorm.fwd": "kernels.norms:inexact"})
    contenders = [contender("head:norms"), contender("parent:norms", inexact, Role.PARENT)]

    first = run_trial(contenders, [case], QUICK, device="cpu", seed=1, core=0)

    head, parent = (first.cells[one.label, case] for one in contenders)
    assert (head.state, len(head.samples), len(head.apart)) == ("measured", 2, 2)
    assert (parent.state, parent.samples, len(parent.apart)) == ("invalid", [], 2)
    assert parent.inexact
    assert parent.reason.startswith("y is wrong by ")
    assert parent.facts["kind"] == "operators", "its code is read like that of others"

    again = run_trial(
        contenders,
        [case],
        QUICK,
        device="cpu",
        seed=2,
        core=0,
        thorough=False,
        inexact_before={("parent:norms", case): "said before"},
    )

    assert again.cells["parent:norms", case].reason == "said before"
    first, second = (len(again.cells[one.label, case].apart) for one in contenders)
    assert first == second >= 2, "a busy host asks for more rounds"


@pytest.mark.parametrize("mood", ["keeps", "reuses", "writes", "threads", "half"])
def test_what_cheats_is_not_timed_apart(contender, moods, mood):
    contenders = [contender("head:norms"), contender("parent:norms", role=Role.PARENT)]

    trial = run_trial(contenders, [case_of(moods, mood)], QUICK, device="cpu", seed=1, core=0)

    for cell in trial.cells.values():
        assert (cell.state, cell.inexact, cell.apart) == ("invalid", False, [])


@pytest.mark.long
def test_compiled_code_has_the_same_hash_from_a_warm_cache(open_contender, tmp_path):
    case = Case.parse("rmsnorm.fwd.64x96.fp32")
    compiled = protocol.targets_own(
        "norms", {"rmsnorm.fwd": "kernels.norms:definition"}, compile=protocol.DEFAULT_COMPILE
    )
    facts, graphs = [], []
    for provider in (protocol.built_in("inductor"), compiled):
        channel = open_contender(TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
        channel.ask(protocol.start(provider, "cpu", 1, None), 120)
        prepared = channel.ask(protocol.prepare(case, 1), 200)
        assert prepared["state"] == "measured", prepared
        facts.append(prepared["facts"])
        graphs.append({path for path in (tmp_path / "fxgraph").rglob("*") if path.is_file()})
        channel.close()

    assert graphs[0] == graphs[1] != set()  # the second one found what the first one compiled
    assert facts[0]["code"] == facts[1]["code"]
    assert facts[0] | {"kind": "generated", "kernels": 1} == facts[0]


class UncapturableBench:
    """Like a GPU after a failed capture: everything afterwards fails with another error."""

    provider, stream, captured = Provider(), None, False

    def working(self):
        return nullcontext()

    def provider_at(self, case):
        self.captured = True
        raise NotCaptured("cannot be captured in a CUDA graph: AcceleratorError: CUDA error (norms.py:7)")

    def free(self):
        if self.captured:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


def test_a_failed_capture_keeps_its_reason_and_needs_a_new_process():
    server = Server()
    server._bench = UncapturableBench()

    answer = server.answer(protocol.prepare(Case.parse("rmsnorm.fwd.8x8.fp32"), 1))

    assert (answer["state"], answer["broken"]) == ("failed", True)
    assert answer["reason"] == "cannot be captured in a CUDA graph: AcceleratorError: CUDA error (norms.py:7)"


def test_requests_can_be_sent_by_hand(tmp_path):
    nobody, eager = protocol.built_in("cudnn"), protocol.built_in("eager")
    asked = [
        protocol.start(nobody, "cpu", 1, None),
        protocol.start(eager, "cpu", 1, None),
        {"do": "dance"},
        protocol.TELEMETRY,
    ]
    spoken = subprocess.run(
        [sys.executable, "-P", str(protocol.CONTENDER)],
        input="".join(json.dumps(question) + "\n" for question in asked),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    unknown, ready, refused, telemetry = map(json.loads, spoken.stdout.splitlines())
    assert unknown["ready"] is False
    assert "there is no built-in provider 'cudnn'; known: eager, inductor" in unknown["error"]
    assert ready["ready"] is True
    assert "error" in refused
    assert telemetry["host"]["load"]
