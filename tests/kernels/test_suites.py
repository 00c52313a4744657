"""Suites contain valid cases without duplicates, and labels of their models."""

import math

import pytest

from kernels.cases import Case, Direction, Metric
from kernels.suites import LABELS, SUITES


def cases(suite):
    return [Case.parse(text) for text in SUITES[suite]]


@pytest.mark.parametrize("name", SUITES)
def test_suites_hold_cases_once_each_as_they_are_printed(name):
    parsed = cases(name)
    assert parsed
    assert [str(case) for case in parsed] == list(SUITES[name])
    assert len(set(parsed)) == len(parsed)


def test_quack_is_measured_where_it_measures_itself():
    shapes = {(case.rows, case.cols) for case in cases("quack")}

    assert len(shapes) == 11
    assert {(32768, 256), (32768, 65536), (16384, 131072), (8192, 262144)} <= shapes
    assert {(case.op, case.direction, case.rows, case.cols) for case in cases("quack")} == {
        (op, direction, *shape) for op in ("rmsnorm", "layernorm") for direction in ("fwd", "bwd") for shape in shapes
    }


def test_pr101_is_a_grid_of_powers_of_two():
    rows, cols = ({getattr(case, name) for case in cases("pr101")} for name in ("rows", "cols"))

    assert rows == {4096, 8192, 16384, 32768, 65536}
    assert cols == {256, 512, 1024, 2048, 4096}
    assert len(cases("pr101")) == 25
    assert {case.direction for case in cases("pr101")} == {Direction.BWD}


def test_every_case_of_the_models_is_named():
    assert set(SUITES["models"]) == set(LABELS)
    assert LABELS["rmsnorm.bwd.8192x16384.bf16"] == "Llama 3 405B, 8192 tokens"
    for family in ("Llama 3", "Qwen3", "DeepSeek-V3", "GPT-2", "BERT", "ViT"):
        assert any(label.startswith(family) for label in LABELS.values()), family


@pytest.mark.parametrize(
    ("shape", "sequences", "tokens", "heads"),
    [("12608x768", 64, 197, 1), ("16448x1280", 64, 257, 1), ("16384x768", 32, 512, 1), ("262144x128", 1, 4096, 64)],
)
def test_rows_are_what_the_label_says(shape, sequences, tokens, heads):
    [case, *_] = [Case.parse(text) for text in LABELS if f".{shape}." in text]
    assert case.rows == math.prod((sequences, tokens, heads))


def test_small_is_decoding():
    assert {case.rows for case in cases("small")} == {1, 2, 4, 8, 16, 32, 64, 128, 256}


def test_awkward_is_awkward():
    awkward = cases("awkward")

    assert {1152, 3000, 5120, 12288} <= {case.cols for case in awkward}
    assert {case.op for case in awkward if case.cols % 2} == {"rmsnorm", "layernorm"}
    assert {1, 7, 1023} <= {case.rows for case in awkward}
    assert any(case.stride % 8 for case in awkward), "no row that begins off 16 bytes"
    assert any((case.dtype, case.cols) == ("fp16", 3000) for case in awkward)


def test_heads_are_slices_of_packed_projections():
    shapes = {(case.heads, case.cols, case.stride) for case in cases("heads")}

    assert {(32, 128), (8, 128), (8, 256), (4, 256)} == {shape[:2] for shape in shapes}
    for cols in (128, 256):
        (queries, stride), (keys, same) = sorted(((one[0], one[2]) for one in shapes if one[1] == cols), reverse=True)
        assert stride == same == (queries + 2 * keys) * cols  # as many heads for values as for keys


def test_lanes_has_all_of_them():
    assert {case.metric for case in cases("metrics")} == set(Metric)
