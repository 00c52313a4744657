"""Trials of models: the arms take turns in processes of their own, as contenders do in the arena.  Torch-free."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from ...arena import protocol
from ...arena.channel import Channel, ContenderLost
from ...arena.pool import RESTARTS
from ...arena.session import Pace, order
from ...errors import FAILED, MEASURED
from ..trials import open_process
from .records import Note, Record
from .study import Arm, StudyStep

SERVER = f"{__package__}.arms.server"
_PREPARE = {"do": "prepare"}
_IMPORTS = Path(__file__).parents[3]  # the folder that this package was imported from, which may be a link to it


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
) -> None:
    """Measure models with every arm of a step, in fresh processes.  `keep` gets the records of each model.

    `device` is "cpu" or "cuda".  Arms prepare one after the other, since preparing may time candidates, or at the same
    time if the step says so.  No arm does anything while another has its turn.  An arm whose process was lost at a
    model gets another one at the next, at most RESTARTS times.
    """
    contestants = list(step.contestants)
    random.Random(seed).shuffle(contestants)  # noqa: S311  an order, not a secret
    processes = {arm.name: _Process(arm, scratch) for arm in contestants}
    try:
        notes = _start(list(processes.values()), device, step.pace)
        if trial == 0 and device == "cuda":
            notes += processes[step.arms[0].name].ceilings(step.pace)
        keep([], notes)
        for number, case in enumerate(cases):
            keep_going()
            _start([one for one in processes.values() if one.may_start_again], device, step.pace)
            found = _measured(step, trial, case, processes, seed + number, keep_going)
            keep(found, [])
    finally:
        for process in processes.values():
            process.close()


def _start(processes: Sequence["_Process"], device: str, pace: Pace) -> list[Note]:
    """Start processes at the same time.  All are opened first, by this thread: an interrupt leaves none behind."""
    for process in processes:
        process.open()
    with ThreadPoolExecutor(max_workers=max(1, len(processes))) as pool:
        return list(pool.map(lambda process: process.start(device, pace), processes))


def _measured(
    step: StudyStep,
    trial: int,
    case: str,
    processes: Mapping[str, "_Process"],
    seed: int,
    keep_going: Callable[[], None],
) -> list[Record]:
    pace = step.pace
    answers = _all_answers(
        ((one, {**_PREPARE, "case": case, "spec": dict(one.arm.spec), "seed": seed}) for one in processes.values()),
        pace.prepare_limit_s,
        together=step.prepare_together,
    )
    samples: dict[str, list[float | None]] = {name: [] for name, one in answers.items() if one.get("state") == MEASURED}
    for round_number in range(pace.rounds):
        keep_going()
        for name in order(list(samples), round_number, seed):
            answer = processes[name].ask(protocol.turn(pace.warm, pace.timed), pace.turn_limit_s)
            if "samples" in answer:
                samples[name].append(round(median(answer["samples"]), 4))
            else:
                answers[name] = answer
        samples = {name: taken for name, taken in samples.items() if answers[name].get("state") == MEASURED}
    for name in samples:  # one after the other: references of all arms at once might not fit into a GPU's memory
        checked = processes[name].ask(protocol.CHECK, pace.prepare_limit_s)
        if checked.get("state") != MEASURED:
            answers[name] |= checked
    _all_answers(((one, protocol.FREE) for one in processes.values()), pace.turn_limit_s, together=True)
    return [_record(step, trial, case, arm, answers[arm.name], samples.get(arm.name, [])) for arm in step.contestants]


def _all_answers(
    requests: Iterable[tuple["_Process", Mapping[str, Any]]], limit_s: float, *, together: bool
) -> dict[str, dict[str, Any]]:
    """The answers of processes by the names of their arms: at the same time, or one after the other."""
    asked = list(requests)
    with ThreadPoolExecutor(max_workers=len(asked) if together and asked else 1) as pool:
        found = pool.map(lambda request: request[0].ask(request[1], limit_s), asked)
    return {one.arm.name: answer for (one, _), answer in zip(asked, found, strict=True)}


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

    def __init__(self, arm: Arm, scratch: Path) -> None:
        self.arm = arm
        self._scratch = scratch
        self._channel: Channel | None = None
        self._lost: str | None = None
        self._starts = 0

    @property
    def may_start_again(self) -> bool:
        """Was it lost?  The next model may not be the one that ended it."""
        return self._lost is not None and self._starts <= RESTARTS

    def open(self) -> None:
        self.close()
        self._starts += 1
        log, caches = self._scratch / f"{self.arm.name}.log", self._scratch / f"caches-{self.arm.name}"
        self._channel = open_process(["-m", SERVER], log, _IMPORTS, caches=caches)
        self._lost = None

    def start(self, device: str, pace: Pace) -> Note:
        threads = 1 if device == "cpu" else 4
        answer = self.ask({"do": "start", "device": device, "threads": threads}, pace.start_limit_s)
        return Note("stack", {"arm": self.arm.name, **answer.get("stack", {}), "device": answer.get("device", {})})

    def ceilings(self, pace: Pace) -> list[Note]:
        found = self.ask(protocol.CEILINGS, pace.prepare_limit_s).get("ceilings")
        return [Note("ceilings", found)] if found else []

    def ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if self._lost is not None or self._channel is None:
            return {"state": FAILED, "reason": self._lost or "not started"}
        try:
            return self._channel.ask(message, limit_s)
        except ContenderLost as lost:
            self._lost = str(lost)
            return {"state": FAILED, "reason": self._lost}

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
