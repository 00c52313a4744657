"""Trials of models: the arms take turns in processes of their own, as contenders do in the arena.  Torch-free."""

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.kernels.trials import IMPORTS, open_process
from kernels.arena import protocol, telemetry
from kernels.arena.channel import Channel, ContenderLost
from kernels.arena.pool import KEEP_GOING_EVERY_S, RESTARTS
from kernels.arena.session import Pace, order
from kernels.errors import FAILED, MEASURED
from kernels.studies.records import Note, Record
from kernels.studies.study import Arm, StudyStep

SERVER = f"{__package__}.arms.server"
LAUNCH = {"do": "launch"}  # from now on, instead of replaying a CUDA graph
MIN_COMPILE_THREADS = 2  # of an arm: with a single one Inductor compiles without processes, one kernel after another


def run_model_trial(
    step: StudyStep,
    trial: int,
    cases: Sequence[str],
    *,
    device: str,
    seed: int,
    scratch: Path,
    keep: Callable[[Sequence[Record], Sequence[Note]], None],
    keep_going: Callable[[], None] = lambda: None,
    watch: telemetry.Watch | None = None,
) -> None:
    """Measure models with every arm of a step, in fresh processes.  `keep` gets the records of each model.

    `device` is "cpu" or "cuda".  Arms prepare one after the other, since preparing may time candidates, or at the same
    time if the step says so; each of these begins with the next model once its results are checked.  No arm does
    anything while another has its turn.  An arm whose process was lost at a model gets another one at the next, at most
    RESTARTS times, and always if the process answered that it is broken.  All arms of a model replay a CUDA graph, or
    none.  A round in which the GPU was throttled is dropped for all arms and repeated, up to half as many again.
    `watch` reads the GPU, by default with NVML.  `keep_going` is called between turns and about every second of a
    longer wait; its exceptions end the trial and all processes.
    """
    contestants = list(step.contestants)
    random.Random(seed).shuffle(contestants)
    threads = compile_threads(len(contestants)) if step.prepare_together else None
    arms = _Arms([_Process(arm, scratch, threads) for arm in contestants], device, step.pace, keep_going, watch)
    try:
        notes = arms.start_missing()
        if trial == 0 and device == "cuda":
            notes += arms.ceilings(step.arms[0].name)
        keep([], notes)
        requests = [_prepare_requests(case, arms.in_order, seed + number) for number, case in enumerate(cases)]
        for number, case in enumerate(cases):
            arms.start_missing()
            ahead = requests[number + 1] if step.prepare_together and number + 1 < len(cases) else {}
            keep(_measured(step, trial, case, arms, requests[number], ahead, seed + number), [])
    finally:
        arms.close()
        keep([], [Note("trial", {"seconds": arms.seconds, "dropped_rounds": arms.dropped_rounds})])


def compile_threads(arms: int) -> int:
    """Of each arm, where all compile at the same time: together at least as many as there are cores."""
    return max(MIN_COMPILE_THREADS, math.ceil(len(os.sched_getaffinity(0)) / arms))


def _prepare_requests(case: str, arms: Sequence[Arm], seed: int) -> dict[str, dict[str, Any]]:
    return {arm.name: {"do": "prepare", "case": case, "spec": dict(arm.spec), "seed": seed} for arm in arms}


def _measured(
    step: StudyStep,
    trial: int,
    case: str,
    arms: "_Arms",
    requests: Mapping[str, Mapping[str, Any]],
    ahead: Mapping[str, Mapping[str, Any]],
    seed: int,
) -> list[Record]:
    """The records of a model, which `requests` prepare; `ahead` prepare the next one after the timing."""
    pace = step.pace
    began = time.monotonic()
    answers = arms.prepare(requests, at_once=len(requests) if step.prepare_together else 1)
    _launch_all_or_none(arms, answers, pace)
    began = arms.spent("prepare", began)
    samples = _rounds(arms, answers, pace, seed)
    began = arms.spent("rounds", began)
    # One after the other: references of all arms at once might not fit into a GPU's memory.  Those without times first.
    for name in sorted(answers, key=lambda name: name in samples):
        checked = arms.ask(name, protocol.CHECK, pace.prepare_limit_s) if name in samples else {}
        if checked.get("state", MEASURED) != MEASURED:
            answers[name] |= checked
        if ahead:
            arms.prepare_ahead(name, ahead[name])
    if not ahead:
        arms.ask_all(dict.fromkeys(requests, protocol.FREE), pace.turn_limit_s)
    arms.spent("check", began)
    return [_record(step, trial, case, arm, answers[arm.name], samples.get(arm.name, [])) for arm in step.contestants]


def _rounds(arms: "_Arms", answers: dict[str, dict[str, Any]], pace: Pace, seed: int) -> dict[str, list[float | None]]:
    """The samples of the prepared arms, one of each round, None of a dropped one; `answers` get why an arm has none."""
    samples: dict[str, list[float | None]] = {name: [] for name, one in answers.items() if one.get("state") == MEASURED}
    done = number = 0
    spare = pace.rounds // 2
    arms.throttled()  # what happened while the arms prepared is of no importance
    while done < pace.rounds and samples:
        for name in order(list(samples), number, seed):
            answer = arms.ask(name, protocol.turn(pace.warm, pace.timed), pace.turn_limit_s)
            if "samples" in answer:
                samples[name].append(round(median(answer["samples"]), 4))
            else:
                answers[name] |= answer
        samples = {name: taken for name, taken in samples.items() if answers[name].get("state") == MEASURED}
        number += 1
        if arms.throttled():
            arms.dropped_rounds += 1
            samples = {name: [*taken[:-1], None] for name, taken in samples.items()}
            if spare:
                spare -= 1
                continue
        done += 1
    for name, taken in samples.items():
        if not any(taken):
            answers[name] |= {"state": FAILED, "reason": "the device was throttled in every round"}
    return {name: taken for name, taken in samples.items() if any(taken)}


def _launch_all_or_none(arms: "_Arms", answers: dict[str, dict[str, Any]], pace: Pace) -> None:
    """Let all arms launch their steps if one of them has to; `launched_with` in their facts names it.

    A replayed step does not wait for the host between its kernels, so that it cannot be compared with a launched one.
    """
    if (first := first_to_launch(answers)) is None:
        return
    why = {"graph": False, "graph_reason": answers[first]["facts"].get("graph_reason"), "launched_with": first}
    for name, answer in answers.items():
        if _replays(answer):
            facts = {key: value for key, value in answer["facts"].items() if key != "launches"}
            answers[name] = {**answer, "facts": {**facts, **why}}
            if (answered := arms.ask(name, LAUNCH, pace.turn_limit_s)).get("state", MEASURED) != MEASURED:
                answers[name] |= answered


def first_to_launch(answers: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first prepared arm whose step cannot be replayed as a CUDA graph; None if all can, or none has the choice."""
    for name, answer in answers.items():
        if answer.get("state") == MEASURED and (answer.get("facts") or {}).get("graph") is False:
            return name
    return None


def _replays(answer: Mapping[str, Any]) -> bool:
    return answer.get("state") == MEASURED and (answer.get("facts") or {}).get("graph") is True


class _Arms:
    """The processes of all arms of one trial.  `keep_going` is called while one is waited for."""

    def __init__(
        self,
        processes: Sequence["_Process"],
        device: str,
        pace: Pace,
        keep_going: Callable[[], None],
        watch: telemetry.Watch | None,
    ) -> None:
        self._processes = {one.arm.name: one for one in processes}
        self._device = device
        self._pace = pace
        self._keep_going = keep_going
        self._watch = watch
        self._reading: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.dropped_rounds = 0
        self._ahead: dict[str, Future[dict[str, Any]]] = {}  # of arms that prepare the next model
        self._pool = ThreadPoolExecutor(max(1, len(processes)), thread_name_prefix="arms")

    @property
    def in_order(self) -> list[Arm]:
        """The arms as they start and allocate."""
        return [one.arm for one in self._processes.values()]

    def start_missing(self) -> list[Note]:
        """Start those that have no process.  All are opened by this thread: an interrupt leaves none behind."""
        began = time.monotonic()
        missing = [one for one in self._processes.values() if one.may_start]
        for one in missing:
            one.open()
        request = {"do": "start", "device": self._device, "threads": 1 if self._device == "cpu" else 4}
        answers = self.ask_all({one.arm.name: request for one in missing}, self._pace.start_limit_s)
        self.spent("start", began)
        if self._watch is None and self._device == "cuda":
            uuids = (answer.get("device", {}).get("uuid") for answer in answers.values())
            self._watch = telemetry.watch(next(filter(None, uuids), None))
        return [
            Note("stack", {"arm": name, **answer.get("stack", {}), "device": answer.get("device", {})})
            for name, answer in answers.items()
        ]

    def ceilings(self, name: str) -> list[Note]:
        found = self.ask(name, protocol.CEILINGS, self._pace.prepare_limit_s).get("ceilings")
        return [Note("ceilings", found)] if found else []

    def throttled(self) -> list[str]:
        """Why what was measured since the last call does not count; empty if it does."""
        if self._watch is None:
            return []
        before, self._reading = self._reading, self._watch.glance()
        return telemetry.spoiled(self._reading, before)

    def prepare(self, requests: Mapping[str, Mapping[str, Any]], at_once: int) -> dict[str, dict[str, Any]]:
        """The answers of all arms, of which some may be preparing already.

        An arm that a failed capture of its CUDA graph broke prepares again in another process, to launch its step.
        """
        answers = self._results(self._ahead)
        self._ahead = {}
        rest = {name: request for name, request in requests.items() if name not in answers}
        answers |= self.ask_all(rest, self._pace.prepare_limit_s, at_once)
        again = {
            name: _launching(requests[name], str(answer.get("reason")))
            for name, answer in answers.items()
            if answer.get("capture_failed")
        }
        if again:
            self.start_missing()
            answers |= self.ask_all(again, self._pace.prepare_limit_s, at_once)
        return answers

    def prepare_ahead(self, name: str, request: Mapping[str, Any]) -> None:
        """Let an arm free its model and prepare the next one, without waiting.  A lost one has to start again first."""
        process = self._processes[name]

        def freed_and_prepared() -> dict[str, Any]:
            process.ask(protocol.FREE, self._pace.turn_limit_s)
            return process.ask(request, self._pace.prepare_limit_s)

        if not process.lost:
            self._ahead[name] = self._pool.submit(freed_and_prepared)

    def spent(self, what: str, began: float) -> float:
        """Count the time since `began`; returns the time now."""
        now = time.monotonic()
        self.seconds[what] = round(self.seconds.get(what, 0.0) + now - began, 2)
        return now

    def ask(self, name: str, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        self._keep_going()
        return self._processes[name].ask(message, limit_s, self._keep_going)

    def ask_all(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float, at_once: int | None = None
    ) -> dict[str, dict[str, Any]]:
        """The answers of several arms by their names, of at most `at_once` at the same time."""
        names = list(requests)
        group_size = at_once or max(1, len(names))
        answers: dict[str, dict[str, Any]] = {}
        for first in range(0, len(names), group_size):
            self._keep_going()
            answers |= self._results(
                {
                    name: self._pool.submit(self._processes[name].ask, requests[name], limit_s)
                    for name in names[first : first + group_size]
                }
            )
        return answers

    def _results(self, waiting: Mapping[str, "Future[dict[str, Any]]"]) -> dict[str, dict[str, Any]]:
        while wait(waiting.values(), timeout=KEEP_GOING_EVERY_S).not_done:
            self._keep_going()
        return {name: future.result() for name, future in waiting.items()}

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._pool.shutdown(wait=True)


def _launching(request: Mapping[str, Any], reason: str) -> dict[str, Any]:
    return {**request, "spec": {**request["spec"], "launched_because": reason}}


def _record(
    step: StudyStep, trial: int, case: str, arm: Arm, answer: Mapping[str, Any], samples: Sequence[float | None]
) -> Record:
    state = str(answer.get("state", FAILED))
    kept = tuple(samples) if state == MEASURED else ()
    facts = answer.get("facts") or {}
    return Record(
        step.name, trial, case, arm.name, state, answer.get("reason"), str(answer.get("unit", "us")), kept, facts
    )


class _Process:
    """The process of an arm; once it is lost, every answer says so until it is started again."""

    def __init__(self, arm: Arm, scratch: Path, compile_threads: int | None) -> None:
        self.arm = arm
        self._scratch = scratch
        self._compile_threads = compile_threads
        self._channel: Channel | None = None
        self._lost: str | None = None
        self._losses = 0

    @property
    def lost(self) -> bool:
        return self._lost is not None

    @property
    def may_start(self) -> bool:
        """Has it no process?  A lost one starts again, since the next model may not end it."""
        return self._channel is None or (self._lost is not None and self._losses <= RESTARTS)

    def open(self) -> None:
        self.close()
        log, caches = self._scratch / f"{self.arm.name}.log", self._scratch / f"caches-{self.arm.name}"
        self._channel = open_process(["-m", SERVER], log, IMPORTS, caches=caches, compile_threads=self._compile_threads)
        self._lost = None

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        if self._lost is not None or self._channel is None:
            return {"state": FAILED, "reason": self._lost or "not started"}
        try:
            answer = self._channel.ask(message, limit_s, meanwhile)
        except ContenderLost as lost:
            self._losses += 1
            self._lost = str(lost)
            return {"state": FAILED, "reason": self._lost}
        if answer.get("broken"):  # once for each model at most, so that it is no loss that counts
            self._lost = str(answer.get("reason"))
            self.close()
        return answer

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
