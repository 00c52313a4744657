"""The metrics in words: amounts with their units, changes, and the limits that count in each."""

import json
import re

import pytest
from pydantic import ValidationError

from kernels.cases import Case, Metric
from service.domain.ingest import read_lines
from service.domain.metrics import amount, in_range, instead, metric_of, percent, signed
from service.domain.policy.policy import Policy
from service.domain.stats import counts
from service.errors import BadInput

CASE = "rmsnorm.fwd.4096x1024.bf16-fp32"


def test_the_metric_is_the_end_of_a_case():
    for metric in Metric:
        text = f"rmsnorm.fwdbwd.4096x1024.bf16{'' if metric is Metric.KERNEL else f'.{metric}'}"
        assert Case.parse(text).metric is metric_of(text) is metric
    assert metric_of("softmax.fwd.of another version") is Metric.KERNEL


@pytest.mark.parametrize(
    ("value", "metric", "said"),
    [
        (7.314, Metric.KERNEL, "7.31 µs"),
        (18.94, Metric.CALL, "18.9 µs"),
        (99.97, Metric.KERNEL, "100 µs"),
        (10432.2, Metric.BLOCK, "10,432 µs"),
        (1_804_000, Metric.COMPILE, "1.80 s"),
        (94_300, Metric.COMPILE, "94.3 ms"),
        (512, Metric.MEMORY, "512 B"),
        (999.4, Metric.MEMORY, "999 B"),
        (999.7, Metric.MEMORY, "1.00 kB"),
        (999_960, Metric.COMPILE, "1.00 s"),
        (16_777_216, Metric.MEMORY, "16.8 MB"),
        (2.5e9, Metric.MEMORY, "2.50 GB"),
        (0, Metric.MEMORY, "0.00 B"),
        (None, Metric.MEMORY, "–"),
    ],
)
def test_amounts_have_their_unit_beside_them(value: float | None, metric: Metric, said: str):
    assert amount(value, metric) == said


@pytest.mark.parametrize(
    ("ratio", "metric", "said"),
    [
        (1.102, Metric.KERNEL, "10.2 % slower"),
        (0.97, Metric.COMPILE, "3.0 % faster"),
        (1.25, Metric.MEMORY, "25.0 % more memory"),
        (0.9, Metric.MEMORY, "10.0 % less memory"),
        (1.0, Metric.MEMORY, "no change"),
        (None, Metric.CALL, "not compared"),
    ],
)
def test_a_change_is_said_in_the_words_of_its_metric(ratio: float | None, metric: Metric, said: str):
    assert percent(ratio, metric) == said


@pytest.mark.parametrize(
    ("given", "metric", "change", "control"),
    [
        ({}, "kernel", 0.01, 0.5),
        ({}, "call", 0.05, 0.5),
        ({}, "block", 0.02, 0.5),
        ({}, "compile", 0.20, 0.5),
        ({}, "memory", 0.01, 0.5),
        ({"smallest_change": 0.15, "control_limit": 0.4}, "kernel", 0.15, 0.4),
        ({"smallest_change": 0.15, "control_limit": 0.4}, "call", 0.15, 0.4),  # nothing is less noisy than kernels …
        ({"smallest_change": 0.15, "control_limit": 0.4}, "memory", 0.01, 0.4),  # … but bytes have no noise
        ({"smallest_change": 0.15, "metrics": {"call": 0.03}}, "call", 0.03, 0.5),
        ({"metrics": {"call": 0.03}}, "compile", 0.20, 0.5),
        ({"metrics": {"call": {"smallest_change": 0.03, "control_limit": 0.8}}}, "call", 0.03, 0.8),
    ],
)
def test_each_metric_has_its_limits(given: dict[str, object], metric: str, change: float, control: float):
    limits = Policy.model_validate(given).at(CASE if metric == "kernel" else f"{CASE}.{metric}")
    assert (limits.smallest_change, limits.control_limit) == (change, control)


@pytest.mark.parametrize(
    "metrics", [{"call": 0}, {"call": "much"}, {"kernel": 0.02}, {"kall": 0.05}, {"call": {"control_limit": 0.1}}]
)
def test_a_limit_that_is_none_is_refused(metrics: dict[str, object]):
    with pytest.raises(ValidationError):
        Policy.model_validate({"metrics": metrics})


def test_a_control_limit_from_before_it_was_a_share_is_refused():
    with pytest.raises(ValidationError, match=r"control_limit\n.*greater than or equal to 0\.1"):
        Policy.model_validate({"control_limit": 0.02})


@pytest.mark.parametrize(
    ("metric", "samples", "mistake"),
    [
        ("kernels", [0, 3.0], None),
        ("kernels", [3, 2.5], "Line 2: samples.1: a count is a whole number, not 2.5."),
        ("memory", [0], "Line 2: samples.0: a time or a size is more than 0."),
        ("call", [1.5, 0], "Line 2: samples.1: a time or a size is more than 0."),
    ],
)
def test_measurements_from_elsewhere_are_in_the_unit_of_their_case(metric, samples, mistake):
    line = {"revision": "1f3a9c2", "provider": "norms", "case": f"rmsnorm.fwd.16x128.fp32.{metric}", "samples": samples}
    if mistake is None:
        [sent] = read_lines([json.dumps(line).encode()])
        assert list(sent.samples) == samples
    else:
        with pytest.raises(BadInput, match=f"^{re.escape(mistake)}"):
            list(read_lines([json.dumps(line).encode()]))


@pytest.mark.parametrize(
    ("ratio", "words", "sign"),
    [
        (counts.ratio(1), "1 more kernel", "+1"),
        (counts.ratio(-2), "2 fewer kernels", "−2"),
        (1.0, "no change", "0"),
    ],
)
def test_a_change_of_a_count_is_a_number(ratio, words, sign):
    assert (percent(ratio, Metric.KERNELS), signed(ratio, Metric.KERNELS)) == (words, sign)
    assert in_range(ratio, ratio, Metric.KERNELS) == ""


def test_counts_of_two_sides_are_said_together():
    assert instead(3, 2, Metric.KERNELS) == "3 kernels instead of 2"
    assert instead(1, 0, Metric.BREAKS) == "1 graph break instead of 0"
    assert instead(2, 2, Metric.KERNELS) == instead(3.0, 2.0, Metric.CALL) == ""
