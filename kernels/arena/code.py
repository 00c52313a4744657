"""Ask contenders for the code of the cases at which the revisions of a session compiled something else.  Torch-free."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cases import AnyCase, Metric, Role
from . import protocol
from .pool import ContenderProcess, ContenderProcesses, mapping

OF_TARGET = (Role.HEAD, Role.PARENT, Role.LAST_GOOD, Role.PINNED)
KERNEL_KINDS = ("ttgir", "ptx", "sass")
TRACE = "trace"  # of a few calls, `kernels.facts.timeline`
MAX_KERNELS = 8  # of a call
MAX_NAME = 200
ANSWER_S = 30.0  # to disassemble a kernel takes a quarter of a second
MAX_S = 120.0  # of a trial
MAX_CHARACTERS = 32 << 20  # of a trial

Place = tuple[int, str, str]  # which kernel of the call, its name, the kind of text


@dataclass(frozen=True)
class CompiledText:
    """A text of one kernel of a contender, of all the code that Inductor generated, or of the trace of its call."""

    number: int
    kernel: str
    kind: str
    text: str


class CodeReader:
    """Reads the texts of one trial, within its limits.  A process that is lost in this is not asked again."""

    def __init__(self, processes: ContenderProcesses) -> None:
        self._processes = processes
        self._left_s, self._left = MAX_S, MAX_CHARACTERS
        self._lost: set[ContenderProcess] = set()

    def read(
        self, case: AnyCase, facts: Mapping[ContenderProcess, Mapping[str, Any]]
    ) -> dict[ContenderProcess, tuple[CompiledText, ...]]:
        """The texts of those contenders whose code is not that of the others; `facts` are of the measured ones."""
        if case.metric is not Metric.KERNEL:  # a case of another metric has the kernels of the plain case
            return {}
        wanted = differing({process: one for process, one in facts.items() if process.contender.role in OF_TARGET})
        left = {process: places(facts[process])[::-1] for process in wanted}
        texts: dict[ContenderProcess, list[CompiledText]] = {process: [] for process in wanted}
        while self._left_s > 0 and self._left > 0:
            asked = {process: some.pop() for process, some in left.items() if some and process not in self._lost}
            if not asked:
                break
            began = time.monotonic()
            requests = {process: protocol.texts(case, number, kind) for process, (number, _, kind) in asked.items()}
            answers = self._processes.ask_all(requests, ANSWER_S)
            self._left_s -= time.monotonic() - began
            for process, place in asked.items():
                if process.channel is None:
                    self._lost.add(process)
                text = answers.get(process, {}).get("text")
                if isinstance(text, str) and text.strip():
                    self._left -= len(text)
                    texts[process].append(CompiledText(*place, text))
        return {process: tuple(some) for process, some in texts.items()}


def differing(facts: Mapping[ContenderProcess, Mapping[str, Any]]) -> list[ContenderProcess]:
    """The heads whose code differs from that of a baseline of the same provider, and these baselines."""
    found: dict[ContenderProcess, None] = {}
    for head, now in facts.items():
        if head.contender.role is not Role.HEAD:
            continue
        for other, before in facts.items():
            same_provider = other.contender.provider["name"] == head.contender.provider["name"]
            if other is not head and same_provider and _code(now) != _code(before):
                found |= {head: None, other: None}
    return list(found)


def places(facts: Mapping[str, Any]) -> list[Place]:
    """The texts that a contender has of its code, by its facts."""
    kernels = facts.get("triton")
    listed = kernels[:MAX_KERNELS] if isinstance(kernels, list) else []
    found: list[Place] = [(0, "", "generated")] if facts.get("kind") == "generated" else []
    for number, kernel in enumerate(listed):
        name = str(mapping(kernel).get("name") or "")[:MAX_NAME]
        found += [(number, name, kind) for kind in KERNEL_KINDS]
    return [*found, (0, "", TRACE)]


def _code(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    kernels = facts.get("triton")
    machine = [mapping(one).get("sass") for one in kernels] if isinstance(kernels, list) else []
    return facts.get("code"), machine
