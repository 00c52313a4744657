"""The arena with scripted contenders: order of turns, lost contenders, and the samples that remain."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kernels.arena import protocol
from kernels.arena.channel import ContenderLost
from kernels.arena.repeatability import FULL_REPEATS, MIN_REPEATS, Repeats
from kernels.arena.session import Contender, Judge, OutOfTime, Pace, ProcessPool, Tunings, order, run_trial, run_trials
from kernels.arena.telemetry import Watch
from kernels.cases import Case, Metric, Role

CASE = Case.parse("rmsnorm.fwd.8x8.fp32")
OTHER = Case.parse("rmsnorm.fwd.16x8.fp32")


class Stage:
    """Scripted contenders.  `answers` maps (label, what is asked) to an answer, an exception, or a list of those."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {tuple(key.split("_", 1)): value for key, value in answers.items()}
        self.said: list[tuple[str, str]] = []  # (label, what it was asked), in order
        self.messages: list[tuple[str, Mapping[str, Any]]] = []
        self.slow: dict[str, float] = {}  # seconds of a turn
        self.limits: defaultdict[str, set[float]] = defaultdict(set)  # of what was asked, in seconds
        self.started: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.running: set[Actor] = set()  # those that are not frozen
        self.cpu: dict[str, float] = {}  # seconds so far
        self.unstoppable: set[str] = set()  # are lost when they are frozen next

    def contender(self, label: str) -> Contender:
        def start() -> "Actor":
            self.started[label] += 1
            self.open[label] += 1
            return Actor(self, label)

        return Contender(label, Role.HEAD, protocol.built_in("eager"), start)

    def trial(self, *labels: str, cases=(CASE,), pace=None, **options):
        contenders = [self.contender(label) for label in labels]
        return run_trial(contenders, cases, pace or Pace(rounds=6), device="cpu", seed=1, **options)

    def note(self, message: Mapping[str, Any]) -> None: ...

    def turns(self) -> list[str]:
        return [label for label, asked in self.said if asked == "turn"]


class Actor:
    def __init__(self, stage: Stage, label: str) -> None:
        self.stage, self.label, self.alive = stage, label, True
        stage.running.add(self)

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        assert self.alive
        assert self in self.stage.running or message["do"] == "start"
        assert message["do"] != "turn" or self.stage.running == {self}
        self.stage.said.append((self.label, message["do"]))
        self.stage.limits[message["do"]].add(limit_s)
        self.stage.messages.append((self.label, message))
        self.stage.note(message)
        time.sleep(self.stage.slow.get(self.label, 0.0) if message["do"] == "turn" else 0.0)
        scripted = self.stage.answers.get((self.label, message["do"]))
        if isinstance(scripted, list):
            scripted = scripted.pop(0) if scripted else None
        if callable(scripted):
            scripted = scripted()
        if isinstance(scripted, Exception):
            raise scripted
        usual = {
            "start": {"ready": True, "stack": {"torch": "1"}, "device": {"kind": "cpu"}},
            "prepare": {
                "state": "measured",
                "reason": None,
                "facts": {"code": "abc"},
                "errors": {"y": 0.0},
                "calls": 3,
            },
            "turn": {"samples": [3.0, 1.0, 2.0]},
            "check": {"state": "measured", "reason": None},
        }
        return scripted or usual.get(message["do"], {"ok": True})

    def freeze(self) -> None:
        if self.label in self.stage.unstoppable:
            self.stage.unstoppable = set()
            raise ContenderLost("could not be stopped")
        self.stage.running.discard(self)

    def thaw(self) -> None:
        self.stage.running.add(self)

    def cpu_s(self) -> float | None:
        return self.stage.cpu.get(self.label)

    def read(self, address: int, count: int) -> bytearray:
        raise PermissionError

    def write(self, address: int, data: bytearray | memoryview) -> None:
        raise PermissionError

    def close(self) -> None:
        self.stage.open[self.label] -= self.alive
        self.alive = False
        self.stage.running.discard(self)


# -- the order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_each_contender_has_each_place_equally_often(count):
    labels = "abcde"[:count]
    rounds = [order(labels, number) for number in range(2 * count)]

    for place in range(count):
        assert Counter(turn[place] for turn in rounds) == dict.fromkeys(labels, 2)
    for one in labels:
        for other in labels:
            ahead = sum(turn.index(one) < turn.index(other) for turn in rounds)
            assert one == other or ahead == count


def test_the_second_round_is_the_first_one_backwards():
    assert order("abc", 1) == order("abc", 0)[::-1]
    assert order("abc", 2) != order("abc", 0)


def test_a_launch_takes_turns_in_that_order():
    stage = Stage()

    trial = stage.trial("a", "b", "c", pace=Pace(rounds=4))

    turns = stage.turns()
    rounds = [turns[first : first + 3] for first in range(0, 12, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert rounds[1] == rounds[0][::-1]
    assert rounds[2] != rounds[0]
    assert trial.cells["a", CASE].samples == [2.0] * 4  # the median of each round


def test_where_it_begins_depends_on_the_seed():
    firsts = set()
    for seed in range(20):
        stage = Stage()
        run_trial([stage.contender(each) for each in "abc"], [CASE], Pace(rounds=1), device="cpu", seed=seed)
        firsts.add(stage.turns()[0])
    assert firsts == {"a", "b", "c"}


def test_the_order_of_starts_and_turns_differs_between_trials():
    starts, neighbours = set(), set()
    for seed in range(20):
        stage = Stage()
        trial = run_trial([stage.contender(each) for each in "abc"], [CASE], Pace(rounds=1), device="cpu", seed=seed)
        starts.add("".join(stage.started))
        assert "".join(trial.stacks) == "abc"
        turns = "".join(stage.turns()) * 2
        neighbours.add(turns[turns.index("a") + 1])
    assert starts == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert neighbours == {"b", "c"}


# -- who takes part where ---------------------------------------------------------------------------------------------


def test_a_contender_with_own_cases_takes_part_only_there_in_balanced_order():
    stage = Stage()
    good = replace(stage.contender("good"), cases=frozenset({OTHER}))

    trial = run_trial(
        [stage.contender("head"), good, stage.contender("parent")],
        (CASE, OTHER),
        Pace(rounds=6),
        device="cpu",
        seed=1,
    )

    assert {(label, case) for label, case in trial.cells if label == "good"} == {("good", OTHER)}
    turns = stage.turns()
    assert Counter(turns[:12]) == {"head": 6, "parent": 6}
    assert Counter(turns[12:]) == {"head": 6, "parent": 6, "good": 6}
    rounds = [turns[first : first + 3] for first in range(12, 30, 3)]
    for place in range(3):
        assert Counter(turn[place] for turn in rounds) == {"head": 2, "parent": 2, "good": 2}


def test_a_contender_without_cases_in_a_trial_is_not_started():
    stage = Stage()
    good = replace(stage.contender("good"), cases=frozenset({OTHER}))
    trial = run_trial([stage.contender("head"), good], (CASE,), Pace(rounds=6), device="cpu", seed=1)
    assert set(trial.stacks) == {"head"}
    assert stage.started == {"head": 1}


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_what_a_launch_holds():
    said: list[str] = []

    trial = Stage().trial("a", "b", cases=[CASE, OTHER], progress=said.append)

    assert set(trial.cells) == {(label, case) for label in "ab" for case in (CASE, OTHER)}
    cell = trial.cells["b", OTHER]
    assert (cell.state, cell.reason, cell.facts) == ("measured", None, {"code": "abc"})
    assert cell.extra == {"errors": {"y": 0.0}, "calls": 3}
    assert trial.stacks["a"] == {"torch": "1", "device": {"kind": "cpu"}}
    assert {"start", "prepare", "rounds", "check"} <= set(trial.seconds)
    assert said == [f"1/2 {CASE}", f"2/2 {OTHER}"]
    assert trial.telemetry[0]["host"]["load"]


# -- who is not measured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["invalid", "unsupported", "failed"])
def test_a_contender_that_is_not_measured_takes_no_turns(state):
    stage = Stage(b_prepare={"state": state, "reason": "because"})

    trial = stage.trial("a", "b")

    assert (trial.cells["b", CASE].state, trial.cells["b", CASE].reason) == (state, "because")
    assert set(stage.turns()) == {"a"}


REPEATS = {"code": "abc", "repeats": FULL_REPEATS, "distinct": 1, "repeatable": True}
VARIES = {"code": "abc", "repeats": FULL_REPEATS, "distinct": 4, "repeatable": False}
UNSURE = {"code": "abc", "repeats": MIN_REPEATS, "distinct": 1, "repeatable": None}


def prepared(**facts: Any) -> dict[str, Any]:
    return {"state": "measured", "reason": None, "facts": facts, "sets": 2, "calls": 4}


@pytest.mark.parametrize(
    ("mine", "parents", "before", "state"),
    [
        (REPEATS, None, {}, "invalid"),
        (UNSURE, None, {}, "measured"),  # its numbers were right within the tolerance
        (VARIES, None, {}, "measured"),
        (UNSURE, VARIES, {}, "measured"),
        (REPEATS, VARIES, {}, "measured"),  # it agreed by chance: its parent's identical code does not repeat
        (REPEATS, {**VARIES, "code": "other"}, {}, "invalid"),
        (REPEATS, None, {(CASE, "abc"): Repeats(45, 2)}, "measured"),
        (REPEATS, None, {(OTHER, "abc"): Repeats(45, 2), (CASE, "other"): Repeats(45, 2)}, "invalid"),
        (UNSURE, None, {(CASE, "abc"): Repeats(45, 1)}, "invalid"),
    ],
)
def test_other_bits_in_the_graph_are_wrong_only_of_code_that_is_known_to_repeat(mine, parents, before, state):
    stage = Stage(a_prepare=prepared(graph_bits="other", **mine), b_prepare=prepared(**(parents or {"code": None})))
    trial = stage.trial("a", "b", repeats_before=before)

    assert (trial.cells["a", CASE].state, trial.cells["b", CASE].state) == (state, "measured")
    if state == "invalid":
        assert "other bits" in trial.cells["a", CASE].reason
    if mine is REPEATS and parents is VARIES:
        assert {trial.cells[label, CASE].facts["repeatable"] for label in "ab"} == {False}


def test_a_graph_that_varies_does_not_repeat():
    trial = Stage(a_prepare=prepared(graph_bits="varying", **REPEATS)).trial("a")

    assert trial.cells["a", CASE].state == "measured"
    assert trial.cells["a", CASE].facts["repeatable"] is False


def test_only_the_two_sides_are_called_often_and_all_know_what_was_seen_before():
    stage = Stage()
    contenders = [replace(stage.contender("a"), role=Role.PARENT), replace(stage.contender("b"), role=Role.SOTA)]
    before = {(CASE, "abc"): Repeats(45, 2), (OTHER, "def"): Repeats(45, 1)}
    run_trial(contenders, [CASE], Pace(rounds=1), device="cpu", seed=1, repeats_before=before)

    asked = {label: message for label, message in stage.messages if message["do"] == "prepare"}
    assert (asked["a"]["repeats"], asked["b"]["repeats"]) == (FULL_REPEATS, MIN_REPEATS)
    assert asked["a"]["known"] == {"abc": Repeats(45, 2).facts}


def test_a_contender_that_is_wrong_after_the_timing_has_no_samples():
    trial = Stage(b_check={"state": "invalid", "reason": "y is wrong"}).trial("a", "b")

    cell = trial.cells["b", CASE]
    assert (cell.state, cell.reason, cell.samples) == ("invalid", "y is wrong", [])
    assert trial.cells["a", CASE].state == "measured"


@pytest.mark.parametrize(
    "answer",
    [
        {"samples": []},
        {"samples": [1.0, float("nan")]},
        {"samples": [0]},
        {"samples": "quick"},
        {"samples": [-1.0]},
        {"nonsense": 1},
    ],
)
def test_a_time_that_is_none_is_a_failure(answer):
    cell = Stage(b_turn=[answer]).trial("a", "b").cells["b", CASE]
    assert (cell.state, cell.samples) == ("failed", [])
    assert "answered a turn with" in cell.reason


def test_strangers_may_say_anything():
    odd = {"state": ["measured"], "reason": {"why": 7}, "facts": ["none"], "errors": None}
    stage = Stage(b_start={"ready": True, "stack": 5, "device": "gpu"}, b_prepare=odd, c_prepare={"reason": "x" * 9999})

    trial = stage.trial("a", "b", "c")

    assert trial.stacks["b"] == {"device": {}}
    cell = trial.cells["b", CASE]
    assert (cell.state, cell.reason, cell.facts) == ("failed", "{'why': 7}", {})
    assert trial.cells["c", CASE].reason == "x" * 2000
    assert trial.cells["a", CASE].state == "measured"


@pytest.mark.parametrize(
    "turn",
    [
        {"samples": [1e308] * 3},
        {"samples": [1e304] * 3, "calls": 1 << 62},
        {"samples": [1.0] * 3, "calls": "many"},
    ],
)
def test_invalid_samples_of_a_contender_do_not_end_the_trial(turn):
    trial = Stage(b_turn=[turn] * 9).trial("a", "b")

    assert trial.cells["a", CASE].state == "measured"
    assert all(seconds < 1e6 for seconds in trial.seconds.values())


@pytest.mark.parametrize("inputs", [5, True, {"x": 1}, "here", None, []])
def test_invalid_places_of_inputs_do_not_end_the_trial(inputs):
    trial = Stage(b_prepare={**prepared(), "inputs": inputs}).trial("a", "b")
    assert {cell.state for cell in trial.cells.values()} == {"measured"}


@pytest.mark.parametrize(("asked", "state"), [("idle", "measured"), ("turn", "invalid")])
def test_time_that_the_driver_asks_of_a_frozen_contender_is_not_held_against_it(asked, state):
    stage = Stage(b_idle=[{"waited_us": 5.0}] * 99)
    stage.cpu = {"a": 0.0, "b": 0.0}

    def use(message: Mapping[str, Any]) -> None:
        if message["do"] == asked and stage.said[-1][0] == ("b" if asked == "idle" else "a"):
            stage.cpu["b"] += 0.02  # as the witness that the device is idle, or by itself in the turns of the other

    stage.note = use
    contenders = [stage.contender("a"), stage.contender("b")]

    trial = run_trial(contenders, [CASE], Pace(rounds=6), device="cuda", seed=1, watch=watched(dict))

    assert (trial.cells["a", CASE].state, trial.cells["b", CASE].state) == ("measured", state)
    assert stage.cpu["b"] > 0.06


@pytest.mark.parametrize("device", [{"memory_bytes": "x"}, {"memory_bytes": None, "uuid": ["GPU"]}, "gpu", None])
def test_an_invalid_device_description_does_not_end_the_trial(device):
    stage = Stage(b_start={"ready": True, "stack": {}, "device": device})
    contenders = [stage.contender("a"), stage.contender("b")]

    trial = run_trial(contenders, [CASE], Pace(rounds=1), device="cuda", seed=1, watch=watched(dict))

    assert trial.cells["a", CASE].state == "measured"


@pytest.mark.parametrize("calls", [10**8, 0, None, "many"])
def test_a_graph_holds_no_more_calls_than_the_case_allows(calls):
    prepared = {"state": "measured", "reason": None, "calls": calls}
    stage = Stage(b_prepare=prepared)
    contenders = [stage.contender("a"), stage.contender("b")]

    cell = run_trial(contenders, [CASE], Pace(rounds=1), device="cuda", seed=1, watch=watched(dict)).cells["b", CASE]

    assert (cell.state, cell.samples) == ("invalid", [])
    assert cell.reason == f"reports {calls} calls in its graph instead of 1 to 768"


def test_a_lost_contender_is_restarted_for_the_next_case():
    stage = Stage(b_turn=[{"samples": [1.0]}, ContenderLost("killed by SIGSEGV")])

    trial = stage.trial("a", "b", cases=[CASE, OTHER])

    assert trial.cells["b", CASE].state == "failed"
    assert trial.cells["b", CASE].reason == "killed by SIGSEGV"
    assert trial.cells["a", CASE].samples == [2.0] * 6
    assert trial.cells["b", OTHER].state == "measured"
    assert stage.started == {"a": 1, "b": 2}


def test_a_measured_case_restores_the_restarts():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 14)]
    lost, measured = ContenderLost("killed by SIGSEGV"), prepared()
    stage = Stage(b_prepare=[lost, measured, lost, lost, lost, measured, lost, measured, lost, lost, lost, lost])

    trial = stage.trial("a", "b", cases=cases, pace=Pace(rounds=1))

    states = [trial.cells["b", case].state for case in cases]
    assert states == ["failed", "measured", *["failed"] * 3, "measured", "failed", "measured", *["failed"] * 5]
    assert trial.cells["b", cases[-1]].reason == "not started again after 4 processes were lost: killed by SIGSEGV"


def test_three_restarts_are_enough():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 7)]
    stage = Stage(b_prepare=[ContenderLost("killed by SIGSEGV")] * 9)

    trial = stage.trial("a", "b", cases=cases)

    assert stage.started == {"a": 1, "b": 4}
    assert {trial.cells["b", case].state for case in cases} == {"failed"}
    assert trial.cells["b", cases[-1]].reason == "not started again after 4 processes were lost: killed by SIGSEGV"
    assert all(trial.cells["a", case].state == "measured" for case in cases)


@pytest.mark.parametrize("turns", [1, 3, 6])
def test_a_contender_that_cannot_be_frozen_after_its_turn_ends_only_its_case(turns):
    stage = Stage()
    stage.cpu = {"a": 0.0, "b": 0.0}

    def note(message: Mapping[str, Any]) -> None:
        if stage.said[-1] == ("b", "turn") and stage.turns().count("b") == turns:
            stage.unstoppable = {"b"}

    stage.note = note
    trial = stage.trial("a", "b", cases=[CASE, OTHER])

    cell = trial.cells["b", CASE]
    assert (cell.state, cell.reason, cell.samples) == ("failed", "could not be stopped", [])
    assert {trial.cells["a", case].state for case in (CASE, OTHER)} == {trial.cells["b", OTHER].state} == {"measured"}


def test_a_contender_whose_work_does_not_end_after_its_last_turn_is_not_measured(monkeypatch):
    monkeypatch.setattr("kernels.arena.session.MAX_LEFT_S", 0.0)
    stage = Stage(b_idle=[{"waited_us": 5.0}, *[{"waited_us": 1e6}] * 9], a_prepare=prepared(), b_prepare=prepared())
    target = Contender("a", Role.HEAD, protocol.targets_own("norms", {}), stage.contender("a").start)

    trial = run_trial(
        [target, stage.contender("b")], [CASE], Pace(rounds=1), device="cuda", seed=1, watch=watched(dict)
    )

    assert trial.cells["a", CASE].state == "failed"
    assert trial.cells["a", CASE].reason == "its work on the device did not end after its turn"
    assert trial.cells["b", CASE].state == "measured"


def test_a_broken_process_is_replaced():
    stage = Stage(b_prepare=[{"state": "failed", "reason": "CUDA error: misaligned address", "broken": True}])

    trial = stage.trial("a", "b", cases=[CASE, OTHER])

    assert trial.cells["b", CASE].reason == "CUDA error: misaligned address"
    assert trial.cells["b", OTHER].state == "measured"


def test_a_contender_that_cannot_run_is_not_restarted():
    stage = Stage(b_start={"ready": False, "reason": "cannot import torch"})

    trial = stage.trial("a", "b", cases=[CASE, OTHER])

    assert [trial.cells["b", case].reason for case in (CASE, OTHER)] == ["cannot import torch"] * 2
    assert stage.started["b"] == 1


# -- ending early ----------------------------------------------------------------------------------------------------


class Stopped(Exception): ...


def test_no_case_begins_after_the_deadline_and_what_was_measured_stays(monkeypatch):
    stage, begun, deadline = Stage(), list[str](), time.monotonic() + 3600

    def slow(now: str) -> None:
        begun.append(now)
        monkeypatch.setattr(time, "monotonic", lambda: deadline + 1)

    trial = stage.trial("a", "b", cases=(CASE, OTHER), progress=slow, deadline=deadline)
    assert [len(trial.cells[label, CASE].samples) for label in "ab"] == [6, 6]
    assert {case for _, case in trial.cells} == {CASE}
    assert begun == [f"1/2 {CASE}"]


@pytest.mark.parametrize("after", [1, 5, 12])
def test_what_keep_going_raises_ends_everything(after):
    stage, calls = Stage(), iter(range(100))

    def keep_going() -> None:
        if next(calls) == after:
            raise Stopped

    with pytest.raises(Stopped):
        stage.trial("a", "b", keep_going=keep_going)

    assert stage.open == {"a": 0, "b": 0}


def test_out_of_time_gives_back_what_was_measured_before():
    stage, late = Stage(), [False]

    def keep_going() -> None:
        if late[0]:
            raise OutOfTime

    def progress(now: str) -> None:
        late[0] = now.startswith("2/2")

    trial = stage.trial("a", "b", cases=(CASE, OTHER), keep_going=keep_going, progress=progress)

    assert {case for _, case in trial.cells} == {CASE}
    assert stage.open == {"a": 0, "b": 0}


def test_all_contenders_are_closed_at_the_end():
    stage = Stage()
    stage.trial("a", "b")
    assert stage.open == {"a": 0, "b": 0}


# -- throttling ------------------------------------------------------------------------------------------------------


def throttled_at(*readings: int):
    """A device that is too hot whenever it is read for one of these times (the first two are before the rounds)."""
    count = iter(range(10_000))
    return watched(
        lambda: {"gpu": {"sm_mhz": 1980, "throttle": ["hw_thermal"] if next(count) in readings else ["sw_power_cap"]}}
    )


def watched(read: Callable[[], dict[str, Any]]) -> Watch:
    return Watch(read, read)


def test_a_throttled_round_is_dropped_for_all_and_repeated():
    trial = Stage().trial("a", "b", pace=Pace(rounds=4), watch=throttled_at(3))

    for label in "ab":
        assert trial.cells[label, CASE].samples == [2.0, None, 2.0, 2.0, 2.0]
    assert [note["reasons"] for note in trial.telemetry if "reasons" in note] == [["hw_thermal"]]


def slowed_ns(*readings):
    """A device whose reasons are gone whenever it is read, and whose counters say how long it was slowed down."""
    counters = iter(readings)
    return watched(lambda: {"gpu": {"throttle": ["idle"], "slowed_ns": next(counters)}})


def test_a_round_in_which_the_heat_slowed_the_device_is_repeated():
    heat = [{"power": number, "thermal": ns} for number, ns in enumerate((5, 5, 5, 9, 9, 9))]  # the last one is "after"

    trial = Stage().trial("a", pace=Pace(rounds=2), watch=slowed_ns(*heat))

    assert trial.cells["a", CASE].samples == [2.0, None, 2.0]
    assert [note["reasons"] for note in trial.telemetry if "reasons" in note] == [["thermal_counter"]]


def test_repeating_has_a_bound():
    trial = Stage().trial("a", pace=Pace(rounds=4), watch=throttled_at(*range(2, 100)))

    assert trial.cells["a", CASE].samples == [None] * 6


@pytest.mark.parametrize(
    ("metric", "samples"),
    [("compile", [None, 2.0]), ("memory", [2.0]), ("recompiles", [2.0]), ("breaks", [2.0]), ("kernels", [2.0])],
)
def test_a_single_round_is_repeated_if_clocks_matter_to_it_and_else_kept(metric, samples):
    case = Case.parse(f"rmsnorm.fwd.8x8.fp32.{metric}")
    trial = Stage().trial("a", "b", cases=[case], watch=throttled_at(2))

    assert [trial.cells[label, case].samples for label in "ab"] == [samples] * 2
    assert len([note for note in trial.telemetry if "reasons" in note]) == len(samples) - 1


# -- metrics, together and alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "turns", "samples"),
    [("", 6, (1, 3)), (".call", 6, (1, 3)), (".compile", 1, (0, 1)), (".memory", 1, (0, 1))],
)
def test_each_metric_has_a_pace_of_its_own(metric, turns, samples):
    stage, case = Stage(), Case.parse(f"rmsnorm.fwd.8x8.fp32{metric}")

    stage.trial("a", cases=[case], pace=Pace(rounds=6, warm=1, timed=3))

    asked = [message for _, message in stage.messages if message["do"] == "turn"]
    assert len(asked) == turns
    assert {(message["warm"], message["timed"]) for message in asked} == {samples}


class Together(Stage):
    """Notes how many are getting ready at once; each waits a while for `expected` others, also on a busy machine."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.ready_at_once: list[int] = []
        self.getting_ready = 0

    def note(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "prepare":
            self.getting_ready += 1
            until = time.monotonic() + 0.05 + 5 * (self.expected > 1)
            while time.monotonic() < until and not 1 < self.getting_ready >= self.expected:
                time.sleep(0.005)
            time.sleep(0.05)  # until the others have seen it as well
            self.ready_at_once.append(self.getting_ready)
            self.getting_ready -= 1


GPU = {"kind": "cuda", "memory_bytes": 140 << 30, "uuid": None}


def on_gpu(stage: Stage, *labels: str, case: Case = CASE, **tuned: bool) -> None:
    for label in labels:
        device = {"ready": True, "stack": {}, "device": GPU, "tunes": tuned.get(label, False)}
        stage.answers[label, "start"] = device
    contenders = [stage.contender(label) for label in labels]
    run_trial(contenders, [case], Pace(rounds=1), device="cuda", seed=1, watch=watched(dict))


@pytest.mark.parametrize(("text", "together"), [("fwd.8x8.fp32", 3), ("fwd.8x8.fp32.compile", 1)])
def test_on_a_gpu_contenders_prepare_together_unless_the_preparation_is_timed(text, together):
    stage = Together(together)
    on_gpu(stage, "a", "b", "c", case=Case.parse(f"rmsnorm.{text}"))
    assert max(stage.ready_at_once) == together


def test_a_contender_that_times_candidates_prepares_alone():
    stage = Together(1)
    on_gpu(stage, "a", "b", "c", b=True)
    assert max(stage.ready_at_once) == 2


NEEDS_DEVICE = {"state": "failed", "reason": "it times candidates on the device", "needs_device": True}


def test_a_contender_that_needs_the_device_prepares_again_after_the_others():
    tuned = {**prepared(), "tuned": {"norm_kernel": "BLOCK=1024 num_warps=4"}}
    stage = Stage(b_prepare=[NEEDS_DEVICE, tuned])
    trial = stage.trial("a", "b", "c")

    asked = [(label, message["alone"]) for label, message in stage.messages if message["do"] == "prepare"]
    assert sorted(asked[:3]) == [("a", False), ("b", False), ("c", False)]
    assert asked[3:] == [("b", True)]
    assert trial.cells["b", CASE].state == "measured"
    assert trial.cells["b", CASE].tuned == {"norm_kernel": "BLOCK=1024 num_warps=4"}
    assert trial.cells["a", CASE].tuned == {}


def test_a_contender_that_always_needs_the_device_is_not_measured():
    stage = Stage(b_prepare=NEEDS_DEVICE)
    trial = stage.trial("a", "b")

    assert (trial.cells["b", CASE].state, trial.cells["a", CASE].state) == ("failed", "measured")
    assert stage.said.count(("b", "prepare")) == 2


def test_a_stable_choice_is_reused_in_the_trials_of_its_session():
    tuned = {**prepared(), "tuned": {"norm_kernel": "BLOCK=64"}}
    stage, tunings = Stage(head_prepare=tuned, parent_prepare=tuned, control_prepare=tuned), Tunings()
    contenders = [replace(stage.contender(str(role)), role=role) for role in (Role.HEAD, Role.PARENT, Role.CONTROL)]

    def reused(**options: Any) -> Counter[tuple[str, str]]:
        """How often each contender was asked to reuse it, at each case."""
        stage.messages.clear()
        run_trials(contenders, [CASE, OTHER], Pace(rounds=1), device="cpu", **options)
        asked = [(label, message) for label, message in stage.messages if message["do"] == "prepare"]
        return Counter((label, message["case"]) for label, message in asked if message["reuse"] == tuned["tuned"])

    assert reused(seeds=[1], tunings=tunings) == {}
    # The second and the third trial run side by side, each at another case: at each the head tunes in one of them.
    times = {"head": 1, "parent": 2, "control": 2}
    assert reused(seeds=[2, 3], tunings=tunings) == {
        (label, str(case)): count for label, count in times.items() for case in (CASE, OTHER)
    }
    assert reused(seeds=[4]) == {}


def test_a_choice_that_was_reused_is_no_further_tuning():
    tuned = {**prepared(), "tuned": {"norm_kernel": "BLOCK=64"}}
    stage, tunings = Stage(a_prepare=[{**tuned, "reused": True}] * 2 + [tuned] * 2), Tunings()
    cells = [stage.trial("a", tunings=tunings).cells["a", CASE] for _ in range(3)]

    assert [cell.reused for cell in cells] == [True, True, False]
    assert not tunings.stable(stage.contender("a"), CASE)


def test_each_contender_gets_a_share_of_the_memory():
    stage = Stage()
    on_gpu(stage, "a", "b", "c", "d")
    shares = [message["memory"] for _, message in stage.messages if message["do"] == "start"]
    assert shares == [pytest.approx(0.95 / 4)] * 4


# -- what the device can do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("thorough", "asked"), [(True, 1), (False, 0)])
def test_ceilings_are_measured_once_by_a_trusted_contender(thorough, asked):
    stage = Stage(a_ceilings={"ceilings": {"copy_gb_s": 9e9}}, b_ceilings={"ceilings": {"copy_gb_s": 4250.0, "x": "y"}})
    target = Contender("a", Role.HEAD, protocol.targets_own("norms", {}), stage.contender("a").start)

    trial = run_trial(
        [target, stage.contender("b")], [CASE], Pace(rounds=1), device="cuda", seed=1, thorough=thorough,
        watch=watched(dict),
    )  # fmt: skip

    assert [label for label, said in stage.said if said == "ceilings"] == ["b"] * asked
    assert trial.ceilings == ({"copy_gb_s": 4250.0} if thorough else {})


def test_the_clock_of_the_device_is_kept_with_each_case():
    trial = Stage().trial("a", pace=Pace(rounds=2), watch=throttled_at())
    assert trial.cells["a", CASE].extra["sm_mhz"] == 1980


def test_a_clock_that_disagrees_with_the_drivers_is_invalid():
    """Each turn takes 60 ms and reports 30 us."""
    stage = Stage()
    stage.slow["b"] = 0.06

    trial = stage.trial("a", "b")

    assert trial.cells["a", CASE].state == "measured"
    assert trial.cells["b", CASE].state == "invalid"
    assert trial.cells["b", CASE].reason.startswith("its clock disagrees with the driver's: ")


def test_late_answers_of_an_honest_contender_ask_for_as_many_rounds_again():
    """Most of its first answers come late, as on a busy host, and none of the further ones."""

    def late():
        time.sleep(0.06)
        return {"samples": [3.0, 1.0, 2.0]}

    stage = Stage(b_turn=[late, late])
    trial = stage.trial("a", "b", pace=Pace(rounds=3))

    assert [trial.cells[label, CASE].state for label in "ab"] == ["measured", "measured"]
    assert [len(trial.cells[label, CASE].samples) for label in "ab"] == [6, 6]
    [asked] = [one for one in trial.telemetry if one["when"] == "asked for more rounds"]
    assert asked["reasons"][0].startswith("its clock disagrees with the driver's: ")


# -- started ahead ---------------------------------------------------------------------------------------------------


def test_the_next_trial_finds_its_processes_started_and_ready():
    stage = Stage()
    pool = ProcessPool("cpu", 2)
    contenders = [stage.contender("a"), stage.contender("b")]
    started: list[int] = []

    for number in range(2):
        run_trial(
            contenders, [CASE], Pace(rounds=1), device="cpu", seed=number, pool=pool,
            once_open=lambda _: pool.fill(contenders), progress=lambda _: started.append(stage.started.total()),
        )  # fmt: skip

    assert started == [4, 6]  # two at work and two waiting, then those two at work and two more waiting
    pool.close()
    assert Counter(asked for _, asked in stage.said)["start"] == 6
    assert stage.open == {"a": 0, "b": 0}


def test_a_lost_contender_is_replaced_by_a_process_that_waits():
    stage = Stage(b_prepare=[ContenderLost("killed by SIGSEGV")])
    pool = ProcessPool("cpu", 2)
    contenders = [stage.contender("a"), stage.contender("b")]

    trial = run_trial(
        contenders, [CASE, OTHER], Pace(rounds=1), device="cpu", seed=1, pool=pool,
        once_open=lambda _: pool.fill(contenders),
    )  # fmt: skip
    pool.close()

    assert trial.cells["b", OTHER].state == "measured"
    assert stage.started == {"a": 2, "b": 2}
    assert stage.open == {"a": 0, "b": 0}


def test_a_process_may_wait_for_long_but_a_trial_waits_for_it_only_up_to_its_limit():
    """It waits frozen, so that the time since it was asked says nothing."""
    stage = Stage(b_start=lambda: time.sleep(0.3))
    pool = ProcessPool("cpu", 2)
    contenders = [stage.contender("a"), stage.contender("b")]
    pool.fill(contenders)

    pace = Pace(rounds=1, start_limit_s=0.05)
    trial = run_trial(contenders, [CASE], pace, device="cpu", seed=1, pool=pool)
    pool.close()

    assert trial.cells["a", CASE].state == "measured"
    assert trial.cells["b", CASE].reason == "no answer to 'start' in 0.05 s"
    assert stage.limits["start"] == {float("inf")}


# -- side by side ----------------------------------------------------------------------------------------------------


def test_trials_side_by_side_prepare_together_and_take_turns_one_after_the_other():
    stage = Together(6)
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in (8, 16, 32)]

    trials = run_trials(
        [stage.contender("a"), stage.contender("b")], cases, Pace(rounds=4), device="cpu", seeds=[1, 2, 3]
    )

    assert max(stage.ready_at_once) == 6
    assert [set(trial.cells) for trial in trials] == [{(label, case) for label in "ab" for case in cases}] * 3
    assert all(len(cell.samples) == 4 for trial in trials for cell in trial.cells.values())
    assert stage.started == {"a": 3, "b": 3}
    assert stage.open == {"a": 0, "b": 0}


def test_each_trial_begins_at_another_case_with_its_own_seed_and_only_the_first_is_thorough():
    stage = Stage()
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in (8, 16, 32)]

    run_trials([stage.contender("a")], cases, Pace(rounds=1), device="cpu", seeds=[7, 8, 9])

    asked = [message for _, message in stage.messages if message["do"] == "prepare"]
    firsts = {message["seed"]: (message["case"], message["thorough"]) for message in reversed(asked)}
    assert firsts == {7: (str(cases[0]), True), 8: (str(cases[1]), False), 9: (str(cases[2]), False)}
    assert Counter(message["case"] for message in asked) == {str(case): 3 for case in cases}


def test_the_seconds_of_what_trials_do_together_are_shared_among_them():
    stage = Together(2)
    began = time.monotonic()
    trials = run_trials([stage.contender("a")], [CASE], Pace(rounds=1), device="cpu", seeds=[1, 2])
    spent = [sum(seconds for what, seconds in trial.seconds.items() if what != "timed") for trial in trials]
    assert 0.05 <= sum(spent) <= time.monotonic() - began
    assert [trial.seconds["prepare"] for trial in trials] == [pytest.approx(trials[0].seconds["prepare"])] * 2


@pytest.mark.parametrize(("gib", "at_once"), [(80, 2), (1, 1)])
def test_trials_whose_tensors_do_not_fit_together_prepare_one_after_the_other(gib, at_once):
    stage = Together(at_once)

    trials = run_trials(
        [stage.contender("a")], [Case.parse("rmsnorm.fwd.8192x8192.bf16")], Pace(rounds=1), device="cuda",
        seeds=[1, 2], watch=watched(dict), memory=gib << 30,
    )  # fmt: skip

    assert max(stage.ready_at_once) == at_once
    assert all(cell.state == "measured" for trial in trials for cell in trial.cells.values())


class Busy(Stage):
    """The device is busy until the process of a contender ends."""

    def __init__(self, culprit: str) -> None:
        super().__init__()
        self.culprit = culprit

    def note(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "idle":
            self.answers["witness", "idle"] = {"waited_us": 900.0 if self.open[self.culprit] else 5.0}


@pytest.mark.parametrize("waits", [False, True])
def test_who_keeps_the_device_busy_before_the_turns_is_ended(monkeypatch, waits):
    monkeypatch.setattr("kernels.arena.session.MAX_LEFT_S", 0.01)
    stage = Busy("busy")
    pool = ProcessPool("cuda", 3)
    targets = [
        Contender(label, role, protocol.targets_own("norms", {}), stage.contender(label).start)
        for label, role in (("parent", Role.PARENT), ("busy", Role.HEAD))
    ]
    if waits:
        pool.fill([targets.pop()])

    trial = run_trial(
        [stage.contender("witness"), *targets], [CASE], Pace(rounds=1), device="cuda", seed=1, watch=watched(dict),
        pool=pool,
    )  # fmt: skip
    pool.close()

    states = {label: cell.state for (label, _), cell in trial.cells.items()}
    assert states["witness"] == "measured"
    assert stage.open["busy"] == 0
    if waits:
        assert "busy" not in states
        assert states["parent"] != "failed"
    else:
        assert states["busy"] == "failed"


# -- processes that end ----------------------------------------------------------------------------------------------


def test_failed_captures_cost_more_than_three_processes_before_it_is_enough():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 9)]
    broken = {"state": "failed", "reason": "cannot be captured", "broken": True}
    stage = Stage(b_prepare=[broken] * 6)

    trial = stage.trial("a", "b", cases=cases)

    assert [trial.cells["b", case].state for case in cases] == ["failed"] * 6 + ["measured"] * 2


def test_one_lost_while_it_waited_costs_neither_a_case_nor_its_hope():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 5)]
    stage = Stage(
        b_prepare=[ContenderLost("killed by SIGSEGV")],
        b_start=[{"ready": True}, ContenderLost("closed"), {"ready": True}],
    )

    trial = stage.trial("a", "b", cases=cases)

    assert [trial.cells["b", case].state for case in cases] == ["failed", "failed", "measured", "measured"]


def test_two_in_a_row_that_never_say_a_word_are_enough():
    cases = [Case.parse(f"rmsnorm.fwd.{rows}x8.fp32") for rows in range(1, 5)]
    stage = Stage(b_start=[ContenderLost("closed")] * 9)

    trial = stage.trial("a", "b", cases=cases)

    assert {trial.cells["b", case].reason for case in cases} == {"closed"}
    assert stage.started["b"] == 2


def test_the_gpu_that_is_watched_is_not_the_targets_to_say(monkeypatch):
    seen: list[str | None] = []
    monkeypatch.setattr("kernels.arena.telemetry.watch", lambda uuid: seen.append(uuid) or watched(dict))
    for seed in range(6):
        stage = Stage(a_start={"ready": True, "device": {"uuid": "its own"}}, b_start={"ready": True, "device": GPU})
        target = Contender("a", Role.HEAD, protocol.targets_own("norms", {}), stage.contender("a").start)
        for uuid in (None, "the worker's"):
            run_trial([target, stage.contender("b")], [], Pace(), device="cuda", seed=seed, uuid=uuid)
    assert set(seen) == {None, "the worker's"}


# -- judging the outputs of turns --------------------------------------------------------------------------------------


class Bench:
    """A judge and its examination: `verdicts` maps labels to reasons, or is the exception that ends it."""

    trouble = None
    begun = False

    def __init__(self, verdicts: Mapping[str, str] | Exception) -> None:
        self._verdicts = verdicts

    def begin(self) -> None:
        self.begun = True

    def examination(self, *_: Any) -> "Bench":
        return self

    def add(self, *_: Any) -> None: ...

    def draw_numbers(self, *, columns: bool = False, once: bool = False) -> None: ...

    def give_numbers(self, *_: Any) -> None: ...

    def take_outputs(self, *_: Any) -> None: ...

    def restore(self, *_: Any) -> None: ...

    def verdicts(self) -> Mapping[str, str]:
        if isinstance(self._verdicts, Exception):
            raise self._verdicts
        return self._verdicts


@pytest.mark.parametrize(
    ("verdicts", "states"),
    [
        ({}, {"a": ("measured", None), "b": ("measured", None)}),
        ({"a": "y is wrong"}, {"a": ("invalid", "y is wrong"), "b": ("measured", None)}),
        (
            ContenderLost("killed by SIGKILL"),
            dict.fromkeys("ab", ("failed", "its outputs cannot be judged: killed by SIGKILL")),
        ),
    ],
)
def test_outputs_that_are_wrong_or_not_judged_are_no_measurement(verdicts: Any, states: dict[str, Any]) -> None:
    trial = Stage().trial("a", "b", judge=Bench(verdicts))
    assert {label: (cell.state, cell.reason) for (label, _), cell in trial.cells.items()} == states


def test_the_judge_starts_before_the_contenders() -> None:
    judge = Bench({})

    class Waiting(Stage):
        def note(self, message: Mapping[str, Any]) -> None:
            assert judge.begun

    Waiting().trial("a", judge=judge)


def test_no_judge_starts_where_nothing_is_judged() -> None:
    judge = Bench({})
    Stage().trial("a", judge=judge, cases=(replace(CASE, metric=Metric.MEMORY),))
    assert not judge.begun


def test_a_judge_that_cannot_be_started_is_tried_once() -> None:
    def start() -> Actor:
        raise OSError("no room left")

    judge = Judge(Contender("judge", Role.SOTA, protocol.built_in("eager"), start))
    stage = Stage()

    trials = [stage.trial("a", judge=judge) for _ in range(2)]

    assert judge.trouble == "outputs of turns are not judged: no room left"
    assert [trial.cells["a", CASE].state for trial in trials] == ["measured"] * 2
    assert all({"when": "judge", "reason": judge.trouble} in trial.telemetry for trial in trials)
