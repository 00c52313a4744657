"""Trials of built-in providers as plain processes of this interpreter, without a sandbox."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender, Pace, ProcessPool, Trial, run_trial
from kernels.cases import Case, Role

IMPORTS = Path(__file__).parents[2]  # the folder that `benchmarks` was imported from, which may be a link to it


def contender(
    role: Role, provider: str | Mapping[str, Any], logs: Path, name: str = "", caches: Path | None = None
) -> Contender:
    """A built-in provider, by its name or its spec.  It imports from the folders in QUACK_PATH.

    `caches`: where its compilers keep their results; by default where every process of this user does.
    """
    spec = protocol.built_in(provider) if isinstance(provider, str) else dict(provider)
    label = f"{role}:{name or spec['name']}"
    of_study = bool(spec.get("study"))  # its module imports `kernels` by that name
    command = ["-m", "kernels.contender"] if of_study else [str(protocol.CONTENDER)]
    imports = [IMPORTS] if of_study else []

    def start() -> Channel:
        return open_process([*command, json.dumps(spec)], logs / label, *imports, caches=caches)

    return Contender(label, role, spec, start)


def open_process(
    arguments: list[str],
    log: Path,
    *imports: Path,
    caches: Path | None = None,
    compile_threads: int | None = None,
) -> Channel:
    """Start a process that imports from QUACK_PATH and from `imports`, and answers on a channel.

    `compile_threads`: how many kernels Inductor compiles at the same time; by default one for each core.
    """
    folders = ":".join(filter(None, (os.environ.get("QUACK_PATH"), *map(str, imports))))
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "4"}
    if caches is not None:
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    if compile_threads is not None:
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": str(compile_threads)}
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
    return Channel(process, log)


def run_prestarted(
    pool: ProcessPool,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    pace: Pace,
    number: int,
    *,
    seed: int | None = None,
    following: Sequence[Contender] | None = None,
    device: str = "cuda",
    keep_going: Callable[[], None] = lambda: None,
) -> Trial:
    """Run a trial with processes of `pool`, and meanwhile start those of `following` (default: the same contenders).

    Trial number 0 is thorough.  `seed` (default: the number) determines the order of starts and turns, and the inputs.
    """
    began = time.monotonic()
    trial = run_trial(
        contenders,
        cases,
        pace,
        device=device,
        seed=number if seed is None else seed,
        thorough=number == 0,
        keep_going=keep_going,
        once_open=lambda _: pool.fill(contenders if following is None else following),
        pool=pool,
    )
    seconds = " ".join(f"{what} {s:.2f}" for what, s in trial.seconds.items())
    say(f"trial {number + 1}: {time.monotonic() - began:.1f} s: {seconds}")
    for (label, case), cell in trial.cells.items():
        if cell.state != "measured" and (number == 0 or cell.state != "unsupported"):
            say(f"  {label} {case}: {cell.state}: {cell.reason}")
    return trial


def say(text: str) -> None:
    print(text, flush=True)
