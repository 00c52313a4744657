"""A small file of each format that can be imported."""

import json
from collections.abc import Mapping

from service.domain.imports.formats import ImportFormat

SHA, LATER = "a1" * 20, "b2" * 20


def _commit(sha: str, date: float, value: float | None) -> dict[str, object]:
    commit = {"id": sha, "message": "m", "timestamp": "2026-03-01T10:00:00+01:00", "url": "https://example.org/c"}
    bench = {"name": "copy/64", "value": value, "unit": "ms/iter", "range": "± 1"}
    return {"commit": commit, "date": date, "tool": "customSmallerIsBetter", "benches": [bench]}


HISTORY = {"entries": {"GPU": [_commit(SHA, 1772355600000, 0.25), _commit(LATER, 1772442000000, None)]}}

FILES: Mapping[ImportFormat, str] = {
    ImportFormat.PYTEST_BENCHMARK: json.dumps(
        {
            "machine_info": {"node": "ci-7"},
            "commit_info": {"id": SHA},
            "benchmarks": [
                {"name": "n", "fullname": "t.py::n[64]", "stats": {"median": 2e-6, "data": [1e-6, 2e-6, 4e-6]}},
                {"name": "quick", "stats": {"median": 0.0}},
            ],
            "datetime": "2026-03-01T09:00:00+00:00",
        },
        indent=4,
    ),
    ImportFormat.GOOGLE_BENCHMARK: json.dumps(
        {
            "context": {"date": "2026-03-01T10:00:00+01:00", "host_name": "ci-7"},
            "benchmarks": [
                {
                    "name": "BM/64",
                    "run_type": "iteration",
                    "real_time": 8.0,
                    "time_unit": "us",
                    "bytes_per_second": 2e9,
                },
                {
                    "name": "BM/64",
                    "run_type": "iteration",
                    "real_time": 9.0,
                    "time_unit": "us",
                    "bytes_per_second": 1e9,
                },
                {"name": "BM/64_mean", "run_name": "BM/64", "aggregate_name": "mean", "real_time": 8.5},
                {"name": "Only_mean", "run_name": "Only", "aggregate_name": "mean", "real_time": 500.0},
                {"name": "Only_median", "run_name": "Only", "aggregate_name": "median", "real_time": 400.0},
                {"name": "Broken", "error_occurred": True, "error_message": "no device"},
            ],
        }
    ),
    ImportFormat.GITHUB_ACTION_BENCHMARK: "window.BENCHMARK_DATA = " + json.dumps(HISTORY, indent=2) + ";\n",
    ImportFormat.HYPERFINE: json.dumps(
        {"results": [{"command": "./norm 64", "mean": 0.5, "times": [0.002, 0.004], "memory_usage_byte": [4096, 8192]}]}
    ),
    ImportFormat.ASV: json.dumps(
        {
            "commit_hash": SHA,
            "date": 1772355600000,
            "params": {"machine": "ci-7"},
            "result_columns": ["result", "params", "version", "samples"],
            "results": {
                "n.time_norm": [
                    [3e-6, None, float("nan"), 5e-6],
                    [["64", "128"], ["'bf16'", "'fp16'"]],
                    "v",
                    [[1e-6, 5e-6]],
                ],
                "n.peakmem_norm": [[4096]],
                "n.gone": None,
            },
            "version": 2,
        }
    ),
    ImportFormat.CRITERION: json.dumps({"iters": [10, 20], "times": [30_000.0, 80_000.0]}),
    ImportFormat.BENCHER: json.dumps(
        {"norm/64": {"latency": {"value": 1500}, "throughput": {"value": 9, "lower_value": 8}}}
    ),
    ImportFormat.TRITONBENCH: (
        "x_val;liger-latency;liger-speedup;liger-best_config;quack-latency\r\n"
        "(64, 32);0.5 (±1.2%);1.25;num_warps: 4;CUDA OOM\r\n"
        "average;0.5;1.25;;\r\n"
    ),
    ImportFormat.TRITON: "M,N,Triton (GB/s),Torch (GB/s)\n64.000000,32.0,900.5,nan\n",
    ImportFormat.LIGER: (
        "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_value,y_value_50,"
        "extra_benchmark_config_str,gpu_name,timestamp,liger_version\n"
        'rms_norm,torch,full,memory,MB,H,64,2.5,"{""M"": 32}",NVIDIA H200,2026-03-01 09:00:00,0.6.0\n'
    ),
    ImportFormat.INDUCTOR: "dev,name,batch_size,speedup,abs_latency\ncuda,Bert,16,1.5,2.0\ncuda,T5,0,0.0,0.0\n",
    ImportFormat.PYTORCH_HUD: "\n".join(
        json.dumps(
            {
                "benchmark": {"name": "TritonBench", "mode": "inference", "dtype": "bf16"},
                "model": {"name": "rms_norm", "backend": backend},
                "metric": {"name": "speedup", "benchmark_values": [1.5, 1.25]},
                "head_sha": SHA,
                "timestamp": 1772355600,
            }
        )
        for backend in ("liger", "quack")
    ),
}

NAMES: Mapping[ImportFormat, str] = {ImportFormat.CRITERION: "target/criterion/norms/64/new/sample.json"}
