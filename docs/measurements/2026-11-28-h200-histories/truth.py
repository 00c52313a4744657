"""What each commit of a public history really does to each case: `truth.py REPOSITORY --recipe FILE --out truth.json`.

It is the `truth.py` of ../2026-11-22-h200-commits for repositories that have an adapter, which is the only file that it
shares with what the service measures.  Every revision is a process with its own copy of the package.  All of them have
one turn in each round, parent beside head, there and back; a turn is a CUDA graph of calls, each on tensors of its own
(so that the L2 cache is cold), timed with events after an untimed replay.  All processes are started anew several
times.  Before its first turn a process calls the function once with nobody else on the device, where it tunes itself.
Revisions whose files that matter (of the recipe) have the same syntax tree are measured once: they are the same source.
"""

import argparse
import ast
import fnmatch
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
import tomllib
import traceback
from pathlib import Path

COLD = 800 << 20  # bytes that the sets of a case have together, if MOST sets are enough for that
MOST, FEWEST = 48, 3
FEW = 528  # rows that are enough to compile a kernel: as many programs as for many rows
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
OPS = {"rmsnorm": "layer", "layernorm": "rms"}  # and what the names of files have that only the other op needs


def parsed(case):
    op, direction, shape, dtypes = case.split(".")
    rows, cols = map(int, shape.split("x"))
    dtype, _, weight = dtypes.partition("-")
    return op, direction, rows, cols, dtype, weight or dtype


# -- one revision: a process that answers JSON lines ------------------------------------------------------------------


def worker(folder, adapter):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [f"{folder}/src", str(Path(adapter).parent)]
    import torch

    try:
        global api
        api = importlib.import_module(Path(adapter).stem)
    except Exception:
        traceback.print_exc()
        raise

    answers.write('{"ready": true}\n')
    answers.flush()
    one = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "prepare":
                one = None
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                one = Prepared(torch, asked["case"], asked["check"])
                answer = one.found
            elif asked["do"] == "compile":  # whatever it takes, on a few rows of each case
                for case in asked["cases"]:
                    Prepared(torch, case, check=False, rows=FEW, most=1)
                answer = {}
            elif asked["do"] == "tune":
                Prepared(torch, asked["case"], check=False, most=1)
                answer = {}
            elif asked["do"] == "capture":
                one.capture()
                answer = {}
            else:
                answer = {"us": one.turn(asked["timed"])}
        except Exception as error:  # the driver writes it down; the revision has no time at this case then
            answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Prepared:
    def __init__(self, torch, case, check, rows=None, most=MOST):
        self.torch, self.case = torch, case
        self.gpu = torch.cuda.is_available()
        op, direction, whole, cols, dtype, weight = parsed(case)
        rows = rows or whole
        name = {"rmsnorm": "rms_norm", "layernorm": "layer_norm"}[op] + ("_backward" if direction == "bwd" else "")
        self.function = getattr(api, name)
        tensors = 2 if direction == "fwd" else 3
        of_a_set = tensors * rows * cols * BYTES[dtype]
        count = min(most, max(FEWEST, math.ceil(COLD / of_a_set)) if self.gpu else 2)
        torch.manual_seed(len(case))
        self.sets = [self.inputs(op, direction, rows, cols, dtype, weight) for _ in range(count)]
        first = self.call(self.sets[0])
        self.found = {"sets": count}
        if check:
            self.found["error"] = self.errors(op, direction, self.sets[0], first)
            again = [self.call(self.sets[0]) for _ in range(8)]
            pairs = [pair for other in again for pair in zip(first, other, strict=True)]
            self.found["repeats"] = all(torch.equal(*pair) for pair in pairs)
        if self.gpu:
            torch.cuda.synchronize()

    def inputs(self, op, direction, rows, cols, dtype, weight):
        torch = self.torch
        device, of_weight = ("cuda" if self.gpu else "cpu"), getattr(torch, DTYPES[weight])
        made = lambda: torch.randn(rows, cols, device=device, dtype=getattr(torch, DTYPES[dtype]))  # noqa: E731
        x, w = made(), torch.randn(cols, device=device, dtype=of_weight)
        if direction == "fwd":
            return (x, w, 1e-6) if op == "rmsnorm" else (x, w, torch.randn_like(w), 1e-6)
        v = x.float()
        if op == "rmsnorm":
            return made(), x, w, torch.rsqrt(v.square().mean(1) + 1e-6), 1e-6
        return made(), x, w, v.mean(1), torch.rsqrt(v.var(1, correction=0) + 1e-6), 1e-6

    def call(self, values):
        result = self.function(*values)
        return result if isinstance(result, tuple) else (result,)

    def errors(self, op, direction, values, outputs):
        """The largest relative error of an output's rows against fp32, in units of the output's own rounding."""
        right = reference(op, direction, values)
        worst = 0.0
        for got, want in zip(outputs, right, strict=False):
            got, want = got.float(), want.float()
            if got.ndim == 2:
                each = (got - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-30)
                worst = max(worst, float(each.max()) / 2**-8)
            else:
                worst = max(worst, float((got - want).norm() / want.norm()) / 1e-4)
        return round(worst, 4) if math.isfinite(worst) else "not finite"

    def capture(self):
        if not self.gpu:
            return
        torch = self.torch
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.kept = [self.call(values) for values in self.sets]
        self.graph.replay()
        torch.cuda.synchronize()

    def turn(self, timed):
        """Microseconds of a call, once for each timed replay."""
        if not self.gpu:
            took = []
            for _ in range(timed):
                began = time.perf_counter()
                for values in self.sets:
                    self.call(values)
                took.append((time.perf_counter() - began) * 1e6 / len(self.sets))
            return took
        torch = self.torch
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(timed + 1)]
        self.graph.replay()
        self.graph.replay()
        marks[0].record()
        for mark in marks[1:]:
            self.graph.replay()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 / len(self.sets) for a, b in itertools.pairwise(marks)]


def reference(op, direction, values):
    if direction == "fwd":
        x, w = values[0].float(), values[1].float()
        if op == "rmsnorm":
            return ((x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * w),)
        d = x - x.mean(1, keepdim=True)
        return ((d * (d.square().mean(1, keepdim=True) + 1e-6).rsqrt() * w + values[2].float()),)
    g, x, w = values[0].float(), values[1].float(), values[2].float()
    if op == "rmsnorm":
        h, r = x * values[3][:, None], values[3][:, None]
        return (g * w - h * (g * w * h).mean(1, keepdim=True)) * r, (g * h).sum(0)
    h, r = (x - values[3][:, None]) * values[4][:, None], values[4][:, None]
    inner, shift = (g * w * h).mean(1, keepdim=True), (g * w).mean(1, keepdim=True)
    return (g * w - shift - h * inner) * r, (g * h).sum(0), g.sum(0)


# -- the driver -------------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, folder):
        self.at = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(folder), str(ADAPTER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, **words):
        self.at.stdin.write(json.dumps(words) + "\n")
        self.at.stdin.flush()

    def hear(self):
        line = self.at.stdout.readline()
        return json.loads(line) if line else {"failed": "the process died"}

    def end(self):
        self.at.stdin.close()

    def gone(self):
        try:
            self.at.wait(20)
        except subprocess.TimeoutExpired:
            self.at.kill()


def source_of(repository, sha, patterns, not_of):
    """What the files that matter to an op say, without comments and docstrings."""
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-tree", "-r", "--name-only", sha], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    said = []
    for name in listed:
        if not_of in Path(name).name or not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        text = subprocess.run(
            ["git", "-C", str(repository), "show", f"{sha}:{name}"], check=True, capture_output=True, text=True
        ).stdout
        if not name.endswith(".py"):
            said.append(f"{name} {text}")
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        said.append(f"{name} {ast.dump(tree)}")
    return "\n".join(said)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("repository", type=Path)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--work", type=Path, default=Path("/tmp/truth"))
    arguments.add_argument("--recipe", type=Path, required=True)
    arguments.add_argument("--cases", nargs="*")
    arguments.add_argument("--commits", nargs="*", help="against their parents; else each that touches what matters")
    arguments.add_argument("--restarts", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--timed", type=int, default=3)
    arguments.add_argument("--budget", type=float, default=240, help="seconds after which no restart begins")
    asked = arguments.parse_args()
    began = time.monotonic()
    git = lambda *words: subprocess.run(  # noqa: E731
        ["git", "-C", str(asked.repository), *words], check=True, capture_output=True, text=True
    ).stdout.split()
    recipe = tomllib.loads(asked.recipe.read_text())
    global ADAPTER
    ADAPTER = asked.recipe.resolve().parent / recipe["adapters"][0]
    patterns = recipe["paths"]["matter"]
    whole = git("rev-list", "--first-parent", "--reverse", "main")
    places = [each.removesuffix("**") for each in patterns]
    touching = asked.commits or git("rev-list", "--first-parent", "main", "--", *places)
    parent = {head: before for before, head in itertools.pairwise(whole) if any(map(head.startswith, touching))}
    revisions = line = [sha for sha in whole if sha in parent or sha in parent.values()]
    pulls = []
    folders = {}
    for sha in revisions:
        folders[sha] = asked.work / sha[:12]
        folders[sha].mkdir(parents=True, exist_ok=True)
        subprocess.run(f"git -C '{asked.repository}' archive {sha} | tar x -C '{folders[sha]}'", shell=True, check=True)
    every = recipe["suites"][recipe["suite"]]
    cases = asked.cases or [case for case in every if case.split(".")[0] in OPS]
    source = {(sha, op): source_of(asked.repository, sha, patterns, OPS[op]) for sha in revisions for op in OPS}
    same = {}  # of a revision and op, the first revision with that source
    for sha in revisions:
        for op in OPS:
            same[sha, op] = next(one for one in revisions if source[one, op] == source[sha, op])
    needed = {op: list(dict.fromkeys(same[sha, op] for sha in revisions if (sha, op) in same)) for op in OPS}
    members = [sha for sha in revisions if any(sha in needed[op] for op in OPS)]
    control = line[0] + "+"  # a second process of the first revision
    folders[control] = folders[line[0]]
    members.insert(1, control)
    start = lambda: {sha: Process(folders[sha]) for sha in members}  # noqa: E731
    found = {
        "cases": cases, "mainline": line, "pulls": pulls, "parent": parent,
        "same": {f"{sha} {op}": twin for (sha, op), twin in same.items()}, "restarts": [], "states": {},
    }  # fmt: skip
    processes, longest = start(), 0.0
    for one in processes.values():
        one.hear()
        one.say(do="compile", cases=cases)
    ahead = start()
    for sha, one in processes.items():
        if "failed" in (answer := one.hear()):
            print(f"{sha[:10]} {answer['failed']}", flush=True)
        one.end()
    for one in processes.values():
        one.gone()
    processes = ahead
    print(f"compiled: {time.monotonic() - began:.1f} s", flush=True)
    for restart in range(asked.restarts):
        at = time.monotonic()
        for one in processes.values():
            one.hear()
        last = restart + 1 == asked.restarts or at - began + 2 * longest > asked.budget
        ahead = None if last else start()
        times = {}
        for case in cases:
            op = parsed(case)[0]
            here = {sha: processes[sha] for sha in members if sha in needed[op] or sha == control}
            for one in here.values():
                one.say(do="tune", case=case)  # alone on the device, since it times configurations
                one.hear()
            for one in here.values():
                one.say(do="prepare", case=case, check=restart == 0)
            told = {sha: one.hear() for sha, one in here.items()}
            if restart == 0:
                found["states"][case] = told
            here = {sha: one for sha, one in here.items() if "failed" not in told[sha]}
            for one in here.values():
                one.say(do="capture")
            failed = {sha: answer for sha, one in here.items() if "failed" in (answer := one.hear())}
            if failed:
                found["states"][case] = found["states"].get(case, {}) | failed
            rounds = {sha: [] for sha in here if sha not in failed}
            for number in range(asked.rounds):
                for sha in list(rounds) if number % 2 == 0 else list(rounds)[::-1]:
                    here[sha].say(do="turn", timed=asked.timed)
                    answer = here[sha].hear()
                    if "us" in answer:
                        rounds[sha].append(statistics.median(answer["us"]))
            times[case] = rounds
        for one in processes.values():
            one.end()
        for one in processes.values():
            one.gone()
        found["restarts"].append(times)
        longest = max(longest, time.monotonic() - at)
        print(f"restart {restart + 1}: {time.monotonic() - at:.1f} s", flush=True)
        found["pairs"], found["spread"] = compared(found, cases, control, line[0])
        asked.out.write_text(json.dumps(found))
        if last:
            break
        processes = ahead
    table(found)
    print(f"{time.monotonic() - began:.0f} s")


def compared(found, cases, control, first):
    """By head and case, head over parent: the mean over restarts of the median over rounds, and how sure that is."""

    def ratios(head, base, case):
        each = []
        for times in found["restarts"]:
            a, b = times[case].get(head), times[case].get(base)
            if a and b and len(a) == len(b):
                each.append(math.log(statistics.median(x / y for x, y in zip(a, b, strict=False))))
        return each

    pairs, spread = {}, {}
    for case in cases:
        op, deviations = parsed(case)[0], []
        wanted = {"control": (control, first)}
        for head, base in found["parent"].items():
            while base is not None and f"{base} {op}" not in found["same"]:  # it does not build
                base = found["parent"].get(base)
            if f"{head} {op}" in found["same"] and base is not None:
                wanted[head] = found["same"][f"{head} {op}"], found["same"][f"{base} {op}"]
        each = {name: ratios(*pair, case) for name, pair in wanted.items() if pair[0] != pair[1]}
        for values in each.values():
            deviations += [value - statistics.mean(values) for value in values] if len(values) > 1 else []
        count = len(found["restarts"])
        freedom = len(deviations) * (count - 1) / count if count > 1 else 0
        sd = math.sqrt(sum(value * value for value in deviations) / freedom) if freedom else 0.0
        spread[case] = sd
        for name, pair in wanted.items():
            values = each.get(name)
            if pair[0] == pair[1]:
                pairs[f"{name} {case}"] = {"ratio": 1.0, "half": 0.0, "same_source": True}
            elif values:
                mean = statistics.mean(values)
                half = 1.96 * sd / math.sqrt(len(values)) if sd else None
                pairs[f"{name} {case}"] = {"ratio": math.exp(mean), "half": half, "same_source": False, "each": values}
    return pairs, spread


def table(found):
    print("spread of a restart:", {case: f"{100 * sd:.2f} %" for case, sd in found["spread"].items()})
    for name, pair in sorted(found["pairs"].items(), key=lambda one: found["mainline"].index(one[0].split()[0])
                             if one[0].split()[0] in found["mainline"] else 999):  # fmt: skip
        if abs(pair["ratio"] - 1) > 0.004:
            print(f"{name[:10]} {name.split()[1]:36} {pair['ratio']:.4f} +- {pair['half'] or 0:.4f}")


if __name__ == "__main__":
    worker(*sys.argv[2:4]) if sys.argv[1:2] == ["--worker"] else main()
