"""The arena by itself on a GPU: built-in providers beside Quack, with a second Quack as the A/A control.

Usage: smoke.py OUT.json [LAUNCHES]   (QUACK_PATH: folders with Quack for PYTHONPATH)
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT))

from kernels.arena.channel import Channel  # noqa: E402
from kernels.arena.protocol import built_in  # noqa: E402
from kernels.arena.session import Contender, Pace, run_launch  # noqa: E402
from kernels.cases import Case, Role  # noqa: E402

CASES = [
    Case.parse(f"{key}.{shape}.bf16-fp32")
    for key in ("rmsnorm.fwd", "rmsnorm.bwd", "layernorm.fwd")
    for shape in ("4096x1024", "32768x1024", "32768x4096", "8192x8192")
]
PROVIDERS = [
    ("sota", "quack"),
    ("control", "quack"),
    ("head", "triton"),
    ("head", "inductor"),
    ("head", "liger"),
    ("head", "eager"),
]


def opener(label: str, logs: Path):
    def start() -> Channel:
        log = logs / f"{label.replace(':', '-')}.log"
        command = [sys.executable, "-P", str(ROOT / "kernels" / "contender.py")]
        environment = {**os.environ, "PYTHONPATH": os.environ.get("QUACK_PATH", "")}
        with log.open("a") as errors:
            process = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=errors, text=True, start_new_session=True, env=environment
            )
        return Channel(process, log)

    return start


def main() -> None:
    out, launches = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    logs = Path(tempfile.mkdtemp())
    contenders = [
        Contender(f"{role}:{name}", Role(role), built_in(name), opener(f"{role}:{name}", logs))
        for role, name in PROVIDERS
    ]
    kept = []
    for number in range(launches):
        launch = run_launch(contenders, CASES, Pace(rounds=20), device="cuda", seed=number, progress=print)
        print("seconds", {what: round(s, 1) for what, s in launch.seconds.items()})
        for case in CASES:
            base = median(launch.cells["sota:quack", case].samples or [float("nan")])
            line = [f"{case!s:40} quack {base:8.2f} us {case.least_bytes / base / 1e3:5.0f} GB/s"]
            for contender in contenders[1:]:
                cell = launch.cells[contender.label, case]
                if cell.samples:
                    quack = launch.cells["sota:quack", case].samples
                    ratio = median(a / b for a, b in zip(cell.samples, quack, strict=True) if a and b)
                    mark = "(A/A)" if contender.role is Role.CONTROL else ""
                    line.append(f"{contender.label.split(':')[1]}{mark} {ratio:.4f}")
                else:
                    line.append(f"{contender.label}: {cell.state}: {cell.reason}")
            print("  ".join(line), flush=True)
        kept.append(
            {
                "seconds": launch.seconds,
                "stacks": launch.stacks,
                "telemetry": launch.telemetry,
                "cells": {f"{label} {case}": vars(cell) for (label, case), cell in launch.cells.items()},
            }
        )
    out.write_text(json.dumps(kept))
    for log in sorted(logs.iterdir()):
        text = log.read_text()
        print(f"--- {log.name}: {len(text)} characters\n{text[-1500:]}")


if __name__ == "__main__":
    main()
