"""Which device this machine has, asked of the machine itself, and who may use it."""

import fcntl
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.errors import Conflict
from service.settings import settings

# Longest first: a GB200's name contains B200's.
_KNOWN = ("gb300", "gb200", "b300", "b200", "h200", "h100", "a100", "l40s")
_SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps")


@dataclass(frozen=True)
class DeviceHere:
    name: str  # "h200", "cpu"; also the name of its queue
    description: str
    uuid: str | None = None
    index: int = 0
    nodes: tuple[Path, ...] = ()  # the device files that a contender on this GPU needs, and no other GPU's


def ask() -> DeviceHere:
    """The device of this process: what KERNELWATCH_DEVICE names, else the first visible GPU, else the processor."""
    wanted = settings().device
    gpu = None if wanted == "cpu" else _gpu(_first_visible())
    if gpu is None:
        if wanted not in (None, "cpu"):
            raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, and no NVIDIA GPU answers here (`nvidia-smi`).")
        return DeviceHere("cpu", _processor())
    if wanted is not None and wanted != gpu.name:
        raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, and the GPU here is {gpu.description} ({gpu.name}).")
    return gpu


def named(product: str, capability: tuple[int, int]) -> str:
    """The device's name from what the driver calls it: known ones shortly, others by name and compute capability."""
    words = re.split(r"[^a-z0-9]+", product.lower())
    for known in _KNOWN:
        if known in words:
            return known
    slug = "-".join(word for word in words if word and word not in ("nvidia", "geforce", "tesla"))
    return f"{slug[:30].strip('-')}-sm{capability[0]}{capability[1]}"


def _gpu(which: int | str) -> DeviceHere | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        by_uuid = isinstance(which, str)
        handle = pynvml.nvmlDeviceGetHandleByUUID(which) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(which)
        product = _text(pynvml.nvmlDeviceGetName(handle))
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        uuid, minor = _text(pynvml.nvmlDeviceGetUUID(handle)), pynvml.nvmlDeviceGetMinorNumber(handle)
        return DeviceHere(
            named(product, capability), f"{product}, {uuid}", uuid, pynvml.nvmlDeviceGetIndex(handle), _nodes(minor)
        )
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _first_visible() -> int | str:
    """What CUDA_VISIBLE_DEVICES begins with, as CUDA reads it; the first GPU where it says nothing."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first if first.startswith(("GPU-", "MIG-")) else int(first) if first.isdigit() else 0


def _text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def _nodes(minor: int) -> tuple[Path, ...]:
    nodes = (Path("/dev", name) for name in (*_SHARED_NODES, f"nvidia{minor}"))
    return tuple(node for node in nodes if node.exists())


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Hold the one lock of this device on this machine.  Raises Conflict when another worker has it."""
    folder = settings().state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{device}-{_first_visible()}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise Conflict(f"Another worker has {device} here already ({holder}); one at a time.") from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()}")
        lock.flush()
        yield
