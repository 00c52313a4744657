"""The trials of a session on a GPU: which run side by side, and whose processes get ready meanwhile."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender
from kernels.cases import Case, Metric, Role
from service.domain.policy.policy import Policy
from service.domain.stats.case_variances import CaseVariances
from workers.machine.device import DeviceHere
from workers.run.trials import OnDevice, Tally, Trials, side_by_side

GIB = 1 << 30
GPU = DeviceHere("h200", "an H200", memory=140 * GIB)
CASES = tuple(Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16") for rows in (1024, 2048, 4096))


NOT_TUNED: Mapping[str, str] = MappingProxyType({})
NAMES = {("norms", str(case)) for case in CASES}
KNOWN = {Metric.KERNEL: CaseVariances(dict.fromkeys(NAMES, -12.0), dict.fromkeys(NAMES, 0.1), 1.2, 2)}


class Here:
    """Contenders in this process.  `events`: what they were asked, with the seed of the trial."""

    def __init__(
        self, us: Callable[[str], float], same_code: Collection[str] = (), tuned: Mapping[str, str] = NOT_TUNED
    ) -> None:
        self.us, self.same_code, self.tuned = us, same_code, tuned
        self.events: list[tuple[str, int | None]] = []
        self.started: list[str] = []
        self.reuses: list[tuple[int | None, str]] = []  # seed and label of each preparation with a choice to reuse

    def contender(self, label: str, role: Role) -> Contender:
        def start() -> "Process":
            self.started.append(label)
            self.events.append(("started", None))
            return Process(self, label)

        return Contender(label, role, {**protocol.built_in("eager"), "name": "norms"}, start)

    def seeds(self, event: str) -> list[int | None]:
        return [seed for name, seed in self.events if name == event]


class Process:
    def __init__(self, here: Here, label: str) -> None:
        self.here, self.label, self.seed = here, label, 0

    def ask(self, message: Mapping[str, Any], _limit_s: float, _meanwhile: object = None) -> dict[str, Any]:
        self.seed = message.get("seed", self.seed)
        self.here.events.append((message["do"], self.seed))
        match message["do"]:
            case "start":
                return {"ready": True}
            case "prepare":
                case = message["case"]
                same = case in self.here.same_code
                facts = {"kind": "triton", "code": case if same else f"{self.label} {case}"}
                self.here.reuses += [(self.seed, self.label)] if message["reuse"] else []
                chose = {"tuned": self.here.tuned, "reused": bool(message["reuse"])}
                return {"state": "measured", "reason": None, "calls": 2, "facts": facts, **chose}
            case "turn":
                return {"samples": [self.here.us(self.label)] * 3}
            case "check":
                return {"state": "measured", "reason": None}
        return {"ok": True}

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def cpu_s(self) -> None:
        return None

    def close(self) -> None: ...


class Heart:
    def say(self, stage: str) -> None: ...
    def keep_going(self) -> None: ...


def run(here: Here, **options: Any) -> Trials:
    contenders = [here.contender(str(role), role) for role in (Role.HEAD, Role.PARENT, Role.CONTROL, Role.SOTA)]
    trials = Trials(Tally(contenders, CASES), [OnDevice(GPU, contenders)], Policy(), Heart(), seed=100, **options)
    trials.until_decided(CASES)
    return trials


class Said(Heart):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def say(self, stage: str) -> None:
        self.stages.append(stage)


def test_cases_that_other_gpus_would_disturb_are_measured_after_the_others_on_the_first():
    calls = tuple(Case.parse(f"rmsnorm.fwd.{rows}x1024.bf16.call") for rows in (1024, 2048))
    here, said = [Here(lambda _: 100.0), Here(lambda _: 100.0)], Said()
    roles = (Role.HEAD, Role.PARENT, Role.CONTROL, Role.SOTA)
    devices = [
        OnDevice(replace(GPU, index=number), [one.contender(str(role), role) for role in roles])
        for number, one in enumerate(here)
    ]
    tally = Tally(devices[0].contenders, calls + CASES)
    trials = Trials(tally, devices, Policy(), said, seed=100)

    trials.until_decided(calls + CASES)

    assert {one.case for one in tally.taken()} == {*calls, *CASES}
    assert [one["gpu"] for one in trials.spent] == [0, 1, 0, 0, 1, 1, 0, 0, 0]
    assert [gpu["cases"] for gpu in trials.gpus] == [[str(CASES[2]), *map(str, calls)], [str(CASES[1]), str(CASES[0])]]
    together = max(said.stages.index(stage) for stage in said.stages if "bf16.call" not in stage)
    assert all("GPU 0" in stage and "GPU 1" not in stage for stage in said.stages if ".call" in stage)
    assert together > min(said.stages.index(stage) for stage in said.stages if "GPU 0" in stage and "GPU 1" in stage)


@pytest.fixture(autouse=True)
def _large_host(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr("workers.sandbox.usage.available", lambda: (64 * GIB, 64 * GIB))


def test_the_first_trial_runs_alone_and_the_others_of_a_look_side_by_side():
    here = Here(lambda _: 100.0)
    trials = run(here)

    asked = here.seeds("prepare")
    assert asked[:12] == [100] * 12
    assert Counter(asked[12:]) == {101: 12, 102: 12}
    assert {*asked[12:20]} == {101, 102}
    assert [one["what"] for one in trials.spent] == ["trial 1", "trial 2", "trial 3"]


def test_processes_of_the_trials_that_follow_get_ready_during_the_first():
    here = Here(lambda _: 100.0)
    run(here)
    first_case = here.events.index(("prepare", 100))
    assert Counter(name for name, _ in here.events[:first_case])["started"] == 12
    assert Counter(here.started) == {"head": 3, "parent": 3, "control": 3, "sota": 3}


def test_processes_of_a_confirmation_get_ready_once_a_case_has_moved():
    here = Here(lambda label: 110.0 if label == "head" else 100.0)
    trials = run(here)

    confirming = [one["what"] for one in trials.spent if one["what"].startswith("confirming")]
    assert confirming[:2] == ["confirming trial 1", "confirming trial 2"]
    first_of_third = here.events.index(("prepare", 102))  # two trials of a confirmation, or of another look
    assert Counter(name for name, _ in here.events[:first_of_third])["started"] == 12 + 12
    assert set(here.started[12:]) == {"head", "parent", "control"}


def test_screening_trials_reuse_a_stable_choice_and_confirming_trials_tune_anew():
    here = Here(lambda label: 110.0 if label == "head" else 100.0, tuned={"_kernel": "BLOCK=1024"})
    trials = run(here)

    kinds = Counter(one["what"].split(" trial")[0] for one in trials.spent)
    assert kinds["confirming"] >= 2
    # parent and control from the second trial on, the others from their third preparation of a case on
    assert Counter(label for _, label in here.reuses) == {"parent": 6, "control": 6, "head": 3, "sota": 3}
    assert {seed for seed, _ in here.reuses} == {101, 102}


@pytest.mark.parametrize(
    ("same_code", "tuned", "later"),
    [
        (map(str, CASES), {}, 0),
        (map(str, CASES[:2]), {}, 1),
        (map(str, CASES), {"_kernel": "BLOCK=1024"}, 3),  # an autotuner may choose otherwise in the next trial
        ((), {}, 3),
    ],
)
def test_cases_of_the_same_code_end_after_the_first_trial(same_code, tuned, later):
    here = Here(lambda _: 100.0, set(same_code), tuned)
    run(here, known=KNOWN, compared_before=lambda: NAMES)
    assert Counter(here.seeds("prepare")) == {100: 12} | ({101: 4 * later, 102: 4 * later} if later else {})


@pytest.mark.parametrize(
    ("memory", "cores", "contenders", "trials"),
    [(140, 16, 4, 4), (140, 16, 5, 3), (140, 8, 5, 1), (140, 2, 4, 1), (24, 64, 5, 2), (8, 64, 4, 1)],
)
def test_as_many_trials_run_side_by_side_as_there_are_cores_and_memory(monkeypatch, memory, cores, contenders, trials):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert side_by_side(DeviceHere("h100", "a GPU", memory=memory * GIB), contenders) == trials


@pytest.mark.parametrize(("failing", "lost"), [("head", True), ("", False)])
def test_a_gpu_that_the_driver_lost_returns_the_run_only_where_something_failed(monkeypatch, failing, lost):
    monkeypatch.setattr("workers.run.trials.is_lost", lambda _: True)
    here = Here(lambda label: 0.0 if label == failing else 100.0)  # no time at all is none
    if lost:
        with pytest.raises(OSError, match="nothing runs on the GPU any more"):
            run(here)
    else:
        assert [one["what"] for one in run(here).spent] == ["trial 1", "trial 2", "trial 3"]


def test_gpus_of_one_host_share_its_cores_and_memory():
    assert side_by_side(GPU, 4) == 4
    assert side_by_side(GPU, 4, devices=2) == 2


def test_on_a_cpu_trials_run_one_after_the_other():
    assert side_by_side(DeviceHere("cpu", "a processor"), 4) == 1
