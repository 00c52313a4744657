"""What a GPU architecture allows, and how many blocks of a kernel it can hold at once.  Pure."""

from dataclasses import dataclass
from typing import Any

REGISTERS = 65536  # of an SM, 32 bits each, on every architecture here
REGISTER_STEP = 8  # a thread's registers are handed out in steps of eight
WARP_STEP = 4  # and warps in fours: one for each of the four parts of an SM
RESERVED = 1024  # bytes of shared memory that the system keeps of each block, from compute capability 8.0 on
SHARED_STEP = 128
THREADS_A_BLOCK = 1024
TENSOR_MEMORY = 512  # columns


@dataclass(frozen=True)
class Architecture:
    """The numbers of one GPU of an architecture: "Compute Capabilities" in the CUDA Programming Guide, and its own."""

    name: str
    capability: tuple[int, int]
    like: str  # the GPU whose SMs and L2 are taken
    sms: int
    l2_bytes: int
    memory_bytes: int
    shared_per_sm: int
    shared_limit: int  # bytes a block may have when it asks for more than 48 KiB
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
    blocks: int  # an SM
    share: float  # of the warps that an SM can hold
    limited_by: str


def occupancy(architecture: Architecture, *, warps: int, registers: int, shared: int) -> Occupancy:
    """Blocks on an SM and what keeps them from being more.  `shared` is what a block asks for, in bytes, in all."""
    per_warp = -(-max(registers, 1) // REGISTER_STEP) * REGISTER_STEP * 32
    taken = -(-(shared + RESERVED) // SHARED_STEP) * SHARED_STEP
    limits = {
        "registers": REGISTERS // per_warp // WARP_STEP * WARP_STEP // warps,
        "shared memory": architecture.shared_per_sm // taken,
        "warps": architecture.threads_per_sm // 32 // warps,
        "blocks": architecture.blocks_per_sm,
    }
    # of two that limit alike, a kernel that fills the SM is told so
    limited_by = min(("warps", "registers", "shared memory", "blocks"), key=limits.__getitem__)
    blocks = limits[limited_by]
    return Occupancy(blocks, round(blocks * warps * 32 / architecture.threads_per_sm, 4), limited_by)


def over_the_limit(architecture: Architecture, metadata: Any) -> str | None:
    """In words, what a compiled Triton kernel asks for and can not have; None where it fits."""
    asked = (
        ("shared memory", int(metadata.shared or 0), architecture.shared_limit, "bytes"),
        ("threads", 32 * int(metadata.num_warps), THREADS_A_BLOCK, "threads"),
        ("tensor memory", int(getattr(metadata, "tmem_size", None) or 0), TENSOR_MEMORY, "columns"),
    )
    for what, wanted, limit, unit in asked:
        if wanted > limit:
            return f"{what}: asks for {wanted} {unit} of {limit}"
    return None
