"""Run programs on the GPU inside kernelwatch's sandbox: sandbox_gpu.py cuda|probes|bombs PYTHON."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from workers import device
from workers.environments import _places
from workers.sandbox import cgroups, sandbox, seccomp
from workers.sandbox.sandbox import Box, Limits

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
CUDA = r"""
import time
began = time.perf_counter()
import torch, triton, triton.language as tl
imported = time.perf_counter()
a = torch.randn(4096, 4096, device="cuda"); (a @ a).sum().item()
first = time.perf_counter()
print(f"import {imported - began:.1f} s, first matrix product {first - imported:.1f} s, {torch.cuda.get_device_name()}")
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); y = torch.empty_like(x)
best = 0.0
for _ in range(20):
    s, e = torch.cuda.Event(True), torch.cuda.Event(True)
    s.record(); y.copy_(x); e.record(); e.synchronize(); best = max(best, 2 * x.numel() / s.elapsed_time(e) / 1e6)
print(f"copy {best:.0f} GB/s")
pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True); y[: 1 << 28].copy_(pinned); torch.cuda.synchronize()
print("pinned memory works")
graph = torch.cuda.CUDAGraph(); z = torch.zeros(1 << 20, device="cuda")
with torch.cuda.graph(graph): z += 1
graph.replay(); torch.cuda.synchronize(); print("graph", z[0].item())
print("compiled", torch.compile(lambda t: (t * 2).relu().sum())(torch.ones(1 << 20, device="cuda")).item())
open("kernel.py", "w").write('''
import triton, triton.language as tl
@triton.jit
def add(X, Y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(Y + i, tl.load(X + i, i < N) + 1, i < N)
''')
import sys; sys.path.insert(0, ".")
from kernel import add
v = torch.zeros(1000, device="cuda"); w = torch.empty_like(v); add[(4,)](v, w, 1000, 256)
print("triton", w.sum().item())
import multiprocessing as mp, torch.multiprocessing as tmp
q = tmp.get_context("fork").Queue(); q.put(torch.ones(1 << 20)); print("shared tensor", q.get().sum().item())
"""
PINNED = r"""
import torch
keep = []
for i in range(16):
    keep.append(torch.ones(1 << 30, dtype=torch.uint8).pin_memory()); print(i + 1, "GiB pinned", flush=True)
"""


def box(folder: Path, python: Path, **limits: int) -> Box:
    here = device.ask()
    prefix, base, _ = _places(python)
    cache = folder.parent / "cache"
    cache.mkdir(exist_ok=True)
    places = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda"}
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(cache),
        "OMP_NUM_THREADS": "4",
        **({"CUDA_VISIBLE_DEVICES": here.uuid} if here.uuid else {}),
        **{name: str(cache / place) for name, place in places.items()},
        **({"LD_LIBRARY_PATH": path} if Path(path := "/usr/local/nvidia/lib64").exists() else {}),
    }
    return Box(
        folder,
        read_only=(base, prefix, python, ROOT / "kernels"),
        writable=(cache,),
        environment=environment,
        devices=here.nodes,
        limits=Limits(wall_s=300, **limits),
        kept=False,
    )


def main() -> None:
    step, python = sys.argv[1], Path(sys.argv[2])
    print(f"self test {sandbox.self_test()}, filter {seccomp.filtered()}, groups {cgroups._bases()}, uid {os.getuid()}")
    print(f"device {device.ask()}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("PLACE")) as place:
        folder = Path(place) / "home"
        folder.mkdir()
        if step == "cuda":
            outside = subprocess.run([python, "-c", CUDA], cwd=folder, capture_output=True, text=True, check=False)
            print(f"-- outside\n{outside.stdout}{outside.stderr[-2000:]}")
            inside = sandbox.run([str(python), "-c", CUDA], box(folder, python))
            print(f"-- inside: {inside.returncode} {inside.reason}\n{inside.log[-4000:]}")
        elif step == "probes":
            os.environ["GITHUB_TOKEN"] = secret = "ghp_an_attacked_secret"
            known = {
                "secret": secret[::-1],
                "state": "/x",
                "sibling": "/x",
                "pids": [os.getppid()],
                "key": 1,
                "port": 9,
            }
            known |= {"abstract": "\0x", "unix": "/x", "writable": str(folder.parent / "cache")}
            known |= {"site": "/usr/lib", "prefix": str(python.parent), "kernels": str(ROOT / "kernels")}
            program = (ROOT / "tests/attacks/inside_sandbox.py").read_text()
            done = sandbox.run([str(python), "-c", program, json.dumps(known)], box(folder, python))
            found = re.search(r"^PROBES (.*)$", done.log, re.MULTILINE)
            answers = json.loads(found[1]) if found else {"no answer": done.log[-2000:]}
            for name, answer in answers.items():
                if not answer.startswith("denied"):
                    print(f"  {name}: {answer}")
            print(f"{len(answers)} probes; those above were not denied")
        else:
            done = sandbox.run([str(python), "-c", PINNED], box(folder, python, memory=4 * GIB))
            print(f"{done.returncode} {done.reason}\n{done.log[-600:]}")


main()
