"""The lanes in words: amounts with their units, changes, and the limits that count in each."""

import pytest
from pydantic import ValidationError

from kernels.cases import Case, Lane
from service.domain.metrics import amount, lane_of, percent
from service.domain.policy.policy import Policy

CASE = "rmsnorm.fwd.4096x1024.bf16-fp32"


def test_the_lane_is_the_end_of_a_case():
    for lane in Lane:
        text = f"rmsnorm.fwdbwd.4096x1024.bf16{'' if lane is Lane.KERNEL else f'.{lane}'}"
        assert Case.parse(text).lane is lane_of(text) is lane
    assert lane_of("softmax.fwd.of another version") is Lane.KERNEL


@pytest.mark.parametrize(
    ("value", "lane", "said"),
    [
        (7.314, Lane.KERNEL, "7.31 µs"),
        (18.94, Lane.CALL, "18.9 µs"),
        (99.97, Lane.KERNEL, "100 µs"),
        (10432.2, Lane.BLOCK, "10,432 µs"),
        (1_804_000, Lane.COMPILE, "1.80 s"),
        (94_300, Lane.COMPILE, "94.3 ms"),
        (512, Lane.MEMORY, "512 B"),
        (999.4, Lane.MEMORY, "999 B"),
        (999.7, Lane.MEMORY, "1.00 kB"),
        (999_960, Lane.COMPILE, "1.00 s"),
        (16_777_216, Lane.MEMORY, "16.8 MB"),
        (2.5e9, Lane.MEMORY, "2.50 GB"),
        (0, Lane.MEMORY, "0.00 B"),
        (None, Lane.MEMORY, "–"),
    ],
)
def test_amounts_have_their_unit_beside_them(value: float | None, lane: Lane, said: str):
    assert amount(value, lane) == said


@pytest.mark.parametrize(
    ("ratio", "lane", "said"),
    [
        (1.102, Lane.KERNEL, "10.2 % slower"),
        (0.97, Lane.COMPILE, "3.0 % faster"),
        (1.25, Lane.MEMORY, "25.0 % more memory"),
        (0.9, Lane.MEMORY, "10.0 % less memory"),
        (1.0, Lane.MEMORY, "no change"),
        (None, Lane.CALL, "not compared"),
    ],
)
def test_a_change_is_said_in_the_words_of_its_lane(ratio: float | None, lane: Lane, said: str):
    assert percent(ratio, lane) == said


@pytest.mark.parametrize(
    ("given", "lane", "change", "control"),
    [
        ({}, "kernel", 0.01, 0.5),
        ({}, "call", 0.05, 0.5),
        ({}, "block", 0.02, 0.5),
        ({}, "compile", 0.20, 0.5),
        ({}, "memory", 0.01, 0.5),
        ({"smallest_change": 0.15, "control_limit": 0.4}, "kernel", 0.15, 0.4),
        ({"smallest_change": 0.15, "control_limit": 0.4}, "call", 0.15, 0.4),  # nothing is less noisy than kernels …
        ({"smallest_change": 0.15, "control_limit": 0.4}, "memory", 0.01, 0.4),  # … but bytes have no noise
        ({"smallest_change": 0.15, "lanes": {"call": 0.03}}, "call", 0.03, 0.5),
        ({"lanes": {"call": 0.03}}, "compile", 0.20, 0.5),
        ({"lanes": {"call": {"smallest_change": 0.03, "control_limit": 0.8}}}, "call", 0.03, 0.8),
    ],
)
def test_each_lane_has_its_limits(given: dict[str, object], lane: str, change: float, control: float):
    limits = Policy.model_validate(given).at(CASE if lane == "kernel" else f"{CASE}.{lane}")
    assert (limits.smallest_change, limits.control_limit) == (change, control)


@pytest.mark.parametrize(
    "lanes", [{"call": 0}, {"call": "much"}, {"kernel": 0.02}, {"kall": 0.05}, {"call": {"control_limit": 0.1}}]
)
def test_a_limit_that_is_none_is_refused(lanes: dict[str, object]):
    with pytest.raises(ValidationError):
        Policy.model_validate({"lanes": lanes})


def test_a_control_limit_from_before_it_was_a_share_is_refused():
    with pytest.raises(ValidationError, match=r"control_limit\n.*greater than or equal to 0\.1"):
        Policy.model_validate({"control_limit": 0.02})
