"""What is read of each format: names, contenders, units, directions, revisions, times, and values without a number."""

import json

import pytest

from service.domain.imports.formats import ImportFormat, values_of
from service.domain.imports.values import ImportedValue, ImportFile
from service.domain.states import Better, Missing
from service.errors import BadInput
from tests.service.domain.imports.files import FILES, LATER, NAMES, SHA

AT = 1772355600.0  # 2026-03-01 09:00 UTC


def read(form: ImportFormat, content: str | None = None, unit: str | None = None) -> list[ImportedValue]:
    written = FILES[form] if content is None else content
    return list(values_of(form, ImportFile(NAMES.get(form, "file"), written.encode(), unit)))


def said(value: ImportedValue) -> tuple[str, str | None, object, str, str]:
    shown = [round(sample, 9) for sample in value.samples]
    return value.name, value.origin.contender, value.missing or shown, value.unit, value.better


SMALLER, LARGER = Better.SMALLER, Better.LARGER


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (
            ImportFormat.PYTEST_BENCHMARK,
            [
                ("t.py::n[64]", None, [1.0, 2.0, 4.0], "us", SMALLER),
                ("quick", None, Missing.BELOW_CLOCK, "us", SMALLER),
            ],
        ),
        (
            ImportFormat.GOOGLE_BENCHMARK,
            [
                ("BM/64", None, [8.0, 9.0], "us", SMALLER),
                ("BM/64 bytes_per_second", None, [2.0, 1.0], "GB/s", LARGER),
                ("Broken", None, Missing.FAILED, "us", SMALLER),
                ("Only", None, [0.4], "us", SMALLER),
            ],
        ),
        (
            ImportFormat.GITHUB_ACTION_BENCHMARK,
            [("copy/64", "GPU", [250.0], "us", SMALLER), ("copy/64", "GPU", Missing.NULL, "us", SMALLER)],
        ),
        (
            ImportFormat.HYPERFINE,
            [
                ("./norm 64", None, [2000.0, 4000.0], "us", SMALLER),
                ("./norm 64 memory", None, [4096.0, 8192.0], "bytes", SMALLER),
            ],
        ),
        (
            ImportFormat.ASV,
            [
                ("n.time_norm(64, 'bf16')", None, [1.0, 5.0], "us", SMALLER),
                ("n.time_norm(64, 'fp16')", None, Missing.FAILED, "us", SMALLER),
                ("n.time_norm(128, 'bf16')", None, Missing.NOT_A_NUMBER, "us", SMALLER),
                ("n.time_norm(128, 'fp16')", None, [5.0], "us", SMALLER),
                ("n.peakmem_norm", None, [4096.0], "bytes", SMALLER),
            ],
        ),
        (ImportFormat.CRITERION, [("norms/64", None, [3.0, 4.0], "us", SMALLER)]),
        (
            ImportFormat.BENCHER,
            [("norm/64", None, [1.5], "us", SMALLER), ("norm/64 throughput", None, [9.0], "ops/s", LARGER)],
        ),
        (
            ImportFormat.TRITONBENCH,
            [
                ("file (64, 32)", "liger", [500.0], "us", SMALLER),
                ("file (64, 32) speedup", "liger", [1.25], "ratio", LARGER),
                ("file (64, 32)", "quack", Missing.OUT_OF_MEMORY, "us", SMALLER),
            ],
        ),
        (
            ImportFormat.TRITON,
            [
                ("file M=64 N=32", "Triton", [900.5], "GB/s", LARGER),
                ("file M=64 N=32", "Torch", Missing.NOT_A_NUMBER, "GB/s", LARGER),
            ],
        ),
        (ImportFormat.LIGER, [("rms_norm full memory H=64 M=32", "torch", [2_500_000.0], "bytes", SMALLER)]),
        (
            ImportFormat.INDUCTOR,
            [
                ("Bert speedup cuda", None, [1.5], "ratio", LARGER),
                ("Bert abs_latency cuda", None, [2000.0], "us", SMALLER),
                ("T5 speedup cuda", None, Missing.FAILED, "ratio", LARGER),
                ("T5 abs_latency cuda", None, Missing.FAILED, "us", SMALLER),
            ],
        ),
        (
            ImportFormat.PYTORCH_HUD,
            [
                ("TritonBench rms_norm inference bf16 speedup", backend, [1.5, 1.25], "ratio", LARGER)
                for backend in ("liger", "quack")
            ],
        ),
    ],
)
def test_values_have_their_unit_and_direction(form: ImportFormat, values: list[tuple[object, ...]]) -> None:
    assert [said(value) for value in read(form)] == values


@pytest.mark.parametrize(
    ("form", "origins"),
    [
        (ImportFormat.PYTEST_BENCHMARK, {(SHA, AT, "ci-7")}),
        (ImportFormat.GOOGLE_BENCHMARK, {(None, AT, "ci-7")}),
        (ImportFormat.GITHUB_ACTION_BENCHMARK, {(SHA, AT, None), (LATER, AT + 86_400, None)}),
        (ImportFormat.ASV, {(SHA, AT, "ci-7")}),
        (ImportFormat.LIGER, {("0.6.0", AT, "NVIDIA H200")}),
        (ImportFormat.PYTORCH_HUD, {(SHA, AT, None)}),
        (ImportFormat.HYPERFINE, {(None, None, None)}),
    ],
)
def test_values_have_their_revision_time_and_machine(form: ImportFormat, origins: set[object]) -> None:
    assert {(of.revision, of.at, of.machine) for of in (value.origin for value in read(form))} == origins


def test_a_command_that_failed_has_no_time() -> None:
    runs = {"command": "make", "mean": 1.0, "times": [0.5, 1.5], "exit_codes": [0, 2]}
    [value] = read(ImportFormat.HYPERFINE, json.dumps({"results": [runs]}))
    assert (value.samples, value.missing) == ((), Missing.FAILED)
    [value] = read(ImportFormat.HYPERFINE, json.dumps({"results": [{**runs, "exit_codes": [0, 0]}]}))
    assert len(value.samples) == 2


def test_the_array_of_one_run_tells_the_direction_by_its_unit() -> None:
    benches = [{"name": "a", "unit": "GB/s", "value": 2}, {"name": "b", "unit": "ns", "value": 0}]
    first, second = read(ImportFormat.GITHUB_ACTION_BENCHMARK, json.dumps(benches))
    assert (first.unit, first.better, first.samples) == ("GB/s", LARGER, (2.0,))
    assert (second.unit, second.better, second.missing) == ("us", SMALLER, Missing.BELOW_CLOCK)


def test_the_unit_of_a_triton_file_is_asked_for_if_it_has_none() -> None:
    content = "N,Triton,Torch\n64.0,1,2\n"
    with pytest.raises(BadInput, match=r"file: line 1: the columns name no unit: give it, for example --unit GB/s"):
        read(ImportFormat.TRITON, content)
    assert {value.unit for value in read(ImportFormat.TRITON, content, "TFLOPS")} == {"TFLOP/s"}


def test_estimates_of_criterion_are_read_where_samples_are_missing() -> None:
    [value] = read(ImportFormat.CRITERION, '{"mean": {"point_estimate": 5e3}, "median": {"point_estimate": 4e3}}')
    assert value.samples == (4.0,)


def test_the_changes_that_criterion_estimates_are_no_times() -> None:
    source = ImportFile("target/criterion/norms/change/estimates.json", b'{"median": {"point_estimate": 0.03}}')
    with pytest.raises(BadInput, match=r"estimates.json: \$: it has changes, no times: import new/estimates.json"):
        list(values_of(ImportFormat.CRITERION, source))


@pytest.mark.parametrize("commit", ["unversioned", "unknown"])
def test_pytest_benchmark_outside_of_a_repository_names_no_commit(commit: str) -> None:
    content = json.dumps({"commit_info": {"id": commit}, "benchmarks": [{"name": "a", "stats": {"median": 1.0}}]})
    [value] = read(ImportFormat.PYTEST_BENCHMARK, content)
    assert value.origin.revision is None


def test_a_skipped_google_benchmark_has_no_time() -> None:
    skipped = {"name": "a", "skipped": True, "skip_message": "no GPU", "real_time": 0.0, "time_unit": "ns"}
    [value] = read(ImportFormat.GOOGLE_BENCHMARK, json.dumps({"benchmarks": [skipped]}))
    assert value.missing is Missing.NULL


def test_asv_writes_null_for_a_benchmark_that_failed_with_all_parameters() -> None:
    results = {"n.time_norm": [None, [["64", "128"]]], "n.time_one": [None, []]}
    written = {"commit_hash": SHA, "result_columns": ["result", "params"], "results": results}
    values = [(value.name, value.missing) for value in read(ImportFormat.ASV, json.dumps(written))]
    assert values == [(name, Missing.FAILED) for name in ("n.time_norm(64)", "n.time_norm(128)", "n.time_one")]


def test_environments_of_asv_are_series_of_their_own() -> None:
    results = {"n.time_norm": [[1.0], []]}
    written = {"commit_hash": SHA, "env_name": "py3.12-numpy", "result_columns": ["result", "params"]}
    [value] = read(ImportFormat.ASV, json.dumps(written | {"results": results}))
    assert value.origin.contender == "py3.12-numpy"


def test_bencher_may_name_measures_instead_of_their_slugs() -> None:
    written = {"norm": {"Latency": {"value": 1500}, "Throughput": {"value": 9}, "Build Time": {"value": 2}}}
    assert [said(value) for value in read(ImportFormat.BENCHER, json.dumps(written))] == [
        ("norm", None, [1.5], "us", SMALLER),
        ("norm throughput", None, [9.0], "ops/s", LARGER),
        ("norm build-time", None, [2e6], "us", SMALLER),
    ]


@pytest.mark.parametrize(
    ("name", "written", "one", "unit", "better"),
    [
        ("token_per_sec", None, 1.0, "token/s", LARGER),
        ("requests_per_second", "", 1.0, "requests/s", LARGER),
        ("memory_bandwidth(GB/s)", None, 1.0, "GB/s", LARGER),
        ("compilation_time(s)", None, 1e6, "us", SMALLER),
        ("avg_inference_latency(ms)", None, 1e3, "us", SMALLER),
        ("peak_inference_mem_usage(mb)", None, 1e6, "bytes", SMALLER),
        ("flops_utilization", None, 1.0, "utilization", LARGER),
        ("memory_compression_ratio", None, 1.0, "ratio", LARGER),
        ("median_ttft_ms", None, 1e3, "us", SMALLER),
        ("peak_memory", "GB", 1e9, "bytes", SMALLER),
    ],
)
def test_a_metric_of_pytorch_may_name_its_unit_itself(
    name: str, written: str | None, one: float, unit: str, better: Better
) -> None:
    metric = {"name": name, "benchmark_values": [1.0], "unit": written}
    [value] = read(ImportFormat.PYTORCH_HUD, json.dumps({"benchmark": {"name": "gpt-fast"}, "metric": metric}))
    assert said(value) == (f"gpt-fast {name}", None, [one], unit, better)


def test_many_samples_are_thinned_and_long_names_stay_apart() -> None:
    rounds = [{"name": "x" * 300 + end, "stats": {"data": [1e-6] * 25_000}} for end in "ab"]
    first, second = read(ImportFormat.PYTEST_BENCHMARK, json.dumps({"benchmarks": rounds}))
    assert len(first.samples) == 8_334
    assert (len(first.name), first.name == second.name) == (120, False)


@pytest.mark.parametrize(
    ("form", "content", "why"),
    [
        (
            ImportFormat.PYTEST_BENCHMARK,
            '{\n    "benchmarks": [\n',
            "file: line 3, column 1: it is not JSON: Expecting value",
        ),
        (ImportFormat.PYTEST_BENCHMARK, "", "file: line 1, column 1: it is not JSON"),
        (ImportFormat.PYTEST_BENCHMARK, "[]", "file: $: expected an object, not an array."),
        (ImportFormat.PYTEST_BENCHMARK, "{}", "file: $: there is no field benchmarks."),
        (
            ImportFormat.PYTEST_BENCHMARK,
            '{"benchmarks": [{"name": "a", "stats": {"data": [1, "x"]}}]}',
            "file: $.benchmarks[0].stats.data[1]: expected a number or null, not a string.",
        ),
        (
            ImportFormat.PYTEST_BENCHMARK,
            '{"commit_info": {"id": "a b"}, "benchmarks": []}',
            "file: $.commit_info.id: 'a b' is no commit or release.",
        ),
        (
            ImportFormat.GOOGLE_BENCHMARK,
            '{"benchmarks": [{"name": "a", "real_time": 1, "time_unit": "GB"}]}',
            "file: $.benchmarks[0].time_unit: 'GB' is no unit of time.",
        ),
        (
            ImportFormat.GITHUB_ACTION_BENCHMARK,
            'window.BENCHMARK_DATA = {"entries": {"GPU": [{"commit": {}}]}}',
            "file: $.entries.GPU[0].commit: there is no field id.",
        ),
        (
            ImportFormat.GITHUB_ACTION_BENCHMARK,
            "window.BENCHMARK_DATA = {,}",
            "file: line 1, column 26: it is not JSON",
        ),
        (ImportFormat.ASV, '{"commit_hash": "a", "result_columns": [], "results": {"b": [1]}}', "no column result."),
        (ImportFormat.INDUCTOR, "dev,name\n", "file: line 1: there is no column batch_size."),
        (
            ImportFormat.INDUCTOR,
            "dev,name,batch_size,speedup\ncuda,a,1,2\ncuda,b,1,fast\n",
            "file: line 3, column speedup: 'fast' is no number.",
        ),
        (ImportFormat.TRITONBENCH, "x;a-b\n", "no column is named PROVIDER-METRIC"),
        (ImportFormat.TRITONBENCH, "x;a-latency\n1\n", "file: line 2: 1 cells for 2 columns."),
        (
            ImportFormat.LIGER,
            FILES[ImportFormat.LIGER].replace('"{""M"": 32}"', "{"),
            "extra_benchmark_config_str: it is not",
        ),
        (
            ImportFormat.LIGER,
            FILES[ImportFormat.LIGER].replace("2026-03-01", "soon"),
            "timestamp: 'soon 09:00:00' is no time.",
        ),
        (
            ImportFormat.PYTORCH_HUD,
            FILES[ImportFormat.PYTORCH_HUD].partition("\n")[0] + '\n{"b": }\n',
            "file: line 2, column 7: it is not JSON",
        ),
    ],
)
def test_a_mistake_names_the_file_the_place_and_the_field(form: ImportFormat, content: str, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(form, content)
    assert why in str(refused.value)
