"""For comparison: Triton's do_bench and do_bench_cudagraph with both sides in one process.

The process answers each line `{"case": …}` on stdin with `{"do_bench": …, "cudagraph": …}`, the time of Inductor over
that of Quack, and the seconds that each measurement took.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import triton.testing as testing

    from kernels.arena.protocol import built_in
    from kernels.cases import Case
    from kernels.checks.inputs import make
    from kernels.providers import open_provider

    sides = {name: open_provider(built_in(name)) for name in ("inductor", "quack")}
    for provider in sides.values():
        provider.warm()
    for line in sys.stdin:
        case = Case.parse(json.loads(line)["case"])
        device = torch.device("cuda", 0)
        with torch.no_grad():
            inputs = make(case, device, 1)
            calls = {name: provider.ready(case, device)(inputs) for name, provider in sides.items()}
            for call in calls.values():
                call()
            answer: dict[str, Any] = {}
            for name, bench in (("do_bench", _do_bench(testing)), ("cudagraph", _cudagraph(testing))):
                began = time.perf_counter()
                taken = {side: bench(call) for side, call in calls.items()}
                answer[name] = taken["inductor"] / taken["quack"]
                answer[f"{name}_s"] = round(time.perf_counter() - began, 2)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _do_bench(testing: Any) -> Any:
    return lambda call: testing.do_bench(call, warmup=10, rep=100, return_mode="median")


def _cudagraph(testing: Any) -> Any:
    return lambda call: testing.do_bench_cudagraph(call, rep=20, return_mode="median")


if __name__ == "__main__":
    main()
