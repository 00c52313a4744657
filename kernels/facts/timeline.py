"""The timeline of a few calls, as torch's profiler (Kineto) writes it: JSON for Perfetto or chrome://tracing."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .texts import MAX_ENCODED

CALLS = (3, 1)  # where three are too long, one
KIND = "trace"  # among the kinds of texts


def timeline(call: Callable[[], Any], stream: Any) -> str:
    """Profile a call, which ran before.  `stream` is the current one, None on a CPU.

    Raises KeyError for a trace that is too long for an answer: a part of it is no JSON.
    """
    for calls in CALLS:
        trace = _profiled(call, stream, calls)
        if len(json.dumps(trace)) <= MAX_ENCODED:
            return trace
    raise KeyError(KIND)


def _profiled(call: Callable[[], Any], stream: Any, calls: int) -> str:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if stream is not None else [])
    with profile(activities=activities) as profiler:
        for _ in range(calls):
            call()
        if stream is not None:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        return json.dumps(json.loads(file.read_text(errors="replace")), separators=(",", ":"))
