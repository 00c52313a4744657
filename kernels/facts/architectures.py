"""Resource limits of GPU architectures, and occupancy.  Pure."""

from dataclasses import dataclass
from typing import Any

REGISTERS = 65536  # of an SM, 32 bits each, on every architecture here
REGISTER_STEP = 8  # allocation granularity of a thread's registers
WARP_STEP = 4  # allocation granularity of warps: one for each of the four partitions of an SM
RESERVED = 1024  # bytes of shared memory that the system reserves in each block, from compute capability 8.0 on
SHARED_STEP = 128
THREADS_A_BLOCK = 1024
TENSOR_MEMORY = 512  # columns


@dataclass(frozen=True)
class Architecture:
    """Limits of an architecture ("Compute Capabilities" in the CUDA Programming Guide) and sizes of one of its GPUs."""

    name: str
    capability: tuple[int, int]
    like: str  # the GPU with these SMs and this L2
    sms: int
    l2_bytes: int
    memory_bytes: int
    shared_per_sm: int
    shared_limit: int  # bytes of a block that opts in to more than 48 KiB
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32

    @property
    def number(self) -> int:
        return self.capability[0] * 10 + self.capability[1]


_MIB, _GIB = 1 << 20, 1 << 30
KNOWN = {
    one.name: one
    for one in (
        Architecture("sm_80", (8, 0), "A100", 108, 40 * _MIB, 80 * _GIB, 167936, 166912),
        Architecture("sm_86", (8, 6), "A10", 72, 6 * _MIB, 24 * _GIB, 102400, 101376, 1536, 16),
        Architecture("sm_89", (8, 9), "L40S", 142, 96 * _MIB, 48 * _GIB, 102400, 101376, 1536, 24),
        Architecture("sm_90", (9, 0), "H200", 132, 60 * _MIB, 140 * _GIB, 233472, 232448),
        Architecture("sm_100", (10, 0), "B200", 148, 126 * _MIB, 180 * _GIB, 233472, 232448),
        Architecture("sm_120", (12, 0), "RTX PRO 6000", 188, 128 * _MIB, 96 * _GIB, 102400, 101376, 1536, 24),
    )
}


@dataclass(frozen=True)
class Occupancy:
    blocks: int  # of an SM
    share: float  # of the warps that fit on an SM
    limited_by: str


def occupancy(architecture: Architecture, *, warps: int, registers: int, shared: int) -> Occupancy:
    """Blocks on an SM and the resource that limits them.  `shared`: bytes of a block, static and dynamic."""
    per_warp = -(-max(registers, 1) // REGISTER_STEP) * REGISTER_STEP * 32
    taken = -(-(shared + RESERVED) // SHARED_STEP) * SHARED_STEP
    limits = {
        "registers": REGISTERS // per_warp // WARP_STEP * WARP_STEP // warps,
        "shared memory": architecture.shared_per_sm // taken,
        "warps": architecture.threads_per_sm // 32 // warps,
        "blocks": architecture.blocks_per_sm,
    }
    # of two equal limits name the warps, as the SM is full then
    limited_by = min(("warps", "registers", "shared memory", "blocks"), key=limits.__getitem__)
    blocks = limits[limited_by]
    return Occupancy(blocks, round(blocks * warps * 32 / architecture.threads_per_sm, 4), limited_by)


def over_the_limit(architecture: Architecture, metadata: Any) -> str | None:
    """The limit that a compiled Triton kernel exceeds, as text; None if it fits."""
    asked = (
        ("shared memory", int(metadata.shared or 0), architecture.shared_limit, "bytes"),
        ("threads", 32 * int(metadata.num_warps), THREADS_A_BLOCK, "threads"),
        ("tensor memory", int(getattr(metadata, "tmem_size", None) or 0), TENSOR_MEMORY, "columns"),
    )
    for what, wanted, limit, unit in asked:
        if wanted > limit:
            return f"{what}: asks for {wanted} {unit} of {limit}"
    return None
