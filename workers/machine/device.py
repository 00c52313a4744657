"""Detect the devices of this machine, and lock them."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

from service.errors import BadInput, Conflict
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
    def key(self) -> str:
        """What distinguishes it from the other devices of this machine, however a process counts them."""
        return self.uuid or self.name

    @property
    def product(self) -> str:
        return self.description.rpartition(", ")[0]

    @property
    def nodes(self) -> tuple[Path, ...]:
        """The device files that a contender on this GPU needs, without those of other GPUs."""
        if self.minor is None:
            return ()
        nodes = (Path("/dev", name) for name in (*_SHARED_NODES, f"nvidia{self.minor}"))
        return tuple(node for node in nodes if node.exists())


def ask() -> tuple[DeviceHere, ...]:
    """The devices of this process: the GPUs of KERNELWATCH_GPUS, else the first visible one, else the processor.

    Raises:
        BadInput: KERNELWATCH_GPUS cannot be read, or names a GPU twice.
        Conflict: KERNELWATCH_DEVICE or KERNELWATCH_GPUS ask for what is not here, or for GPUs of two models.
    """
    wanted, chosen = settings().device, settings().gpus
    if wanted == "cpu":
        return (DeviceHere("cpu", _processor()),)
    gpus = tuple(map(_numbered, _numbers(chosen))) if chosen else _first_gpu()
    if not gpus:
        if wanted is not None:
            hidden = " (`nvidia-smi`)" if _visible(0) is not None else ": CUDA_VISIBLE_DEVICES hides them all"
            raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, but no NVIDIA GPU was found here{hidden}.")
        return (DeviceHere("cpu", _processor()),)
    first, *others = gpus
    if wanted is not None and wanted != first.name:
        raise Conflict(f"KERNELWATCH_DEVICE is {wanted}, but the GPU here is {first.description} ({first.name}).")
    for other in others:
        if (other.product, other.memory) != (first.product, first.memory):
            raise Conflict(
                f"KERNELWATCH_GPUS names {first.description} and {other.description}, which are two models. "
                "Start a worker for each model."
            )
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise BadInput(f"KERNELWATCH_GPUS is {chosen}, which names a GPU twice. Name each once.")
    return gpus


def is_lost(here: DeviceHere) -> bool:
    """Whether the driver does not answer for this GPU any more."""
    return here.uuid is not None and here.name != "cpu" and _read(here.uuid) is None


def _numbers(chosen: str) -> list[int]:
    """The numbers in a text like `0-3` or `0,2`."""
    numbers: list[int] = []
    for part in chosen.split(","):
        ends = re.fullmatch(r"\s*(\d{1,3})(?:\s*-\s*(\d{1,3}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if last < first:
            raise BadInput(f"KERNELWATCH_GPUS is {chosen!r:.60}. Write numbers of GPUs, like 0-3 or 0,2.")
        numbers += range(first, last + 1)
    return numbers


def _numbered(number: int) -> DeviceHere:
    """The GPU with this number among those that CUDA sees."""
    which = _visible(number)
    if which is None or (gpu := _gpu(which)) is None:
        raise Conflict(
            f"KERNELWATCH_GPUS names GPU {number}, which is not here. `nvidia-smi` lists the GPUs, and "
            "CUDA_VISIBLE_DEVICES may hide some."
        )
    return gpu


def _first_gpu() -> tuple[DeviceHere, ...]:
    gpu = None if (which := _visible(0)) is None else _gpu(which)
    return () if gpu is None else (gpu,)


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
    _make_nodes()
    return _read(which)


def _read(which: int | str) -> DeviceHere | None:
    """What the driver says of the GPU with this index or UUID; None where it does not answer."""
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


def _visible(number: int) -> int | str | None:
    """An entry of CUDA_VISIBLE_DEVICES, as CUDA reads it: None where it is set and names no such GPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return number
    entry = dict(enumerate(named.split(","))).get(number, "").strip()
    return entry if entry.startswith(("GPU-", "MIG-")) else int(entry) if entry.isdigit() else None


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
def exclusive(*keys: str) -> Iterator[None]:
    """Hold the locks of these devices on this machine.  Raises Conflict where another worker has one of them."""
    with ExitStack() as held:
        for key in keys:
            lock = held.enter_context(_opened(settings().locks / f"kernelwatch-{key}.lock"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = lock.read().strip() or "another process"
                raise Conflict(f"Another worker uses {key} on this machine ({holder}); only one may.") from None
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
