"""Facts from TTGIR and PTX: access widths, cache hints, and bytes read of each argument."""

from types import SimpleNamespace

import pytest
import torch

from kernels.facts.accesses import Bytes, of_ptx, of_ttgir
from kernels.facts.trace import moved_bytes

PTX = """
.visible .entry _forward(
	.param .u64 .ptr .global .align 1 _forward_param_0
)
{
	@%p5 ld.global.L1::evict_last.L2::cache_hint.v2.b32 { %r19, %r20 }, [ %rd8 + 0 ], %rd7;
	@%p9 ld.global.cg.v4.b32 { %r54, %r55, %r56, %r57 }, [ %rd12 + 0 ];
	@%p9 ld.global.b16 { %rs1 }, [ %rd12 + 0 ];
	@%p9 st.global.v2.b32 [ %rd13 + 0 ], { %r58, %r59 };
	cp.async.cg.shared.global [ %r8 + 0 ], [ %rd2 + 0 ], 0x10, %r9;
	ret;
}
"""

TTGIR = """
module attributes {"ttg.num-warps" = 8 : i32} {
  tt.func public @_forward(%X: !tt.ptr<bf16> {tt.divisibility = 16 : i32}, %W: !tt.ptr<f32>, %M: i32, %N: i32) {
    %c1024_i32 = arith.constant 1024 : i32
    %c0_i32 = arith.constant 0 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.get_num_programs x : i32
    %c = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32, #blocked>
    %n = tt.splat %N : i32 -> tensor<1024xi32, #blocked>
    %w = tt.splat %W : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>, #blocked>
    %m = arith.cmpi slt, %c, %n : tensor<1024xi32, #blocked>
    %v = tt.load %w, %m : tensor<1024x!tt.ptr<f32>, #blocked>
    scf.for %row = %0 to %M step %1  : i32 {
      %x = tt.splat %X : !tt.ptr<bf16> -> tensor<1024x!tt.ptr<bf16>, #blocked>
      %a = tt.load %x, %m evictionPolicy = evict_first : tensor<1024x!tt.ptr<bf16>, #blocked>
      %b = arith.extf %a : tensor<1024xbf16, #blocked> to tensor<1024xf32, #blocked>
      %s = "tt.reduce"(%b) <{axis = 0 : i32}> ({
      ^bb0(%l: f32, %r: f32):
        %t = arith.addf %l, %r : f32
        tt.reduce.return %t : f32
      }) : (tensor<1024xf32, #blocked>) -> f32
    }
    tt.return
  }
}
"""


def test_widths_and_hints_of_ptx():
    assert of_ptx(PTX) == {
        "loads": {"16": 1, "8": 1, "2": 1},
        "stores": {"8": 1},
        "async_loads": {"16": 1},
        "hints": {"load cg": 1, "load evict_last": 1},
        "instructions": 6,
    }


def test_bytes_are_counted_over_loops_and_programs_and_without_what_a_mask_leaves_out():
    """1,000 rows of 512 columns on 10 programs: a block of 1,024 columns asks for no more than there are."""
    found = of_ttgir(TTGIR, [Bytes(1000 * 512 * 2), Bytes(512 * 4), 1000, 512], (10,))

    assert found["reads"] == {
        "W": {"asked": 10 * 512 * 4, "size": 512 * 4},
        "X": {"asked": 1000 * 512 * 2, "size": 1000 * 512 * 2},
    }
    assert found["looped"] == {"X": 1000 * 512 * 2}
    assert (found["work"]["convert"], found["work"]["reduce"]) == (1000 * 1024, 1000 * 1024)
    assert "unknown_loops" not in found


def test_arguments_have_the_names_of_the_source_where_the_text_has_none():
    text = TTGIR.replace("%X", "%arg0").replace("%W", "%arg1")
    found = of_ttgir(text, [Bytes(1024000), Bytes(2048), 1000, 512], (10,), ["X", "W", "M", "N"])

    assert set(found["reads"]) == {"X", "W"}


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    assert of_ttgir(TTGIR, [Bytes(1024), Bytes(2048), None, 512], (10,))["unknown_loops"] == 1


@pytest.mark.parametrize(
    ("name", "call", "bytes_"),
    [
        ("aten::clone", lambda x: x.clone(), 2 * 4096),
        ("aten::zeros_like", torch.zeros_like, 4096),
        ("aten::zero_", lambda x: x.zero_(), 4096),
        ("aten::mul_.Tensor", lambda x: x.mul_(2.0), 2 * 4096),
        ("aten::_to_copy", lambda x: x.double(), 3 * 4096),
        ("aten::sum", lambda x: x.sum(), 4096 + 4),
        ("aten::relu", lambda x: torch.relu(x[:1].expand(8, 128)), 512 + 4096),
    ],
)
def test_bytes_that_an_operator_moves(name, call, bytes_):
    x = torch.ones(8, 128)
    given = x[:1].expand(8, 128) if name == "aten::relu" else x

    assert moved_bytes(name, ((given,), {}), call(x)) == bytes_


def test_texts_that_are_not_there_cost_nothing():
    from kernels.facts.triton import accesses_of

    assert accesses_of(SimpleNamespace(asm={}), (1,), ()) == {}
    assert accesses_of(SimpleNamespace(), (1,), ()) == {}
