"""A provider's code for an architecture, compiled in a process of its own on a machine without a GPU."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.cases import Case

AHEAD = 7  # further cases whose machine code is read at the same time


def compiled(
    provider: str, architecture: str, cases: Sequence[Case], logs: Path, ahead: int = AHEAD
) -> tuple[float, list[dict[str, Any]]]:
    """Seconds until a process for one architecture is ready, and its answer to each case."""
    log = logs / f"{architecture}.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", str(protocol.CONTENDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    channel = Channel(process, log)
    began = time.monotonic()
    try:
        ready = channel.ask(protocol.start(protocol.built_in(provider), architecture, 1, None), 120)
        if not ready.get("ready"):
            raise RuntimeError(ready.get("reason") or ready.get("error"))
        start = time.monotonic() - began
        requests = [protocol.compile(case, cases[number : number + ahead]) for number, case in enumerate(cases, 1)]
        return start, [channel.ask(message, 600) for message in requests]
    finally:
        channel.close()
