"""The contender's side of the conversation: prepare a case, take turns, and be checked before and after."""

import ctypes
import faulthandler
import gc
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

from ..arena.repeatability import ENOUGH, of_facts
from ..arena.sizes import GRAPH_S
from ..cases import Case
from .tuning import NeedsDevice, watched

MEASURED, INVALID, FAILED, UNSUPPORTED = "measured", "invalid", "failed", "unsupported"
MAX_REASON = 600
TREE = "KERNELWATCH_TREE"  # folders of the target, imported from only once the launch begins

_VERSIONS = {
    "torch": "torch",
    "triton": "triton",
    "quack": "quack-kernels",
    "cutlass_dsl": "nvidia-cutlass-dsl",
    "liger": "liger-kernel",
}


def serve(questions: int, answers: int) -> None:
    """Answer each line on `questions` with one line on `answers` until there are no more, then leave at once."""
    with suppress(Exception):
        faulthandler.enable(file=2)
    contender = Server()
    with os.fdopen(questions, encoding="utf-8") as lines:
        for line in lines:
            _write(answers, contender.answer(json.loads(line)))
    os._exit(0)  # threads and exit handlers of the target have no say in when


def load(spec: Mapping[str, Any]) -> None:
    """Import what takes long and is not the target's, before the first question.  Troubles are said again later."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # read when Inductor is imported
    with suppress(Exception):
        import torch  # noqa: F401

        from ..providers import open_provider
        from ..providers.base import warm_compiler

        if spec.get("builtin"):
            open_provider(spec).warm()
        elif spec.get("compile"):
            warm_compiler()


def _write(answers: int, answer: Mapping[str, Any]) -> None:
    data = json.dumps(answer, default=str).encode() + b"\n"  # facts come from strangers
    while data:
        data = data[os.write(answers, data) :]


class Server:
    """What one contender keeps between questions."""

    def __init__(self) -> None:
        self._bench: Any = None
        self._offline: Any = None  # instead of a bench, where an architecture takes the place of a device
        self._at_case: Any = None
        self._uuid: str | None = None
        self._core: int | None = None  # where turns are taken
        self._cores: set[int] = os.sched_getaffinity(0)

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Never raises: the target's code runs in here, and it may even call sys.exit."""
        doing: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "start": self.start,
            "prepare": self.prepare,
            "turn": self.turn,
            "ceilings": self.ceilings,
            "check": self.check,
            "free": self.free,
            "telemetry": self.telemetry,
            "compile": self.compile,
            "texts": self.texts,
        }
        try:
            return doing[message["do"]](message)
        except BaseException as trouble:
            return {"error": said(trouble), "ready": False, **_broken(self._bench, trouble)}

    def start(self, message: Mapping[str, Any]) -> dict[str, Any]:
        threads = str(int(message["threads"]))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = threads
        if message["device"] == "cpu":
            _keep_memory()
        # A pool of compile processes would idle beside the measurement, and its kernels could not be asked for facts.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        _import_from(os.environ.pop(TREE, ""))
        try:
            import torch
        except ImportError as missing:
            return {"ready": False, "reason": f"cannot import torch in this environment: {said(missing)}"}
        if str(message["device"]).startswith("sm_"):
            from ..facts.offline import Offline

            stack = _stack(torch)  # before it says that it has CUDA
            self._offline = Offline(message["provider"], message["device"])
            return {"ready": True, "stack": stack, "device": {"kind": message["device"]}}
        from .prepared import Bench

        if message["device"] == "cuda" and not torch.cuda.is_available():
            return {"ready": False, "reason": f"torch {torch.__version__} sees no CUDA GPU in this environment"}
        self._bench = Bench(message["provider"], torch.device(message["device"]), int(threads))
        if message["device"] == "cuda":
            torch.cuda.set_per_process_memory_fraction(float(message.get("memory", 1.0)))
        gc.collect()
        gc.freeze()  # what was imported stays: looking through it at every case took up to half a second
        self._core = message.get("core")
        self._cores = os.sched_getaffinity(0)
        pinned = _pin(self._core)
        device = self._bench.describe()
        self._uuid = device.get("uuid")
        tunes = bool(getattr(self._bench.provider, "tunes", False))
        return {"ready": True, "stack": _stack(torch), "device": {**device, "core": pinned}, "tunes": tunes}

    def compile(self, message: Mapping[str, Any]) -> dict[str, Any]:
        ahead = [Case.parse(text) for text in message.get("ahead", ())]
        return dict(self._offline.compile(Case.parse(message["case"]), ahead))

    def texts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        case, kernel = Case.parse(message["case"]), int(message["kernel"])
        return {"text": self._offline.texts(case, kernel, str(message["kind"]))}

    def ceilings(self, _: Mapping[str, Any]) -> dict[str, Any]:
        from . import ceilings

        return {"ceilings": ceilings.measure(self._bench.stream)}

    def prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        case = Case.parse(message["case"])
        self._at_case = None
        alone, compiled = bool(message.get("alone", True)), self._bench.provider.compiled
        with (
            watched(alone=alone, on_gpu=self._bench.stream is not None, compiled=compiled) as tuning,
            _judged(self._bench) as verdict,
            self._any_core(),
        ):
            estimates = {code: of_facts(facts) for code, facts in message.get("known", {}).items()}
            self._at_case = at_case = self._bench.prepare(
                case,
                int(message["seed"]),
                thorough=bool(message.get("thorough", True)),
                graph_s=float(message.get("graph_s", GRAPH_S)),
                repeats=int(message.get("repeats", ENOUGH)),
                known={code: estimate for code, estimate in estimates.items() if estimate},
            )
            verdict |= at_case.describe()
        if tuning.refused:  # also where the target caught what was raised, and went on without a choice
            verdict |= {"state": FAILED, "reason": "it times candidates on the device", "needs_device": True}
        if tuning.chosen:
            verdict["tuned"] = tuning.chosen
        if verdict["state"] != MEASURED and not verdict.get("broken"):  # or its error would hide the reason
            self.free({})
        return {**verdict, "prepare_s": round(time.monotonic() - began, 3)}

    def turn(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._at_case is None:
            return {"error": "no case is prepared"}
        samples = self._at_case.turn(int(message["warm"]), int(message["timed"]))
        return {"samples": samples, "calls": self._at_case.clock.calls}

    def check(self, _: Mapping[str, Any]) -> dict[str, Any]:
        if self._at_case is None:
            return {"error": "no case is prepared"}
        with _judged(self._bench) as verdict, self._any_core():
            self._at_case.check()
        return verdict

    @contextmanager
    def _any_core(self) -> Iterator[None]:
        """What is not timed may run on every core, beside the other contenders."""
        os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            _pin(self._core)

    def free(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._at_case = None
        if self._bench is not None:
            self._bench.free()
        return {"ok": True}

    def telemetry(self, _: Mapping[str, Any]) -> dict[str, Any]:
        from ..arena import telemetry

        return telemetry.watch(self._uuid).whole()


@contextmanager
def _judged(bench: Any) -> Iterator[dict[str, Any]]:
    """A verdict on what runs inside: measured, or what else its exception means."""
    from ..checks.oracle import WrongShape
    from ..providers import Broken, Unsupported
    from .clocks import NotCaptured
    from .prepared import Wrong

    verdict: dict[str, Any] = {"state": MEASURED, "reason": None}
    try:
        yield verdict
    except (Wrong, WrongShape) as wrong:
        verdict |= {"state": INVALID, "reason": str(wrong)[:MAX_REASON]}
    except Unsupported as why:
        verdict |= {"state": UNSUPPORTED, "reason": str(why)[:MAX_REASON]}
    except NeedsDevice:
        verdict |= {"state": FAILED, "reason": "it times candidates on the device"}
    except NotCaptured as why:
        # the allocator takes the capture to be under way still, and every later case would fail (torch 2.11)
        verdict |= {"state": FAILED, "reason": str(why)[:MAX_REASON], "broken": True}
    except Broken as why:
        verdict |= {"state": FAILED, "reason": str(why)[:MAX_REASON], **_broken(bench, why)}
    except BaseException as trouble:
        traceback.print_exc(file=sys.__stderr__)
        verdict |= {"state": FAILED, "reason": said(trouble), **_broken(bench, trouble)}


def said(trouble: BaseException) -> str:
    """An exception in one line: its kind, the first line of its message, and where it was raised."""
    if isinstance(trouble, SystemExit):
        what = f"called sys.exit({trouble.code!r})"
    else:
        lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
        what = ": ".join([type(trouble).__name__, *lines[:1]])
    frames = traceback.extract_tb(trouble.__traceback__)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    theirs = [frame for frame in frames if not frame.filename.startswith((own, "<frozen"))]
    where = f" ({os.path.basename(theirs[-1].filename)}:{theirs[-1].lineno})" if theirs else ""
    return f"{what[:MAX_REASON]}{where}"


def _broken(bench: Any, trouble: BaseException) -> dict[str, Any]:
    """After some CUDA errors every later call fails as well, and who ran out of memory may hold it still."""
    if bench is None:
        return {}
    return {"broken": True} if type(trouble).__name__ == "OutOfMemoryError" or bench.is_broken() else {}


def _keep_memory() -> None:
    """Let glibc keep freed memory instead of giving it back to the kernel after each call.

    Otherwise every output of some megabytes is paid for page by page, again and again: eager RMSNorm of 4096x1024 took
    twice as long, and two equal processes differed by up to 27 % instead of 15 (two busy cores, November).
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 << 20)  # the largest that glibc takes
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 64 << 20)


def _import_from(folders: str) -> None:
    """Only now may modules be the target's: what was imported ahead, beside other measurements, is none of it."""
    if folders:
        sys.path[:0] = folders.split(":")
        os.environ["PYTHONPATH"] = ":".join(filter(None, (folders, os.environ.get("PYTHONPATH"))))


def _pin(core: int | None) -> int | None:
    if core is None:
        return None
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # not among the cores that we may use
        return None
    return core


def _stack(torch: Any) -> dict[str, str]:
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name, distribution in _VERSIONS.items():
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(distribution)
    versions["torch"] = str(torch.__version__)
    return {name: version for name, version in versions.items() if version}
