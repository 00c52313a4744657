"""Norms of heads in a packed projection, checked, then timed beside a copy, eager and Inductor (`PYTHONPATH=.`).

Every provider in one process; after the checks the functions take turns, there and back, each turn a CUDA graph of
calls on slices of projections of their own.
"""

import itertools
import json
import statistics

import torch

from kernels.arena import protocol
from kernels.cases import Case, Direction
from kernels.checks import inputs
from kernels.contender.bench import Bench
from kernels.contender.prepared import prepare
from kernels.norms.forward import forward
from kernels.suites import SUITES

CHECKED = ("triton", "eager", "inductor")


def main() -> None:
    device = torch.device("cuda")
    benches = {name: Bench(protocol.built_in(name), device, threads=4) for name in CHECKED}
    shapes = ("2048x1024s1536", "2048x32x128s6144", "2048x8x256s4096")
    wanted = [
        f"{op}.{way}.{shape}.bf16-fp32" for op in ("rmsnorm", "layernorm") for way in Direction for shape in shapes
    ]
    for text, name in itertools.product((*wanted, *SUITES["heads"]), CHECKED):
        if name == "inductor" and text not in SUITES["heads"]:  # compiling takes seconds
            continue
        at = prepare(benches[name], Case.parse(text), seed=1)
        [sample, *_] = at.turn(warm=2, timed=3)
        at.check()
        print(f"right: {text} {name} {sample:.2f} us", flush=True)
    for text in SUITES["heads"]:
        case = Case.parse(text)
        if case.direction is Direction.FWD:
            print(text, json.dumps(compared(case, device)), flush=True)


def compared(case: Case, device: torch.device) -> dict[str, object]:
    """us of a call: ours in place, ours on a copy, eager, Inductor; and the ratios to ours in place."""
    sets = inputs.make_sets(case, device, 1, max(4, min(64, (800 << 20) // case.set_bytes)))
    eager = torch.nn.functional.rms_norm
    compiled = torch.compile(eager)
    ours = lambda x, w: forward(x, w, eps=1e-6, center=False).y  # noqa: E731
    functions = {
        "in place": ours,
        "copy": lambda x, w: ours(x.reshape(-1, case.cols), w),
        "eager": lambda x, w: eager(x, (case.cols,), w, 1e-6),
        "inductor": lambda x, w: compiled(x, (case.cols,), w, 1e-6),
    }
    graphs, kept, times = {}, [], {name: [] for name in functions}
    for name, function in functions.items():
        function(sets[0]["x"], sets[0]["weight"])
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            kept.append([function(each["x"], each["weight"]) for each in sets])
    for number in range(40):
        for name in list(graphs) if number % 2 == 0 else list(graphs)[::-1]:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
            graphs[name].replay()
            marks[0].record()
            for mark in marks[1:]:
                graphs[name].replay()
                mark.record()
            torch.cuda.synchronize()
            took = [a.elapsed_time(b) * 1e3 / len(sets) for a, b in itertools.pairwise(marks)]
            times[name].append(statistics.median(took))
    found = {name: round(statistics.median(values), 2) for name, values in times.items()}
    ratios = {
        f"{name} / in place": round(
            statistics.median(a / b for a, b in zip(times[name], times["in place"], strict=True)), 3
        )
        for name in times
        if name != "in place"
    }
    return {"us": found, **ratios, "gb_s": round(case.least_bytes / found["in place"] / 1e3)}


if __name__ == "__main__":
    print(torch.cuda.get_device_name())
    main()
