"""Facts without a GPU: what a provider's kernels compile to for an architecture, on a machine that has none."""

import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cases import Case, Direction, Metric
from .architectures import KNOWN
from .cute import Cute, dumps, prepare_environment

if TYPE_CHECKING:
    from ..trace import OperatorCall
    from .launches import Launch

COMPILED, UNSUPPORTED, FAILED = "compiled", "unsupported", "failed"
MAX_REASON = 600

# How ptxas refuses, in the message of whoever called it.
_REFUSED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
_PTXAS = re.compile(r"ptxas (?:\S+, line (?P<line>\d+); )?(?:error|fatal)\s*: (?P<said>.*)")


class Offline:
    """One provider compiled for one architecture.  torch and Triton see its device from here on, in all the process."""

    def __init__(self, spec: Mapping[str, Any], architecture: str) -> None:
        """Raises ValueError for an architecture that is not known, and what opening the provider raises."""
        if architecture not in KNOWN:
            raise ValueError(f"{architecture} is not known; known: {', '.join(KNOWN)}")
        self.architecture = KNOWN[architecture]
        _prepare_environment(architecture)
        from triton import knobs

        from ...providers import open_provider
        from . import backwards
        from .inductor import seen_through
        from .launches import Launches
        from .machine import Reader
        from .pretend import become

        self._mode = become(self.architecture)
        backwards.install()
        self._launches = Launches(self.architecture)
        self._reader = Reader(self.architecture, Path(knobs.cache.dir) / "kernelwatch-machine-code")
        self._at_hand: dict[Case, Compiled] = {}
        self._inductor = seen_through(self.architecture, self._launches)
        with self._mode, dumps():  # what a module makes while it is imported is on the device as well
            self._provider = open_provider(spec)
            self._provider.warm()
        self._cute = Cute(self.architecture, self._launches)

    def compile(self, case: Case, ahead: Sequence[Case] = ()) -> dict[str, Any]:
        """`state`, `reason`, `facts` and the seconds `spent` on a case.  Never raises.

        The cases `ahead` are those that will be asked next: reading machine code takes as long for ten kernels as for
        one, so it is read for all of them, and their answers are at hand then.
        """
        if case not in self._at_hand:
            self._at_hand = {one: self._compiled(one) for one in dict.fromkeys((case, *ahead))}
            began = time.monotonic()
            self._read(self._at_hand.values())
            self._at_hand[case].spent["read"] = round(time.monotonic() - began, 4)
        return self._answer(self._at_hand[case])

    def texts(self, case: Case, kernel: int, kind: str) -> str:
        """What a kernel of a case compiled to: "sass", "ttgir", "ptx" or "generated".  Raises ValueError."""
        from .described import text_of

        self.compile(case)
        try:
            return text_of(self._at_hand[case].launches[kernel], kind)
        except (IndexError, KeyError):
            raise ValueError(f"{case} has no {kind} of kernel {kernel}") from None

    def _compiled(self, case: Case) -> "Compiled":
        from ...contender.server import said
        from ...providers import Broken, Unsupported
        from ..trace import Seen
        from .operators import Through

        began = time.monotonic()
        self._launches.clear()
        if inductor := self._inductor():
            inductor.clear()
        if dynamo := sys.modules.get("torch._dynamo"):
            dynamo.reset()  # or shapes would be dynamic where an earlier case had others
        seen, state, reason, over, passing = Seen(), COMPILED, None, None, False
        try:
            self._call(case, Through(seen))
        except (Unsupported, NotImplementedError) as why:
            state, reason = UNSUPPORTED, str(why)[:MAX_REASON]
        except Broken as why:
            state, reason = FAILED, str(why)[:MAX_REASON]
        except BaseException as trouble:
            if type(trouble).__name__ == "DataDependentOutputException":
                state, reason = UNSUPPORTED, f"looks at the numbers in a tensor, which only a GPU has: {said(trouble)}"
            else:
                traceback.print_exc(file=sys.__stderr__)
                state, reason = FAILED, _refusal(trouble) or said(trouble)
                over, passing = (
                    self._over(trouble),
                    any(isinstance(one, MemoryError | OSError) for one in _chain(trouble)),
                )
        inductor = self._inductor()
        extern = inductor.extern if inductor else []
        if state == COMPILED and not self._launches.seen and not seen.launched and not extern:
            state, reason = FAILED, "launched nothing"
        return Compiled(
            state,
            reason,
            self._launches.seen,
            self._launches.refused,
            [*seen.described, *extern],
            seen.launched + len(extern),
            {"compile": round(time.monotonic() - began, 4)},
            over,
            passing,
            seen.calls,
        )

    def _read(self, several: Iterable["Compiled"]) -> None:
        """Have the machine code of several cases read at once; troubles are said again of the case that has them."""
        from .described import cubins_of

        with suppress(Exception):
            self._reader.facts([cubin for one in several for cubin in cubins_of([*one.launches, *one.refused])])

    def _answer(self, compiled: "Compiled") -> dict[str, Any]:
        from ...contender.server import said
        from .described import facts_of, refused

        state, reason = compiled.state, compiled.reason
        try:
            facts = facts_of(
                self.architecture,
                self._reader,
                compiled.launches,
                compiled.around,
                compiled.extern,
                compiled.calls,
            )
            if compiled.refused:
                facts["refused"] = refused(self.architecture, self._reader, compiled.refused)
        except Exception as trouble:
            traceback.print_exc(file=sys.__stderr__)
            reason = f"cannot read what was compiled: {said(trouble)}"
            return {"state": FAILED, "reason": reason, "facts": None, "passing": True}
        if compiled.over:
            facts["over"] = reason = compiled.over
        passing = {"passing": True} if compiled.passing else {}
        return {"state": state, "reason": reason, "facts": facts, "spent": compiled.spent, **passing}

    def _over(self, trouble: BaseException) -> str | None:
        """The hard limit that a case goes over, in words, where this is what was raised."""
        for one in _chain(trouble):
            if found := _REFUSED.search(str(one)):
                return f"shared memory: asks for {int(found[1], 16)} bytes of {int(found[2], 16)}"
            if isinstance(one, self._launches.out_of_resources) or "No valid triton configs. OutOfRes" in str(one):
                return next((launch.over for launch in reversed(self._launches.refused)), None)
        return None

    def _call(self, case: Case, operators: Any) -> None:
        """What a measured case does before its first call is done here as well, with tensors that hold nothing."""
        import torch

        from ...providers import Unsupported, forward_backward
        from .pretend import inputs_of

        if case.metric is Metric.BLOCK:
            raise Unsupported("a block is measured, not compiled alone")
        if self._provider.name.endswith("-tuned"):
            raise Unsupported("which of its configurations runs is decided by timing them, which needs a GPU")
        device = torch.device("cuda", 0)
        with self._mode, dumps(), torch.no_grad():
            if case.direction is Direction.FWDBWD:
                bind = forward_backward(case, self._provider.differentiable(case, device))
            else:
                bind = self._provider.ready(case, device)
            call = bind(inputs_of(case))
            self._cute.look()
            self._launches.clear()  # what was tried out while binding
            with operators:
                call()


@dataclass(frozen=True)
class Compiled:
    """What became of a case before its machine code is read."""

    state: str
    reason: str | None
    launches: "list[Launch]"
    refused: "list[Launch]"
    around: list[str]  # operators beside the kernels
    extern: int  # how many of them compute
    spent: dict[str, float]
    over: str | None  # the hard limit at which it ended
    passing: bool  # may another time go well: memory or disk were short
    calls: "list[OperatorCall]"  # the operators beside the kernels that compute, as far as they were seen


def _prepare_environment(architecture: str) -> None:
    """What has to be set before torch's compiler or Quack is imported."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        # what is made here must not be found where there is a GPU to tune it
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"without-a-gpu-{architecture}")
    prepare_environment(architecture)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _refusal(trouble: BaseException) -> str | None:
    """The line that says why, where ptxas refused: the message begins with other things."""
    found = _PTXAS.search(str(trouble))
    if not found:
        return None
    return f"ptxas: {found['said'].strip()}{' (line ' + found['line'] + ')' if found['line'] else ''}"[:MAX_REASON]


def _chain(trouble: BaseException | None) -> Iterator[BaseException]:
    """What was raised and what it was raised from; torch's compiler keeps the latter as `inner_exception`."""
    while trouble is not None:
        yield trouble
        trouble = trouble.__cause__ or getattr(trouble, "inner_exception", None)
