"""The contender's side of the protocol (`arena.protocol`), with the tree of the revision under test in front.

A release of torch, Triton, Quack or Liger is such a tree: it has to be imported instead of the one in the base stack.
"""

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
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ..arena.repeatability import FULL_REPEATS, of_facts
from ..arena.sizes import GRAPH_S
from ..cases import AnyCase, Case, Metric, parse_case
from ..errors import FAILED, INVALID, MAX_REASON, MEASURED, UNSUPPORTED, format_exception
from .tuning import Choices, NeedsDevice, Tuning, observe_autotuners

VARIABLE = "KERNELWATCH_TREE"  # folders of the target, which join sys.path once the process is asked to start
DISTRIBUTIONS = {
    "torch": "torch",
    "triton": "triton",
    "quack": "quack-kernels",
    "cutlass_dsl": "nvidia-cutlass-dsl",
    "liger": "liger-kernel",
}
_MODULES = {"torch": "torch", "triton": "triton", "quack": "quack", "liger": "liger_kernel"}


@dataclass(frozen=True)
class Tree:
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, variable: str) -> Self:
        """Of a path list with colons."""
        return cls(tuple(filter(None, variable.split(":"))))

    @cached_property
    def replaces(self) -> frozenset[str]:
        """The packages of the stack, by their names there, whose modules it has."""
        return frozenset(name for name, module in _MODULES.items() if self._has(module))

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """The versions of the distributions that it has, by their names in the stack."""
        found: dict[str, str] = {}
        for name, distribution in DISTRIBUTIONS.items():
            for one in metadata.distributions(name=distribution, path=list(self.folders)):
                found.setdefault(name, one.version)
        return found

    def join_path(self) -> None:
        """Allow imports from it.  What was imported before, during other measurements, does not belong to it."""
        if self.folders:
            sys.path[:0] = self.folders
            inherited = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = ":".join(filter(None, (*self.folders, inherited)))

    def misplaced(self) -> str | None:
        """Why a package that it replaces is not imported from it; None if all are."""
        for name in sorted(self.replaces):
            place = _place_of(_MODULES[name])
            if place is not None and not any(Path(place).is_relative_to(folder) for folder in self.folders):
                return (
                    f"{_MODULES[name]} is imported from {place}, although the revision has its own: nothing in the "
                    "base environment may import it when Python starts (look for .pth files and sitecustomize there)"
                )
        return None

    def _has(self, module: str) -> bool:
        files = (f"{module}/__init__.py", f"{module}.py")
        return any(os.path.exists(f"{folder}/{file}") for folder in self.folders for file in files)


def _place_of(module: str) -> str | None:
    """The file from which a module is or would be imported."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = find_spec(module)
    return spec.origin if spec else None


NEEDS_DEVICE = "it times candidates on the device"


def serve(requests: int, answers: int) -> None:
    """Answer each line of `requests` with one line on `answers`, then end the process at once."""
    with suppress(Exception):
        faulthandler.enable(file=2)
    server = Server()
    with os.fdopen(requests, encoding="utf-8") as lines:
        for line in lines:
            _write(answers, server.answer(json.loads(line)))
    os._exit(0)  # without waiting for threads and exit handlers of the target


def load(spec: Mapping[str, Any]) -> None:
    """Before the first request, import what takes long and does not belong to the target.

    A revision that is a release of torch or Triton leaves nothing to import: everything uses them.  Errors are ignored:
    `start` meets and reports them again.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # read when Inductor is imported
    if Tree.of(os.environ.get(VARIABLE, "")).replaces & {"torch", "triton"}:
        return
    with suppress(Exception):
        import torch  # noqa: F401

        from ..providers import open_provider
        from ..providers.base import warm_compiler

        if spec.get("builtin") and not spec.get("of_revision"):
            open_provider(spec).warm()
        elif spec.get("compile"):
            warm_compiler()


def _write(answers: int, answer: Mapping[str, Any]) -> None:
    data = json.dumps(answer, default=str).encode() + b"\n"  # facts may hold values of the target
    while data:
        data = data[os.write(answers, data) :]


class Server:
    """The state of a contender between requests."""

    def __init__(self) -> None:
        self._bench: Any = None
        self._offline: Any = None  # instead of a bench, where the device is an architecture
        self._prepared: Any = None
        self._judging: Any = None
        self._choices = Choices()
        self._uuid: str | None = None
        self._core: int | None = None  # runs the turns
        self._cores: set[int] = os.sched_getaffinity(0)

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Never raises: code of the target runs in here, and it may even call sys.exit."""
        handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "start": self.start,
            "prepare": self.prepare,
            "turn": self.turn,
            "ceilings": self.ceilings,
            "idle": self.idle,
            "check": self.check,
            "judge": self.judge,
            "verdicts": self.verdicts,
            "free": self.free,
            "telemetry": self.telemetry,
            "compile": self.compile,
            "texts": self.texts,
        }
        try:
            return handlers[message["do"]](message)
        except BaseException as error:
            return {"error": format_exception(error), "ready": False, **_broken(self._bench, error)}

    def start(self, message: Mapping[str, Any]) -> dict[str, Any]:
        threads = str(int(message["threads"]))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = threads
        if message["device"] == "cpu":
            _keep_memory()
        # A pool of compile processes would stay alive during the measurement and hide the facts of its kernels.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        tree = Tree.of(os.environ.pop(VARIABLE, ""))
        tree.join_path()
        try:
            import torch
        except ImportError as missing:
            return {"ready": False, "reason": f"cannot import torch in this environment: {format_exception(missing)}"}
        if str(message["device"]).startswith("sm_"):
            from ..facts.offline import Offline

            stack = _stack(torch, tree)  # before torch pretends to have CUDA
            self._offline = Offline(message["provider"], message["device"])
            if reason := tree.misplaced():
                return {"ready": False, "reason": reason}
            gc.enable()
            return {"ready": True, **stack, "device": {"kind": message["device"]}}
        from ..metrics.bench import Bench
        from . import prepared  # noqa: F401  before Bench imports code of the target, which could patch what it needs

        if message["device"] == "cuda" and not torch.cuda.is_available():
            return {"ready": False, "reason": f"torch {torch.__version__} sees no CUDA GPU in this environment"}
        self._bench = Bench(message["provider"], torch.device(message["device"]), int(threads))
        if reason := tree.misplaced():
            return {"ready": False, "reason": reason}
        if message["device"] == "cuda":
            torch.cuda.set_per_process_memory_fraction(float(message.get("memory", 1.0)))
        # Scanning all imported modules at every case took up to half a second.  Only a megabyte of them is garbage.
        gc.freeze()
        gc.enable()
        self._core = message.get("core")
        self._cores = os.sched_getaffinity(0)
        pinned = _pin(self._core)
        device = self._bench.describe()
        self._uuid = device.get("uuid")
        tunes = bool(getattr(self._bench.provider, "tunes", False))
        return {"ready": True, **_stack(torch, tree), "device": {**device, "core": pinned}, "tunes": tunes}

    def compile(self, message: Mapping[str, Any]) -> dict[str, Any]:
        ahead = [Case.parse(text) for text in message.get("ahead", ())]
        return dict(self._offline.compile(Case.parse(message["case"]), ahead))

    def texts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        case = parse_case(message["case"])
        kernel = int(message["kernel"])
        if self._offline is None:
            return self._text(case, kernel, str(message["kind"]))
        return {"text": self._offline.texts(Case.parse(message["case"]), kernel, str(message["kind"]))}

    def _text(self, case: AnyCase, kernel: int, kind: str) -> dict[str, Any]:
        """The code of the prepared case.  Errors of reading it say nothing about the case."""
        if getattr(self._prepared, "case", None) != case or not hasattr(self._prepared, "text"):
            return {"error": f"{case} is not prepared with facts"}
        try:
            return {"text": self._prepared.text(kernel, kind)}
        except Exception as error:
            return {"error": format_exception(error)}

    def ceilings(self, _: Mapping[str, Any]) -> dict[str, Any]:
        from . import ceilings

        return {"ceilings": ceilings.measure(self._bench.stream)}

    def idle(self, _: Mapping[str, Any]) -> dict[str, Any]:
        from .ceilings import waiting_us

        return {"waited_us": waiting_us(self._bench.stream)}

    def prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        from .prepared import prepare

        began = time.monotonic()
        case = parse_case(message["case"])
        self._prepared = None
        tuning = Tuning(
            alone=bool(message.get("alone", True)),
            case=str(replace(case, metric=Metric.KERNEL)),
            choices=self._choices,
            reuse=message.get("reuse", {}),
        )
        with (
            observe_autotuners(tuning, on_gpu=self._bench.stream is not None, compiled=self._bench.provider.compiled),
            _verdict(self._bench) as verdict,
            self._any_core(),
        ):
            estimates = {code: of_facts(facts) for code, facts in message.get("known", {}).items()}
            self._prepared = prepare(
                self._bench,
                case,
                int(message["seed"]),
                thorough=bool(message.get("thorough", True)),
                graph_s=float(message.get("graph_s", GRAPH_S)),
                repeats=int(message.get("repeats", FULL_REPEATS)),
                known={code: estimate for code, estimate in estimates.items() if estimate},
                inexact=message.get("inexact"),
            )
            verdict |= self._prepared.describe()
        if tuning.refused:  # also if the target caught NeedsDevice and went on without a choice
            verdict |= {"state": FAILED, "reason": NEEDS_DEVICE, "needs_device": True}
        if tuning.chosen:
            verdict |= {"tuned": tuning.chosen, "reused": tuning.reused}
        if tuning.by_order and "facts" in verdict:
            verdict["facts"] = {**verdict["facts"], "tuned_by_order": tuning.by_order}
        is_ready = self._prepared is not None and verdict["state"] in (MEASURED, INVALID)
        if not is_ready:
            verdict.pop("inexact", None)
        if not is_ready and not verdict.get("broken"):  # freeing a broken device raises
            self.free({})
        return {**verdict, "prepare_s": round(time.monotonic() - began, 3)}

    def turn(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._prepared is None:
            return {"error": "no case is prepared"}
        clock = self._prepared.clock
        if not getattr(self._prepared, "judged", False):
            samples = self._prepared.turn(int(message["warm"]), int(message["timed"]))
            return {"samples": samples, "calls": clock.calls, "restoring_s": getattr(clock, "restoring_s", 0.0)}
        once = bool(message.get("once"))
        samples = self._prepared.turn(int(message["warm"]), int(message["timed"]), once=once)
        calls = len(self._prepared.all_sets) if once else clock.calls
        return {
            "samples": samples,
            "calls": calls,
            "restoring_s": clock.restoring_s,
            "outputs": self._prepared.kept(),
        }

    def judge(self, message: Mapping[str, Any]) -> dict[str, Any]:
        from .judging import Judging

        self._judging = Judging(Case.parse(message["case"]), int(message["seed"]), int(message["pool_seed"]))
        return dict(self._judging.describe())

    def verdicts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {"verdicts": [self._judging.verdict(draw) for draw in message["draws"]]}

    def check(self, _: Mapping[str, Any]) -> dict[str, Any]:
        if self._prepared is None:
            return {"error": "no case is prepared"}
        with _verdict(self._bench) as verdict, self._any_core():
            self._prepared.check()
        return verdict

    @contextmanager
    def _any_core(self) -> Iterator[None]:
        """Work that is not timed may use every core, at the same time as the other contenders."""
        os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            _pin(self._core)

    def free(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._prepared = None
        if self._bench is not None:
            self._bench.free()
        return {"ok": True}

    def telemetry(self, _: Mapping[str, Any]) -> dict[str, Any]:
        from ..arena import telemetry

        return telemetry.watch(self._uuid).whole()


@contextmanager
def _verdict(bench: Any) -> Iterator[dict[str, Any]]:
    """The state of the case: measured, or the state of its exception."""
    from ..checks.oracle import WrongShape
    from ..checks.outputs import Inexact, Wrong
    from ..metrics.clocks import NotCaptured
    from ..providers import Broken, Unsupported

    verdict: dict[str, Any] = {"state": MEASURED, "reason": None}
    try:
        yield verdict
    except (Wrong, WrongShape) as wrong:
        verdict |= {"state": INVALID, "reason": str(wrong)[:MAX_REASON], "inexact": isinstance(wrong, Inexact)}
    except Unsupported as error:
        verdict |= {"state": UNSUPPORTED, "reason": str(error)[:MAX_REASON]}
    except NeedsDevice:
        verdict |= {"state": FAILED, "reason": NEEDS_DEVICE}
    except NotCaptured as error:
        # torch's allocator believes that the capture still goes on, so that every later case would fail (torch 2.11)
        verdict |= {"state": FAILED, "reason": str(error)[:MAX_REASON], "broken": True}
    except Broken as error:
        verdict |= {"state": FAILED, "reason": str(error)[:MAX_REASON], **_broken(bench, error)}
    except BaseException as error:
        traceback.print_exc(file=sys.__stderr__)
        verdict |= {"state": FAILED, "reason": format_exception(error), **_broken(bench, error)}


def _broken(bench: Any, error: BaseException) -> dict[str, Any]:
    """`broken` if the process cannot go on: after some CUDA errors every call fails, and out of memory may stay."""
    if bench is None:
        return {}
    return {"broken": True} if type(error).__name__ == "OutOfMemoryError" or bench.is_broken() else {}


def _keep_memory() -> None:
    """Let glibc keep freed memory instead of returning it to the operating system after each call.

    Otherwise every output of some megabytes faults in its pages again: eager RMSNorm of 4096x1024 took twice as long,
    and two equal processes differed by up to 27 % instead of 15 % (two busy cores, November).
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 << 20)  # the largest value that glibc accepts
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 64 << 20)


def _pin(core: int | None) -> int | None:
    if core is None:
        return None
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # this process may not use that core
        return None
    return core


def _stack(torch: Any, tree: Tree) -> dict[str, dict[str, str]]:
    """`stack`: all versions; `replaced`: those that come from the revision's tree."""
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name, distribution in DISTRIBUTIONS.items():
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(distribution)
    for name in tree.replaces - tree.versions.keys():  # a tree without metadata: the version is that of another one
        versions.pop(name, None)
    versions["torch"] = str(torch.__version__)
    replaced = {name: versions[name] for name in tree.versions if name in versions}
    return {"stack": {name: version for name, version in versions.items() if version}, "replaced": replaced}
