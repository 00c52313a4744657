"""Facts from machine code, and occupancy: pure functions, and two kernels compiled in this process."""

from collections import Counter
from types import SimpleNamespace

import pytest

from kernels.facts.architectures import KNOWN, occupancy, over_the_limit
from kernels.facts.machine import instruction_facts, normalised
from kernels.facts.offline.cute import shared_bytes
from kernels.facts.offline.described import text_of
from kernels.facts.offline.launches import Launch
from kernels.facts.texts import MAX_TEXT


@pytest.mark.parametrize(
    ("architecture", "warps", "registers", "shared", "blocks", "share", "limited_by"),
    [
        ("sm_90", 4, 32, 0, 16, 1.0, "warps"),
        ("sm_90", 4, 33, 0, 12, 0.75, "registers"),  # 40 after rounding: 1280 a warp, 51 warps, 48 in fours
        ("sm_90", 8, 40, 0, 6, 0.75, "registers"),
        ("sm_90", 16, 128, 16384, 1, 0.25, "registers"),
        ("sm_90", 32, 64, 0, 1, 0.5, "registers"),
        ("sm_90", 4, 32, 100_000, 2, 0.125, "shared memory"),
        ("sm_90", 4, 32, 232448, 1, 0.0625, "shared memory"),  # with the kibibyte of the system all that there is
        ("sm_90", 1, 16, 0, 32, 0.5, "blocks"),
        ("sm_80", 4, 32, 81920, 2, 0.125, "shared memory"),
        ("sm_120", 8, 32, 0, 6, 1.0, "warps"),  # 48 warps an SM
    ],
)
def test_occupancy(architecture, warps, registers, shared, blocks, share, limited_by):
    found = occupancy(KNOWN[architecture], warps=warps, registers=registers, shared=shared)

    assert (found.blocks, found.share, found.limited_by) == (blocks, share, limited_by)


@pytest.mark.parametrize(
    ("asked", "over"),
    [
        ({"shared": 232448}, None),
        ({"shared": 232449}, "shared memory: asks for 232449 bytes of 232448"),
        ({"num_warps": 64}, "threads: asks for 2048 threads of 1024"),
        ({"tmem_size": 640}, "tensor memory: asks for 640 columns of 512"),
    ],
)
def test_hard_limits(asked, over):
    metadata = SimpleNamespace(**{"shared": 0, "num_warps": 4, "tmem_size": None, **asked})

    assert over_the_limit(KNOWN["sm_100"], metadata) == over


def test_how_wide_memory_is_accessed():
    names = Counter(
        {
            "LDG.E.EL.128": 4,
            "LDG.E.U16": 2,
            "LDG.E.U8.CONSTANT": 1,
            "LDG.E.ENL2.256": 1,
            "LDG.E": 3,
            "STG.E.64": 2,
            "LDGSTS.E.BYPASS.128": 5,
            "UTMALDG.2D": 1,
            "LDL.LU": 7,
            "STL.128": 2,
            "LDS.128": 9,
            "FFMA": 10,
            "NOP": 11,
        }
    )

    found = instruction_facts(names)

    assert list(found["loads"].items()) == [("32", 1), ("16", 4), ("4", 3), ("2", 2), ("1", 1)]
    assert (found["stores"], found["async_loads"], found["bulk"]) == ({"8": 2}, {"16": 5}, 1)
    assert (found["spills"], found["instructions"]) == (9, 47)


def test_sass_is_shown_without_what_moves():
    listing = """
\t.headerflags\t@"EF_CUDA_SM90"
//--------------------- .text._copy      --------------------------
\t.section\t.text._copy,"ax",@progbits
        .other          _copy,@"STO_CUDA_ENTRY STV_DEFAULT"
_copy:
.text._copy:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0280*/              @P0  BRA `(.L_x_0) ;    /* 0x0000000000000947 */
.L_x_0:
        /*0290*/                   EXIT ;
"""
    assert normalised(listing).splitlines() == [
        "_copy:",
        "    LDC R1, c[0x0][0x28] ;",
        "    @P0 BRA `(.L_x_0) ;",
        ".L_x_0:",
        "    EXIT ;",
    ]


def test_a_text_fits_into_an_answer():
    text = text_of(Launch(kernel=None, source="x" * (MAX_TEXT + 25)), "generated")

    assert text.endswith("x\n... 25 more characters")
    assert len(text) < MAX_TEXT + 50


def test_shared_memory_of_a_cute_kernel_is_the_sum_of_its_allocations():
    ir = """
!memref_smem_i8 = !cute.memref<i8, smem, align<1024>, "16384:1">
!memref_smem_i8_1 = !cute.memref<i8, smem, align<8>, "16:1">
!memref_smem_bf16 = !cute.memref<bf16, smem, align<16>, "(2,4096):(4096,1)">
    %smem = cute.memref.alloca() {smem.partition_id = 1 : i32} : !memref_smem_i8_1
    %smem_5 = cute.memref.alloca() {smem.partition_id = 1 : i32} : !memref_smem_i8
    %rmem = cute.memref.alloca() : !memref_rmem_f32
"""
    assert shared_bytes(ir) == 1024 + 16384
