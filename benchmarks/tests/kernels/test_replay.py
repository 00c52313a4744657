"""Steps of models as CUDA graphs: all arms of a case replay one or none does; capture and replay on a GPU."""

from contextlib import nullcontext

import pytest
import torch

from benchmarks.kernels.published import model_trials
from benchmarks.kernels.published.arms import ablation, replay
from benchmarks.kernels.published.arms.replay import CannotReplay, StepGraph, replays_in_sample, unlike
from benchmarks.kernels.published.arms.server import ModelServer
from kernels.arena.session import Pace
from kernels.arena.telemetry import Watch
from kernels.errors import FAILED, MEASURED, UNSUPPORTED
from kernels.metrics.clocks import NotCaptured
from kernels.studies import s4
from kernels.studies.records import CONTROL
from kernels.studies.study import StudyStep

# -- all arms or none ------------------------------------------------------------------------------------------------

CAPTURED = {"state": MEASURED, "facts": {"graph": True, "launches": 40}}
LAUNCHED = {"state": MEASURED, "facts": {"graph": False, "graph_reason": "it waits for the device"}}
ON_A_CPU = {"state": MEASURED, "facts": {"tiny": True}}
REFUSED = {"state": UNSUPPORTED, "reason": "no such setting"}
FELL_OVER = {"state": FAILED, "reason": "out of memory", "broken": True}
CAPTURE_FAILED = {"state": FAILED, "reason": "cannot be captured", "broken": True, "capture_failed": True}
ENDED = {"state": FAILED, "reason": "an illegal memory access", "broken": True}
NO_TURN = {**CAPTURED, "turn": ENDED}


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        ((CAPTURED, CAPTURED), None),
        ((CAPTURED, LAUNCHED), "b"),
        ((LAUNCHED, LAUNCHED), "a"),
        ((CAPTURED, REFUSED), None),
        ((CAPTURED, FELL_OVER), None),
        ((ON_A_CPU, ON_A_CPU), None),
        (({**LAUNCHED, "state": FAILED}, CAPTURED), None),  # it has no turns
    ],
)
def test_one_arm_that_must_launch_makes_all_launch(answers, first):
    assert model_trials.first_to_launch(dict(zip("ab", answers, strict=False))) == first


class ScriptedArm:
    """A process that answers like one with a GPU.

    `prepared` has its answer to "prepare" by case, and as `turn` the answer to a turn, if that is an error.
    """

    def __init__(self, prepared, asked, opened):
        self._prepared, self._asked, self._opened = prepared, asked, opened
        self.closed = False
        self._turn = None

    def ask(self, message, _limit_s, _meanwhile=None):
        assert not self.closed
        self._asked.append(message)
        match message["do"]:
            case "prepare" if reason := message["spec"].get("launched_because"):
                return {"state": MEASURED, "facts": {"graph": False, "graph_reason": reason}}
            case "prepare":
                answer = dict(self._prepared[message["case"]])
                self._turn = answer.pop("turn", None)
                return answer
            case "turn":
                return self._turn or {"samples": [float(self._opened), float(self._opened)]}
            case "check":
                return {"state": MEASURED}
        return {"ok": True}

    def close(self):
        self.closed = True


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """Run a trial of arms with scripted answers: the records by arm and case, and what each arm was asked."""

    def run(prepared, *, together, rounds=2, watch=None, noted=lambda _: None):
        asked = {arm: [] for arm in prepared}
        opened = dict.fromkeys(prepared, 0)

        def open_process(_arguments, log, *_imports, **_named):
            opened[log.stem] += 1
            return ScriptedArm(prepared[log.stem], asked[log.stem], opened[log.stem])

        monkeypatch.setattr(model_trials, "open_process", open_process)
        cases = tuple(dict.fromkeys(case for answers in prepared.values() for case in answers))
        step = StudyStep(
            "gpu", (s4.INDUCTOR, s4.EAGER), cases, 1, Pace(rounds=rounds), models=True, prepare_together=together
        )
        found = {}

        def keep(records, more):
            found.update({(one.arm, one.case): one for one in records})
            noted(more)

        model_trials.run_model_trial(
            step,
            0,
            cases,
            device="cuda",
            seed=1,
            scratch=tmp_path,
            keep=keep,
            watch=watch,
        )
        return found, {arm: [(one["do"], one.get("case")) for one in each] for arm, each in asked.items()}, opened

    return run


@pytest.mark.parametrize("together", [True, False])
def test_a_case_is_launched_by_all_arms_and_the_next_one_replayed(trial, together):
    good = {"one": CAPTURED, "two": CAPTURED}
    found, asked, _ = trial({"inductor": good, "eager": {**good, "one": LAUNCHED}, CONTROL: good}, together=together)

    assert all(one.state == MEASURED and len(one.samples) == 2 for one in found.values())
    assert found["eager", "one"].facts == LAUNCHED["facts"]
    for arm in ("inductor", CONTROL):
        assert found[arm, "one"].facts == {**LAUNCHED["facts"], "launched_with": "eager"}
        assert found[arm, "two"].facts == CAPTURED["facts"]
        turns = [do for do, _ in asked[arm] if do in ("prepare", "launch", "turn")]
        assert turns.index("launch") < turns.index("turn")
        assert turns.count("launch") == 1
    assert ("launch", None) not in asked["eager"]


@pytest.mark.parametrize("together", [True, False])
def test_after_a_failed_capture_the_arm_launches_in_another_process(trial, together):
    good = {"one": CAPTURED, "two": CAPTURED, "three": CAPTURED}
    found, asked, opened = trial(
        {"inductor": {**good, "two": CAPTURE_FAILED}, "eager": good, CONTROL: good}, together=together
    )

    assert opened == {"inductor": 2, "eager": 1, CONTROL: 1}
    assert [found["inductor", case].facts["graph"] for case in good] == [True, False, True]
    assert [found["eager", case].facts["graph"] for case in good] == [True, False, True]
    assert found["inductor", "two"].facts == {"graph": False, "graph_reason": "cannot be captured"}
    assert found["eager", "two"].facts["launched_with"] == "inductor"
    assert [case for do, case in asked["inductor"] if do == "prepare"] == ["one", "two", "two", "three"]


def test_a_broken_process_is_replaced_at_every_model(trial):
    cases = [f"case{number}" for number in range(8)]  # more than an arm may lose processes
    good = dict.fromkeys(cases, CAPTURED)
    found, _, opened = trial(
        {"inductor": good, "eager": {**dict.fromkeys(cases, FELL_OVER), "case7": CAPTURED}, CONTROL: good},
        together=False,
    )

    assert [found["eager", case].reason for case in cases] == ["out of memory"] * 7 + [None]
    assert opened["eager"] == 8
    assert all(found["inductor", case].facts["graph"] for case in cases)  # one that failed has no turns


@pytest.mark.parametrize("together", [True, False])
def test_an_arm_that_fails_in_its_turn_keeps_its_facts_and_runs_at_the_next_model(trial, together):
    good = {"one": CAPTURED, "two": CAPTURED}
    found, _, opened = trial({"inductor": good, "eager": {**good, "one": NO_TURN}, CONTROL: good}, together=together)

    lost, after = found["eager", "one"], found["eager", "two"]
    assert (lost.state, lost.reason, lost.facts) == (FAILED, ENDED["reason"], CAPTURED["facts"])
    assert (after.state, opened["eager"]) == (MEASURED, 2)
    assert all(found[arm, case].state == MEASURED for arm in ("inductor", CONTROL) for case in good)


@pytest.mark.parametrize(
    ("throttled", "kept", "dropped"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], 0),
        ([0, 1, 0, 0, 0], [1, 0, 1, 1, 1], 1),
        ([1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], 3),  # two rounds are repeated, then a dropped one counts
        ([1, 1, 1, 1, 1, 1], None, 6),
    ],
)
def test_a_throttled_round_is_dropped_for_all_arms_and_repeated(trial, throttled, kept, dropped):
    """The GPU is slowed while the arms prepare as well, which spoils no round."""
    readings = iter([1, *throttled])
    watch = Watch(whole=dict, glance=lambda: {"gpu": {"throttle": ["hw_thermal"] if next(readings) else ["idle"]}})
    notes = []
    found, _, _ = trial(
        {arm: {"one": CAPTURED} for arm in ("inductor", "eager", CONTROL)},
        together=True,
        rounds=4,
        watch=watch,
        noted=notes.extend,
    )

    assert next(readings, None) is None
    [about] = [note.value for note in notes if note.what == "trial"]
    assert about["dropped_rounds"] == dropped
    for one in found.values():
        if kept is None:
            assert (one.state, one.reason) == (FAILED, "the device was throttled in every round")
        else:
            assert one.samples == tuple(1.0 if counts else None for counts in kept)


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "replays"), [(0.0, 64), (1e-4, 64), (1e-3, 20), (1.01e-3, 20), (0.02, 1), (3.0, 1)])
def test_a_sample_has_several_replays_of_a_short_step(step_s, replays):
    assert replays_in_sample(step_s) == replays


@pytest.mark.parametrize(
    ("replayed", "why"),
    [
        ((1.0, 2.0), None),
        ((1.0, 2.0005), None),
        ((1.0, 2.01), "a replay differs from a launched step: dx by 0.005"),
        ((float("nan"), 2.0), "a replay differs from a launched step: output by nan"),  # nothing was written
    ],
)
def test_a_replay_is_compared_with_a_launched_step(replayed, why):
    tensors = [torch.full((8,), value) for value in replayed]
    assert unlike(["output", "dx"], tensors, [torch.full((8,), 1.0), torch.full((8,), 2.0)], 1e-3) == why


@pytest.mark.parametrize("name", [f"{suite}.{name}" for suite, names in s4.SUITES.items() for name in names])
def test_no_output_of_a_step_is_an_input(name):
    """Outputs are filled with NaN before a replay; an input among them would be lost."""
    step = ablation.TrainingStep(f"{name}.amp", s4.EAGER.spec, "cpu", seed=1)
    given = {one.untyped_storage().data_ptr() for one in (*step._inputs, step._gradient, *step._module.parameters())}
    assert not given & {one.untyped_storage().data_ptr() for one in step._step()}


def test_the_check_after_the_timing_has_other_numbers_in_the_same_tensors():
    step = ablation.TrainingStep("small.dlrm.fp32", s4.EAGER.spec, "cpu", seed=1)
    before, tensors = step._step(), list(step._inputs)
    step._step = lambda: before  # as a graph that does not read its inputs
    assert "output has a relative error of" in step.check()
    assert all(one is other for one, other in zip(step._inputs, tensors, strict=True))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_failed_capture_breaks_the_process_of_a_gpu(device, monkeypatch):
    def workload(*_):
        raise NotCaptured("cannot be captured in a CUDA graph")

    monkeypatch.setattr(ablation, "TrainingStep", workload)
    server = ModelServer()
    server._device = device
    answer = server.answer({"do": "prepare", "case": "", "spec": {"workload": "ablation:TrainingStep"}, "seed": 1})
    assert answer["state"] == FAILED
    assert "cannot be captured in a CUDA graph" in answer["reason"]
    damage = {"broken": True, "capture_failed": True}
    assert {key: answer[key] for key in damage if key in answer} == (damage if device == "cuda" else {})


@pytest.mark.parametrize("what", ["launch", "turn", "check"])
def test_without_a_prepared_workload_the_answer_says_so(what):
    answer = ModelServer().answer({"do": what, "warm": 1, "timed": 1})
    assert (answer["state"], "no workload is prepared" in answer["reason"]) == (FAILED, True)


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream():
    with torch.cuda.stream(replay.side_stream()) if torch.cuda.is_available() else nullcontext():
        yield


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_a_replay_reads_its_inputs_and_writes_its_outputs():
    x = torch.ones(256, 256, device="cuda", requires_grad=True)
    graph = StepGraph(lambda: ((y := x.exp()).detach(), *torch.autograd.grad(y.sum(), [x])))
    assert graph.launches >= 2

    with torch.no_grad():
        x.copy_(torch.full_like(x, 2.0))
    for one in graph.outputs():
        torch.testing.assert_close(one, x.detach().exp())
    [sample] = graph.turn(1, 1)
    assert 0 < sample < 1000


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_a_step_that_waits_for_the_device_is_refused_and_the_process_goes_on():
    x = torch.ones(64, 64, device="cuda", requires_grad=True)

    def waits():
        y = x * x.sum().item()
        return (y.detach(), *torch.autograd.grad(y.sum(), [x]))

    with pytest.raises(CannotReplay, match=r"(?i)cannot be captured in a CUDA graph: .*captur"):
        StepGraph(waits)

    assert torch.rand(8, device="cuda").sum().item() > 0  # the generator and the allocator know of no capture
    graph = StepGraph(lambda: ((y := x * 2).detach(), *torch.autograd.grad(y.sum(), [x])))
    torch.testing.assert_close(graph.outputs()[0], torch.full_like(x, 2.0))


@pytest.mark.gpu
@pytest.mark.parametrize("arm", [s4.EAGER, s4.INDUCTOR, s4.NO_SPLIT, s4.DYNAMIC], ids=lambda arm: arm.name)
@pytest.mark.parametrize("name", ["language.gpt2", "language.t5", "vision.resnet", "vision.swin", "small.dlrm"])
def test_a_block_is_captured_and_right(name, arm):
    step = ablation.TrainingStep(f"{name}.amp", arm.spec, "cuda", seed=1)
    assert step.facts["graph"], step.facts.get("graph_reason")

    replayed = step.turn(warm=1, timed=2)
    spread = max(replayed) / min(replayed)
    print("replay:", name, arm.name, f"{min(replayed):.1f} us, spread {spread:.3f}, {step.facts['launches']} launches")
    assert spread < 1.1
    assert step.check() is None


@pytest.mark.gpu
def test_a_launched_step_is_timed_as_before():
    spec = {**s4.INDUCTOR.spec, "launched_because": "a test"}
    step = ablation.TrainingStep("language.gpt2.amp", spec, "cuda", seed=1)
    assert (step.facts["graph"], step.facts["graph_reason"]) == (False, "a test")
    launched = min(step.turn(warm=1, timed=3))
    replays = ablation.TrainingStep("language.gpt2.amp", s4.INDUCTOR.spec, "cuda", seed=1)
    assert min(replays.turn(warm=1, timed=3)) < 1.1 * launched
    replays.launch()
    assert min(replays.turn(warm=1, timed=3)) == pytest.approx(launched, rel=0.3)
    assert step.check() is None
    assert replays.check() is None
