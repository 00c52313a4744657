"""Facts without a GPU: compile a provider's kernels for an architecture, and do not launch them."""

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
from ...errors import FAILED, MAX_REASON, UNSUPPORTED, format_exception
from ..architectures import KNOWN
from .cute import Cute, dumps, prepare_environment

if TYPE_CHECKING:
    from ..trace import OperatorCall
    from .launches import Launch

COMPILED = "compiled"

# Errors of ptxas in the messages of its callers.
_REFUSED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
_PTXAS = re.compile(r"ptxas (?:\S+, line (?P<line>\d+); )?(?:error|fatal)\s*: (?P<message>.*)")


class Offline:
    """Compiles one provider for one architecture; from then on torch and Triton see its device in the whole process."""

    def __init__(self, spec: Mapping[str, Any], architecture: str) -> None:
        """Raises ValueError for an unknown architecture, and what opening the provider raises."""
        if architecture not in KNOWN:
            raise ValueError(f"unknown architecture {architecture}; use one of {', '.join(KNOWN)}")
        self.architecture = KNOWN[architecture]
        _prepare_environment(architecture)
        from triton import knobs

        from ...providers import open_provider
        from ..machine import Reader
        from . import backwards, inductor
        from .launches import Launches
        from .pretend import become

        self._mode = become(self.architecture)
        backwards.install()
        self._launches = Launches(self.architecture)
        self._reader = Reader(self.architecture, Path(knobs.cache.dir) / "kernelwatch-machine-code")
        self._cases: dict[Case, Compiled] = {}
        self._inductor = inductor.install(self.architecture, self._launches)
        with self._mode, dumps():  # tensors that a module creates at import are also on the device
            self._provider = open_provider(spec)
            self._provider.warm()
        self._cute = Cute(self.architecture, self._launches)

    def compile(self, case: Case, ahead: Sequence[Case] = ()) -> dict[str, Any]:
        """`state`, `reason`, `facts` and the seconds `spent` on a case.  Never raises.

        `ahead` are the next cases: reading the machine code of ten kernels takes as long as that of one, so that it is
        read for all of them at once, and their answers are kept.
        """
        if case not in self._cases:
            self._cases = {one: self._compiled(one) for one in dict.fromkeys((case, *ahead))}
            began = time.monotonic()
            self._read(self._cases.values())
            self._cases[case].spent["read"] = round(time.monotonic() - began, 4)
        return self._answer(self._cases[case])

    def texts(self, case: Case, kernel: int, kind: str) -> str:
        """The code of a kernel of a case; `kind` is "sass", "ttgir", "ptx" or "generated".  Raises ValueError."""
        from .described import text_of

        self.compile(case)
        try:
            return text_of(self._cases[case].launches[kernel], kind)
        except (IndexError, KeyError):
            raise ValueError(f"{case} has no {kind} of kernel {kernel}") from None

    def _compiled(self, case: Case) -> "Compiled":
        from ...providers import Broken, Unsupported
        from ..trace import Seen
        from .operators import EnteringOffline

        began = time.monotonic()
        self._launches.clear()
        if inductor := self._inductor():
            inductor.clear()
        if dynamo := sys.modules.get("torch._dynamo"):
            dynamo.reset()  # otherwise a second shape would be compiled for any shape
        seen = Seen()
        state = COMPILED
        reason = None
        over = None
        passing = False
        try:
            self._call(case, EnteringOffline(seen))
        except (Unsupported, NotImplementedError) as error:
            state, reason = UNSUPPORTED, str(error)[:MAX_REASON]
        except Broken as error:
            state, reason = FAILED, str(error)[:MAX_REASON]
        except BaseException as error:
            if type(error).__name__ == "DataDependentOutputException":
                state, reason = (
                    UNSUPPORTED,
                    f"reads the numbers in a tensor, which needs a GPU: {format_exception(error)}",
                )
            else:
                traceback.print_exc(file=sys.__stderr__)
                state, reason = FAILED, _refusal(error) or format_exception(error)
                over = self._over(error)
                passing = any(isinstance(one, MemoryError | OSError) for one in _chain(error))
        inductor = self._inductor()
        extern = inductor.extern if inductor else []
        if state == COMPILED and not self._launches.seen and not seen.launched and not extern:
            state, reason = FAILED, "launched no kernel"
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
            {name: value for name, value in self._provider.facts().items() if name == "source"},
        )

    def _read(self, several: Iterable["Compiled"]) -> None:
        """Read the machine code of several cases at once; `_answer` reports errors for the case that has them."""
        from .described import cubins_of

        with suppress(Exception):
            self._reader.facts([cubin for one in several for cubin in cubins_of([*one.launches, *one.refused])])

    def _answer(self, compiled: "Compiled") -> dict[str, Any]:
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
            facts |= compiled.source
            if compiled.refused:
                facts["refused"] = refused(self.architecture, self._reader, compiled.refused)
        except Exception as error:
            traceback.print_exc(file=sys.__stderr__)
            reason = f"cannot read the compiled code: {format_exception(error)}"
            return {"state": FAILED, "reason": reason, "facts": None, "passing": True}
        if compiled.over:
            facts["over"] = reason = compiled.over
        passing = {"passing": True} if compiled.passing else {}
        return {"state": state, "reason": reason, "facts": facts, "spent": compiled.spent, **passing}

    def _over(self, error: BaseException) -> str | None:
        """The hard limit that a case exceeds, if that was the error."""
        for one in _chain(error):
            if found := _REFUSED.search(str(one)):
                return f"shared memory: asks for {int(found[1], 16)} bytes of {int(found[2], 16)}"
            if isinstance(one, self._launches.out_of_resources) or "No valid triton configs. OutOfRes" in str(one):
                return next((launch.over for launch in reversed(self._launches.refused)), None)
        return None

    def _call(self, case: Case, operators: Any) -> None:
        """Bind and call a case as for a measurement, with tensors without storage."""
        import torch

        from ...providers import Unsupported
        from .pretend import inputs_of

        if case.metric is Metric.BLOCK:
            raise Unsupported("a block can be measured, but not compiled without a GPU")
        if self._provider.tunes and not self._provider.compiled:
            raise Unsupported("it chooses a configuration by timing, which needs a GPU")
        device = torch.device("cuda", 0)
        with self._mode, dumps(), torch.no_grad():
            if case.direction is Direction.FWDBWD:
                bind = self._provider.joint(case, device)
            else:
                bind = self._provider.ready(case, device)
            call = bind(inputs_of(case))
            self._cute.install()
            self._launches.clear()  # drop what ran while binding
            with operators:
                call()


@dataclass(frozen=True)
class Compiled:
    """A compiled case whose machine code has not been read."""

    state: str
    reason: str | None
    launches: "list[Launch]"
    refused: "list[Launch]"
    around: list[str]  # the other operators
    extern: int  # the number of these operators that compute
    spent: dict[str, float]
    over: str | None  # the hard limit that it exceeds
    passing: bool  # a retry may succeed: memory or disk were short
    calls: "list[OperatorCall]"  # the other operators that compute, as far as observed
    source: dict[str, Any]  # where the target defines the function that was called


def _prepare_environment(architecture: str) -> None:
    """Environment variables to set before torch's compiler or Quack is imported."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        # this code was not tuned, and must not be used with a GPU
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"without-a-gpu-{architecture}")
    prepare_environment(architecture)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _refusal(error: BaseException) -> str | None:
    """The error of ptxas in an exception's message, if there is one."""
    found = _PTXAS.search(str(error))
    if not found:
        return None
    return f"ptxas: {found['message'].strip()}{' (line ' + found['line'] + ')' if found['line'] else ''}"[:MAX_REASON]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and its causes; torch's compiler keeps the cause as `inner_exception`."""
    while error is not None:
        yield error
        error = error.__cause__ or getattr(error, "inner_exception", None)
