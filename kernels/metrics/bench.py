"""One provider on one device: the stream, the threads and the memory that all its cases share."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Imported before any code of a target runs, which might replace these functions.
from time import process_time, thread_time
from typing import Any, Protocol

import torch

from ..cases import Case, Direction, Metric
from ..checks.outputs import Wrong
from ..providers import Provider, open_provider
from ..providers.base import Bind

OTHER_NUMBERS = 1 << 20  # input sets from this number on belong to the check after the timing

# Cached memory beyond this share of the device's memory is returned to the driver: the other contenders may need it.
# Below it, returning costs more than it gains: a cudaFree waits for the device, and gigabytes of input sets are
# hundreds of blocks.
KEPT_MEMORY = 1 / 16
# Limit on the CPU time of all threads, relative to the time of the threads that the target was given, plus a constant.
# Wall time would depend on what else the host does.
MAX_CPU_SHARE = 1.2
MAX_EXTRA_CPU_S = 10e-3
LEFT_BYTES = 1 << 28  # still allocated after a case: only then is a full garbage collection worth its 30 ms


class Prepared(Protocol):
    """A provider that is ready to be timed at one case."""

    def describe(self) -> dict[str, Any]: ...
    def turn(self, warm: int, timed: int) -> list[float]: ...
    def check(self) -> None: ...


class Bench:
    """Open the provider on the device.

    This imports code of the target, which can replace functions of torch and of the standard library.  Import every
    module of ours that takes references to them (`contender.prepared` does) before.
    """

    def __init__(self, spec: Mapping[str, Any], device: torch.device, threads: int) -> None:
        self.device = device
        self.threads = threads
        self.stream: Any = None
        torch.set_num_threads(threads)
        if device.type == "cuda":
            self.device = torch.device("cuda", 0)
            cuda: Any = torch.cuda
            cuda.init()
            self.stream = cuda.Stream()
        self.provider: Provider = open_provider(spec)
        self.provider.warm()

    def describe(self) -> dict[str, Any]:
        if self.device.type == "cpu":
            return {"kind": "cpu", "name": _processor(), "cores": len(os.sched_getaffinity(0)), "threads": self.threads}
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "kind": "cuda",
            "name": properties.name,
            "uuid": str(getattr(properties, "uuid", "")) or None,
            "capability": f"{properties.major}.{properties.minor}",
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
        }

    @property
    def l2_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    @property
    def memory_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def provider_at(self, case: Case) -> Bind:
        """How the provider binds input sets at a case.  Raises what the provider raises."""
        if case.direction is Direction.FWDBWD:
            return self.provider.joint(case, self.device)
        return self.provider.ready(case, self.device)

    def check_threads(self) -> None:
        """Raises Wrong if the target has changed the number of threads."""
        if torch.get_num_threads() != self.threads:
            raise Wrong(f"changed the number of threads from {self.threads} to {torch.get_num_threads()}")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Disable gradients; on a GPU, run everything on the stream that is captured later."""
        torch.set_num_threads(self.threads)  # the target may have changed it
        with torch.no_grad():
            if self.device.type == "cpu":
                yield
                return
            with torch.cuda.stream(self.stream):
                yield
            self.stream.synchronize()

    def is_broken(self) -> bool:
        """Does every further CUDA call fail?"""
        if self.device.type == "cpu":
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def free(self) -> None:
        """Release the memory of earlier cases where it is more than KEPT_MEMORY or LEFT_BYTES."""
        if self.device.type == "cpu":
            gc.collect(1)
            return
        cuda: Any = torch.cuda
        if cuda.memory_allocated() > LEFT_BYTES:
            gc.collect()
        if cuda.memory_reserved() > KEPT_MEMORY * (self.memory_bytes or 0):
            cuda.empty_cache()


class CpuAudit:
    """CPU time of the turns on a CPU, where every contender has as many threads: more would use the cores of others."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cpu_s = 0.0  # of all threads
        self.own_s = 0.0  # of the threads that the target was given

    @contextmanager
    def counting(self, metric: Metric) -> Iterator[None]:
        """Count a turn.  Compilers and profilers have threads of their own, so that other metrics do not count."""
        if self._bench.stream is not None or metric not in (Metric.KERNEL, Metric.CALL):
            yield
            return
        cpu, own = process_time(), thread_time()
        yield
        self.cpu_s += process_time() - cpu
        self.own_s += self._bench.threads * (thread_time() - own)

    def check(self) -> None:
        """Raises Wrong."""
        if self.cpu_s > MAX_CPU_SHARE * self.own_s + MAX_EXTRA_CPU_S:
            raise Wrong(f"worked in the background: {self.cpu_s:.3g} s of CPU time, {self.own_s:.3g} of them its own")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"
