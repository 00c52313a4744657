"""Measure two commits of Liger-Kernel against their parents with the arena alone, and write what each trial saw.

Run in a clone on a machine with a GPU, torch and Triton.  `TREES/NAME` has the files of a commit, `NAME` as in PAIRS:

    python docs/measurements/2026-11-28-h200-liger-exactness/measure.py TREES OUT
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from kernels.arena import protocol  # noqa: E402
from kernels.arena.channel import Channel  # noqa: E402
from kernels.arena.session import Contender, Pace, Trial, run_trial  # noqa: E402
from kernels.cases import Case, Role  # noqa: E402

PAIRS = {"815": ("815-parent", "815"), "945": ("945-parent", "945")}
CASES = [
    Case.parse(text)
    for text in (
        "layernorm.fwd.4096x1024.bf16",
        "layernorm.fwd.16384x5120.bf16",
        "layernorm.bwd.4096x1152.bf16",
        "layernorm.bwd.16384x4096.bf16",
        "layernorm.bwd.8192x8192.bf16",
    )
]
TRIALS = 3
LIGER = protocol.targets_own(
    "liger",
    {
        "layernorm.fwd": "liger_norms:layer_norm",
        "layernorm.bwd": "liger_norms:layer_norm_backward",
    },
)


def start(tree: Path | None, log: Path) -> Channel:
    found = {} if tree is None else {"KERNELWATCH_TREE": f"{tree}:{ROOT / 'examples' / 'liger'}"}
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "PYTHONPATH": "", **found}
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", str(protocol.CONTENDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
    return Channel(process, log)


def main(trees: Path, out: Path) -> None:
    for pair, (parent, head) in PAIRS.items():
        contenders = [
            Contender("head:liger", Role.HEAD, LIGER, partial(start, trees / head, out / "head.log")),
            Contender("parent:liger", Role.PARENT, LIGER, partial(start, trees / parent, out / "parent.log")),
            Contender("control:liger", Role.CONTROL, LIGER, partial(start, trees / parent, out / "control.log")),
            Contender(
                "sota:inductor", Role.SOTA, protocol.built_in("inductor"), partial(start, None, out / "sota.log")
            ),
        ]
        trials, inexact = [], {}
        for number in range(TRIALS):
            trial = run_trial(
                contenders,
                CASES,
                Pace(),
                device="cuda",
                seed=number,
                thorough=number == 0,
                inexact_before=inexact,
                progress=lambda said, pair=pair: print(pair, said, flush=True),
            )
            inexact |= {at: cell.reason or "" for at, cell in trial.cells.items() if cell.inexact}
            trials.append(trial)
        (out / f"{pair}.json").write_text(json.dumps([as_json(trial) for trial in trials]))


def as_json(trial: Trial) -> list[dict[str, object]]:
    """Each cell: who, case, state, reason, samples in us, samples apart, and the facts that verdicts need."""
    return [
        {
            "contender": label,
            "case": str(case),
            "state": cell.state,
            "reason": cell.reason,
            "samples": cell.samples,
            "apart": cell.apart,
            "facts": {name: cell.facts.get(name) for name in ("kind", "code", "repeatable", "repeats", "distinct")},
            "errors": cell.extra.get("errors"),
        }
        for (label, case), cell in trial.cells.items()
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
