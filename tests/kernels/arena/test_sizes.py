"""Numbers of input sets and of calls in a graph."""

import pytest

from kernels.arena.sizes import COLD, calls_in_graph, sets_needed, sets_of_pass, stays_in_l2
from kernels.cases import Case

H200 = {"l2_bytes": 63_000_000, "memory_bytes": 150_000_000_000}
SMALLER = {"l2_bytes": 40_000_000, "memory_bytes": 24_000_000_000}


def read_bytes(text: str) -> int:
    case = Case.parse(text)
    return case.rows * case.cols * 2 * sum(name in ("x", "dy") for name in case.inputs)


@pytest.mark.parametrize(
    ("text", "sets", "cold"),
    [
        ("rmsnorm.fwd.32768x1024.bf16-fp32", 56, True),  # two milliseconds of a kernel that moves 4 TB/s
        ("rmsnorm.fwd.8192x8192.bf16-fp32", 28, True),
        ("rmsnorm.fwd.4096x1024.bf16-fp32", 322, True),
        ("rmsnorm.bwd.8192x8192.bf16-fp32", 18, True),
        ("rmsnorm.fwd.1024x512.bf16-fp32", 768, True),
        ("rmsnorm.fwd.64x4096.bf16-fp32", 768, False),  # half a megabyte each
        ("rmsnorm.fwd.32768x65536.bf16-fp32", 2, True),  # 4 GB each
    ],
)
def test_every_call_of_a_graph_has_memory_of_its_own(text, sets, cold):
    each = read_bytes(text)

    assert sets_needed(Case.parse(text), each, **H200) == sets
    assert calls_in_graph(Case.parse(text), sets) == sets
    assert stays_in_l2(each, sets, H200["l2_bytes"]) is not cold
    assert not cold or sets * each >= COLD * H200["l2_bytes"]


def test_a_smaller_device_holds_fewer():
    case = "rmsnorm.fwd.8192x8192.bf16-fp32"
    assert sets_needed(Case.parse(case), read_bytes(case), **SMALLER) == 11
    assert sets_needed(Case.parse(case), 4 * read_bytes(case), **SMALLER) == 2


def test_on_a_processor_caches_are_part_of_the_work():
    assert sets_needed(Case.parse("rmsnorm.fwd.8x64.fp32"), 2048, None) == 2


@pytest.mark.parametrize(
    ("case", "sets"),
    [
        ("rmsnorm.fwd.8x64.fp32", 768),
        ("rmsnorm.fwd.256x512.fp32", 15),  # 16 MiB
        ("rmsnorm.fwd.512x2048.fp32", 2),  # 8 MiB a call
    ],
)
def test_a_single_pass_on_a_processor_is_long_enough(case, sets):
    assert sets_of_pass(Case.parse(case)) == sets


@pytest.mark.parametrize(("sets", "calls"), [(2, 56), (3, 54), (54, 54), (200, 200)])
def test_calls_in_a_graph_are_once_or_more_through_all_sets(sets, calls):
    assert calls_in_graph(Case.parse("rmsnorm.fwd.32768x1024.bf16-fp32"), sets) == calls
