"""Measure Liger-Kernel's RMSNorm by both conventions of rounding: `python measure.py FOLDER > session.txt`.

FOLDER has the package liger_kernel.  Run in the root of a checkout, on a GPU.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.pool import Contender
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case, Role, Rounding

HERE = Path(__file__).resolve().parent
SHAPES = ("32768x256", "4096x1024", "8192x8192", "4096x16384")
CASES = [
    Case.parse(f"rmsnorm.{direction}.{shape}.{dtypes}")
    for direction in ("fwd", "bwd")
    for shape in SHAPES
    for dtypes in ("bf16", "bf16-fp32", "fp16")
]


def start():
    folder = Path(tempfile.mkdtemp())
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(protocol.CONTENDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{HERE}:{Path(sys.argv[1]).absolute()}"},
            start_new_session=True,
        )
    return Channel(process, folder / "log")


def contender(label, functions, **conventions):
    calls = {f"rmsnorm.{direction}": f"liger_default:{functions}_{direction}" for direction in ("fwd", "bwd")}
    return Contender(label, Role.HEAD, protocol.targets_own(label, calls, **conventions), start)


def main():
    before = Rounding.BEFORE_WEIGHT
    contenders = [
        contender("gemma", "gemma"),
        contender("llama", "llama", rounding=before, inplace=True),
        contender("llama-apart", "apart", rounding=before),
        contender("llama-plain", "apart"),  # neither convention is named
        contender("llama-inplace-undeclared", "llama", rounding=before),
    ]
    trial = run_trial(contenders, CASES, Pace(rounds=6, start_limit_s=120), device="cuda", seed=1)
    for case in CASES:
        for one in contenders:
            cell = trial.cells[one.label, case]
            us = [value for value in cell.samples if value]
            errors = {name: f"{value:.2e}" for name, value in cell.extra.get("errors", {}).items()}
            print(case, one.label, cell.state, f"{statistics.median(us):.2f}" if us else "", cell.reason or "", errors)


if __name__ == "__main__":
    main()
