"""Whether the order of its loads is what pull request 815 changed at LayerNorm's forward pass: `order.py REPOSITORY`.

The kernel before and after the commit, each as it is and with the order of the other: four functions in one process,
one after the other in each round, there and back; a turn is a CUDA graph of calls on tensors of their own.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

BEFORE, AFTER = "f1e4ab9199178ae726b52e5763e9453fd24d7626", "ac69c5cc73c6acf685163da02d62a027efb55c2a"
FILE = "src/liger_kernel/ops/layer_norm.py"
X_FIRST = "    X_row = tl.load(X_ptr + col_offsets, mask=mask, other=0)\n"
WEIGHTS = "".join(f"    {n}_row = tl.load({n}_ptr + col_offsets, mask=mask, other=0{{0}})\n" for n in "WB")
X_LATE = "    row_X_ptr = X_ptr + row_idx * X_row_stride\n"
X_LOAD = "    X_row = tl.load(row_X_ptr + col_offsets, mask=mask, other=0.0)\n"
SHAPES = [(4096, 1024), (16384, 5120), (8192, 8192)]


def moved(text, what, to):
    """`text` with its first `what` before its first `to`."""
    assert what in text
    assert to in text
    text = text.replace(what, "", 1)
    return text.replace(to, what + to, 1)


def main(repository):
    def show(sha):
        command = ["git", "-C", repository, "show", f"{sha}:{FILE}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    before, after = show(BEFORE), show(AFTER)
    sources = {
        "before": before,
        "before, weights first": moved(before, WEIGHTS.format(""), X_FIRST),
        "after": after,
        "after, rows first": moved(moved(after, X_LOAD, WEIGHTS.format(".0")), X_LATE, X_LOAD),
    }
    folder = Path(tempfile.mkdtemp())
    sys.path[:0] = [str(folder), f"{folder}/tree/src"]
    tree = folder / "tree"
    tree.mkdir()
    subprocess.run(f"git -C '{repository}' archive {AFTER} | tar x -C '{tree}'", shell=True, check=True)
    functions = {}
    for number, (name, text) in enumerate(sources.items()):
        (folder / f"variant{number}.py").write_text(text)
        functions[name] = __import__(f"variant{number}").layer_norm_forward
    for rows, cols in SHAPES:
        print(rows, cols, json.dumps(compared(functions, rows, cols)), flush=True)


def compared(functions, rows, cols):
    """By function, its time over that of the first: the median of 40 rounds, in each of three captures."""
    ratios = {name: [] for name in functions}
    for _ in range(3):
        count = max(4, (800 << 20) // (4 * rows * cols))
        made = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        sets = [(made(rows, cols), made(cols), made(cols), 1e-6) for _ in range(min(count, 48))]
        graphs, kept = {}, []
        for name, function in functions.items():
            function(*sets[0])
            torch.cuda.synchronize()
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name]):
                kept.append([function(*each) for each in sets])
        times = {name: [] for name in functions}
        for number in range(40):
            for name in list(graphs) if number % 2 == 0 else list(graphs)[::-1]:
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
                graphs[name].replay()
                marks[0].record()
                for mark in marks[1:]:
                    graphs[name].replay()
                    mark.record()
                torch.cuda.synchronize()
                took = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
                times[name].append(statistics.median(took))
        first = next(iter(functions))
        for name in functions:
            pairs = zip(times[name], times[first], strict=True)
            ratios[name].append(round(statistics.median(a / b for a, b in pairs), 4))
    return ratios


if __name__ == "__main__":
    main(sys.argv[1])
