"""The process of an arm of a study of models: one workload at a time, answering JSON lines on its pipes.

Started as `python -P -m benchmarks.kernels.published.arms.server`.  Requests are those of `model_trials`.
"""

import gc
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from kernels.errors import FAILED, INVALID, MAX_REASON, MEASURED, UNSUPPORTED, format_exception


class NotSupported(Exception):
    """The workload cannot run here.  The message says why."""


class Workload(Protocol):
    """A model that is prepared with one arm.  `facts` explain its times."""

    facts: Mapping[str, Any]
    unit: str

    def turn(self, warm: int, timed: int) -> list[float]:
        """Samples in `unit`, after `warm` untimed ones."""
        ...

    def check(self) -> str | None:
        """After the timing: why the results are wrong; None if they are right."""
        ...


class Replayed(Workload, Protocol):
    """A workload whose facts have `graph`: is its step replayed as a CUDA graph?  If not, `graph_reason` says why.

    Its spec may have a reason to launch the step instead, as `launched_because`.
    """

    def launch(self) -> None:
        """From now on launch the kernels of a step one by one."""
        ...


class ModelServer:
    def __init__(self) -> None:
        self._device = "cpu"
        self._workload: Workload | None = None

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "start": self.start,
            "prepare": self.prepare,
            "launch": self.launch,
            "turn": self.turn,
            "check": self.check,
            "ceilings": self.ceilings,
            "free": self.free,
        }
        try:
            return handlers[message["do"]](message)
        except NotSupported as why:
            return {"state": UNSUPPORTED, "reason": str(why)[:MAX_REASON]}
        except BaseException as error:
            return {"state": FAILED, "reason": format_exception(error), **self._damage(error)}

    def _damage(self, error: BaseException) -> dict[str, bool]:
        """`broken` if the process cannot go on, `capture_failed` if it could without a CUDA graph.

        After some CUDA errors every call fails, a failed capture stays in torch's allocator, and what filled the memory
        may stay.
        """
        if self._device == "cpu":
            return {}
        import torch

        from kernels.metrics.clocks import NotCaptured

        if isinstance(error, NotCaptured):
            return {"broken": True, "capture_failed": True}
        if isinstance(error, torch.OutOfMemoryError):
            return {"broken": True}
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return {"broken": True}
        return {}

    def start(self, message: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        self._device = str(message["device"])
        torch.set_num_threads(int(message["threads"]))
        versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        found = importlib.util.find_spec("triton")
        if found is not None:
            versions["triton"] = importlib.import_module("triton").__version__
        if self._device == "cpu":
            return {"ready": True, "stack": versions, "device": {"kind": "cpu", "cores": len(os.sched_getaffinity(0))}}
        properties = torch.cuda.get_device_properties(0)
        about = {"kind": "cuda", "name": properties.name, "sms": properties.multi_processor_count}
        about["uuid"] = str(getattr(properties, "uuid", "")) or None
        return {"ready": True, "stack": versions, "device": about}

    def prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._workload = None
        spec = message["spec"]
        module, _, name = str(spec["workload"]).partition(":")
        opener: Callable[..., Workload] = getattr(importlib.import_module(f".{module}", __package__), name)
        self._workload = opener(str(message["case"]), spec, self._device, int(message["seed"]))
        return {"state": MEASURED, "facts": dict(self._workload.facts), "unit": self._workload.unit}

    @property
    def _prepared(self) -> Workload:
        if self._workload is None:
            raise RuntimeError("no workload is prepared")
        return self._workload

    def launch(self, _: Mapping[str, Any]) -> dict[str, Any]:
        cast(Replayed, self._prepared).launch()
        return {"ok": True}

    def turn(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {"samples": self._prepared.turn(int(message["warm"]), int(message["timed"]))}

    def check(self, _: Mapping[str, Any]) -> dict[str, Any]:
        wrong = self._prepared.check()
        return {"state": INVALID, "reason": wrong[:MAX_REASON]} if wrong else {"state": MEASURED}

    def ceilings(self, _: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        from kernels.contender import ceilings

        stream: Any = torch.cuda.Stream()
        return {"ceilings": ceilings.measure(stream)}

    def free(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._workload = None
        gc.collect()
        if self._device != "cpu":
            import torch

            torch.cuda.empty_cache()
        return {"ok": True}


def serve() -> None:
    """Answer each line of the input with one line; output of what is imported goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    server = ModelServer()
    with os.fdopen(answers, "w") as out:
        for line in sys.stdin:
            out.write(json.dumps(server.answer(json.loads(line)), default=str) + "\n")
            out.flush()
    os._exit(0)  # without waiting for the threads of compilers


if __name__ == "__main__":
    importlib.import_module(f"{__package__}.server").serve()  # else workloads would raise another NotSupported
