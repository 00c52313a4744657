"""Start the contenders of a run: sandboxed processes of kernels/contender/__main__.py, each in its environment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender
from kernels.cases import Case, Role
from service.settings import GIB, MIB, settings
from workers.device import DeviceHere
from workers.environments import BaseStack, Environment, cache_of, hash_seed
from workers.sandbox import sandbox
from workers.sandbox.folders import remove
from workers.sandbox.sandbox import Box, Limits
from workers.sandbox.usage import used

SCRATCH_DISK, MIN_DISK = 4 * GIB, 64 * MIB  # bytes of one start, with what the revision compiled before
LAST_CASE_S = 300.0  # how long a case that runs at the session's limit may still take
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "QUACK_CACHE_DIR": "quack",
    "CUDA_CACHE_PATH": "cuda",
}
_DRIVER = Path("/usr/local/nvidia/lib64")  # where some clusters mount the driver, outside of what the linker knows
_ON_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    # glibc gives large freed blocks back and faults them in again at every call: identical code then differed by up to
    # 1.6x; with these within 4 % (rmsnorm.bwd, November).
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    # Small freed blocks that a thread keeps for itself keep the large ones next to them apart, so each process cycled
    # through temporaries of its own: identical code differed by 0.68 to 1.46 from trial to trial at 128x2048, without
    # by 0.95 to 1.07 (November).
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


def contender(
    label: str,
    role: Role,
    provider: Mapping[str, Any],
    place: Environment | BaseStack,
    here: DeviceHere,
    *,
    sandboxed: bool,
    scratch: Path,
    cases: frozenset[Case] | None = None,
) -> Contender:
    """A contender whose `start` opens a fresh process in a fresh scratch folder, with only its own GPU.

    It takes part at `cases`, or at all cases where there are none named.
    """
    starts: list[Path] = []  # the folder of each
    caches = cache_of(place.key)
    (caches / "tmp").mkdir(exist_ok=True)
    environment = {
        "PATH": f"{place.python.parent}:/usr/bin:/bin",
        "PYTHONPATH": ":".join(map(str, place.paths)),
        "KERNELWATCH_TREE": ":".join(map(str, place.tree)),  # imported from once the trial begins
        **({"KERNELWATCH_CHECKOUT": str(place.checkout)} if isinstance(place, Environment) else {}),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        # No pool of compile workers next to the measurement; a warm start takes 3.2 s instead of 6.2 s (CPU, November).
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Inductor keeps its precompiled headers among the temporary files: fresh ones cost each start 5 s (November).
        "TMPDIR": str(caches / "tmp"),
        **{variable: str(caches / folder) for variable, folder in _CACHES.items()},
        **(hash_seed(place.hash_seed) if isinstance(place, Environment) else {}),
        **(_ON_CPU if here.name == "cpu" else _on_gpu(here)),
    }

    def start() -> Channel:
        if len(starts) > 1:
            remove(starts[-2])  # else a run could fill the disk, start by start; the last one may still be at work
        starts.append(folder := scratch / f"{label.replace(':', '-')}-{len(starts)}")
        cache_of(place.key)  # says that the environment is in use, which keeps it from being evicted
        (folder / "home").mkdir(parents=True)
        kept = used([caches], SCRATCH_DISK) if isinstance(place, Environment) else 0  # a stack's are everybody's
        box = Box(
            folder / "home",
            read_only=(*place.read_only, protocol.KERNELS),
            writable=(caches,),
            environment={**environment, "HOME": str(folder / "home")},
            devices=here.nodes,
            limits=Limits(wall_s=settings().session_limit_s + 2 * LAST_CASE_S, disk=max(SCRATCH_DISK - kept, MIN_DISK)),
            sandboxed=sandboxed,
            kept=False,
        )
        log = folder / "stderr.log"
        # With its provider it imports at once what is not the target's, also before its trial begins.
        command = [str(place.python), "-P", str(protocol.CONTENDER), json.dumps(provider)]
        process = sandbox.start(command, box, log)
        return Channel(process, log, sandbox.freezer(process))

    return Contender(label, role, provider, start, cases)


def _on_gpu(here: DeviceHere) -> dict[str, str]:
    visible = {"OMP_NUM_THREADS": "4"} | ({"CUDA_VISIBLE_DEVICES": here.uuid} if here.uuid else {})
    return visible | ({"LD_LIBRARY_PATH": str(_DRIVER)} if _DRIVER.exists() else {})
