"""Detect the device of this machine, and lock it."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

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
    minor: int | None = None  # the number of its device file
    memory: int = 0  # bytes of a GPU

    @property
    def nodes(self) -> tuple[Path, ...]:
        """The device files that a contender on this GPU needs, without those of other GPUs."""
        if self.minor is None:
            return ()
        nodes = (Path("/dev", name) for name in (*_SHARED_NODES, f"nvidia{self.minor}"))
        return tuple(node for node in nodes if node.exists())


def ask() -> DeviceHere:
    """The device of this process: what KERNELWATCH_DEVICE names, else the first visible GPU, else the processor."""
    wanted = settings().device
    visible = _first_visible()
    gpu = None if wanted == "cpu" or visible is None else _gpu(visible)
    if gpu is None:
        if wanted not in (None, "cpu"):
            hidden = ": CUDA_VISIBLE_DEVICES hides them all" if visible is None else " (`nvidia-smi`)"
            raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, but no NVIDIA GPU was found here{hidden}.")
        return DeviceHere("cpu", _processor())
    if wanted is not None and wanted != gpu.name:
        raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, but the GPU here is {gpu.description} ({gpu.name}).")
    return gpu


def named(product: str, capability: tuple[int, int]) -> str:
    """The device's name: a short one for known products, else product and compute capability."""
    words = re.split(r"[^a-z0-9]+", product.lower())
    for known in _KNOWN:
        if known in words:
            return known
    slug = "-".join(word for word in words if word and word not in ("nvidia", "geforce", "tesla"))
    return f"{slug[:30].strip('-')}-sm{capability[0]}{capability[1]}"


@cache
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
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        _make_nodes()
        return DeviceHere(
            named(product, capability),
            f"{product}, {uuid}",
            uuid,
            pynvml.nvmlDeviceGetIndex(handle),
            pynvml.nvmlDeviceGetMinorNumber(handle),
            pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        )
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _first_visible() -> int | str | None:
    """The first entry of CUDA_VISIBLE_DEVICES, as CUDA reads it: None where it is set and names no GPU."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return first if first.startswith(("GPU-", "MIG-")) else int(first) if first.isdigit() else None


def _make_nodes() -> None:
    """Make /dev/nvidia-uvm, which otherwise the first CUDA program makes, and a sandbox cannot."""
    if tool := shutil.which("nvidia-modprobe"):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([tool, "-u", "-c=0"], capture_output=True, timeout=30, check=False)


def _text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Hold the lock of this device on this machine.  Raises Conflict where another worker has it."""
    visible = None if device == "cpu" else _first_visible()
    gpu = None if visible is None else _gpu(visible)
    # By the GPU itself: an index and a UUID may mean the same one.
    with _opened(settings().locks / f"kernelwatch-{(gpu and gpu.uuid) or device}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip() or "another process"
            raise Conflict(f"Another worker uses {device} on this machine ({holder}); only one may.") from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()}")
        lock.flush()
        yield


def _opened(path: Path) -> TextIO:
    """Open the lock file, made by the first user, for every user of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.fchmod(made, 0o666)
        os.close(made)
    # In a folder like /tmp the kernel refuses to open another user's file with O_CREAT, which mode "a" would ask for.
    return os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+")
