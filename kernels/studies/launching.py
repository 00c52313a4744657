"""Trials of contenders that are plain processes of this interpreter: there is nothing of a stranger's in them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..arena import protocol
from ..arena.channel import Channel
from ..arena.session import Contender, Pace, PrestartPool, Trial, run_trial
from ..cases import Case, Role


def contender(role: Role, provider: str, logs: Path, name: str = "") -> Contender:
    """A built-in provider.  Folders to import from (Quack, say) are taken from QUACK_PATH."""
    spec, label = protocol.built_in(provider), f"{role}:{name or provider}"
    return Contender(label, role, spec, _opener([str(protocol.CONTENDER), json.dumps(spec)], logs / label))


def _opener(arguments: list[str], log: Path) -> Callable[[], Channel]:
    def start() -> Channel:
        return open_process(arguments, log)

    return start


def open_process(arguments: list[str], log: Path, *imports: Path) -> Channel:
    """`imports` are folders to import from beside those of QUACK_PATH."""
    folders = ":".join(filter(None, (os.environ.get("QUACK_PATH"), *map(str, imports))))
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "4"}
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


def launched(
    ahead: PrestartPool,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    pace: Pace,
    number: int,
    *,
    seed: int | None = None,
    then: Sequence[Contender] | None = None,
    device: str = "cuda",
    keep_going: Callable[[], None] = lambda: None,
) -> Trial:
    """A trial of those of `ahead`; meanwhile processes are started for `then`, by default the same again.

    The first, number 0, is thorough.  `seed` decides who starts and goes when, and the inputs; by default the number.
    """
    began, labels = time.monotonic(), {one.label for one in contenders}
    trial = run_trial(
        [one for one in ahead.contenders if one.label in labels],
        cases,
        pace,
        device=device,
        seed=number if seed is None else seed,
        thorough=number == 0,
        keep_going=keep_going,
        once_open=lambda: ahead.more(contenders if then is None else then),
    )
    seconds = " ".join(f"{what} {s:.2f}" for what, s in trial.seconds.items())
    say(f"trial {number + 1}: {time.monotonic() - began:.1f} s: {seconds}")
    for (label, case), cell in trial.cells.items():
        if cell.state != "measured" and (number == 0 or cell.state != "unsupported"):
            say(f"  {label} {case}: {cell.state}: {cell.reason}")
    return trial


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  what a study is for
