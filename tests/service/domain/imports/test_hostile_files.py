"""Whatever a file holds, it is read as values that can be stored, or refused by a sentence."""

import codecs
import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.imports import formats, histories
from service.domain.imports.formats import ImportFormat, values_of
from service.domain.imports.values import ImportFile
from service.domain.ingest import MAX_NAME, MAX_UNIT
from service.errors import BadInput
from tests.service.domain.imports.files import FILES, NAMES

FORMS = st.sampled_from(ImportFormat)
KEYS = sorted(
    {
        "benchmarks",
        "stats",
        "data",
        "median",
        "name",
        "results",
        "command",
        "times",
        "entries",
        "commit",
        "id",
        "benches",
    }
    | {"value", "unit", "date", "tool", "metric", "benchmark", "benchmark_values", "latency", "iters", "point_estimate"}
    | {"commit_hash", "result_columns", "real_time", "aggregate_name", "run_name", "timestamp"}
)
LEAVES = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8) | st.sampled_from([10**400, "\ud800"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


def check(form: ImportFormat, content: bytes) -> None:
    """Every value can be stored; nothing but BadInput is raised, and its message can be printed."""
    try:
        for value in values_of(form, ImportFile(NAMES.get(form, "file"), content, "ms")):
            assert bool(value.samples) != (value.missing is not None)
            assert all(math.isfinite(sample) and sample >= 0 for sample in value.samples)
            assert 1 <= len(value.name.encode()) <= 4 * MAX_NAME
            assert len(value.unit) <= MAX_UNIT
            assert value.origin.at is None or 0 <= value.origin.at < 253_402_300_800
    except BadInput as refused:
        message = str(refused)
    else:
        return
    assert 0 < len(message.encode()) < 4_000


@given(FORMS, st.binary(max_size=200))
def test_bytes(form: ImportFormat, content: bytes) -> None:
    check(form, content)


@given(FORMS, TREES)
def test_json_of_any_shape(form: ImportFormat, tree: object) -> None:
    check(form, json.dumps(tree).encode())


@settings(max_examples=300)
@given(FORMS, st.data())
def test_a_value_that_is_replaced(form: ImportFormat, data: st.DataObject) -> None:
    """A valid file, in which one number, text or bracket is another one."""
    content = FILES[form]
    at = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(0, 12))
    other = data.draw(
        st.sampled_from(
            [
                "",
                "NaN",
                "-Infinity",
                "null",
                "true",
                '"',
                "[",
                "}",
                "1e999",
                "9" * 5000,
                "-1",
                "0",
                "\\ud800",
                "\0",
                "\r",
                ";",
                ",",
            ]
        )
    )
    check(form, (content[:at] + other + content[at + length :]).encode())


@given(FORMS, st.integers(0, 2_000))
def test_a_truncated_file(form: ImportFormat, end: int) -> None:
    check(form, FILES[form].encode()[:end])


@pytest.mark.parametrize("form", ImportFormat)
def test_nesting_without_end(form: ImportFormat) -> None:
    check(form, b"[" * 200_000)
    check(form, b'{"benchmarks":' * 200_000)
    check(form, b'"' * 200_001)


@pytest.mark.parametrize("form", ImportFormat)
def test_a_byte_order_mark_and_other_line_ends_change_nothing(form: ImportFormat) -> None:
    source = ImportFile(NAMES.get(form, "file"), FILES[form].encode())
    plain = list(values_of(form, source))
    windows = FILES[form].replace("\r\n", "\n").replace("\n", "\r\n").encode()
    assert plain
    assert list(values_of(form, ImportFile(source.name, codecs.BOM_UTF8 + windows))) == plain


def test_a_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_FILE", 1 << 20)
    with pytest.raises(BadInput, match="file: it has more than 1 MiB; import it in parts"):
        values_of(ImportFormat.ASV, ImportFile("file", b" " * (1 << 20) + b"{}"))


def test_many_parameters_of_asv_do_not_multiply() -> None:
    row = [[1.0], [["1", "2"]] * 30]
    content = {"commit_hash": "a", "result_columns": ["result", "params"], "results": {"time_a": row}}
    [value] = values_of(ImportFormat.ASV, ImportFile("file", json.dumps(content).encode()))
    assert value.samples == (1e6,)


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (ImportFormat.TRITONBENCH, b"x;a-latency\n1;0" + b" " * 120_000 + b"x\n"),
        (ImportFormat.TRITON, b"N,a" + b" " * 120_000 + b"b\n1,2\n"),
        (ImportFormat.PYTORCH_HUD, b'{"benchmark": {"name": "a"}, "metric": {"name": "a' + b" " * 120_000 + b'b"}}'),
    ],
)
def test_blanks_take_no_time(form: ImportFormat, content: bytes) -> None:
    began = time.process_time()
    check(form, content)
    assert time.process_time() - began < 2


def test_failures_of_asv_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "_MOST_VALUES", 1_000)
    failed = [None, [["1"] * 20, ["2"] * 20]]
    written = {"commit_hash": "a", "result_columns": ["result", "params"], "results": {"a": failed, "b": failed}}
    assert len(list(values_of(ImportFormat.ASV, ImportFile("file", json.dumps(written).encode())))) == 800
    written["results"] = {"a": failed, "b": failed, "c": failed}
    with pytest.raises(BadInput, match="more than 1,000 results"):
        list(values_of(ImportFormat.ASV, ImportFile("file", json.dumps(written).encode())))
