"""Wait for runs, and print what they found."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kernelwatch.client import ApiError, KernelwatchError, StillRunning, Unreachable
from kernelwatch.client.models import RunDocument
from service.commands.connection import client
from service.commands.measure.fail_on import GateFinding, exit_code
from service.commands.measure.saving import save
from service.commands.output.progress import progress
from service.commands.output.views import View
from service.commands.views import reports, runs

T = TypeVar("T")
EVERY_S = 1.0
MAX_SILENT_S = 180.0  # a server is restarted for an upgrade in less
_BUSY = 503  # of the server, or of a proxy before it
_GATEWAY = (502, 504)  # of a proxy; the server answers so, with a title, if a repository does not answer


def until_answered(ask: Callable[[], T], timeout_s: float | None = None) -> T:
    """Ask a server that may be away for three minutes until it answers.  What is asked may be asked again.

    Raises:
        KernelwatchError: The server refuses, or was away for longer, or for longer than `timeout_s`.
    """
    began = time.monotonic()
    with progress() as shown:
        while True:
            try:
                return ask()
            except KernelwatchError as error:
                silent_s = time.monotonic() - began
                if (timeout_s is not None and silent_s > timeout_s) or not _is_away(error, silent_s):
                    raise
            shown.show(0, "the server does not answer, trying again", None)
            time.sleep(EVERY_S)


def until_done(ids: Sequence[int], timeout_s: float | None = None) -> list[RunDocument]:
    """Wait until all runs have ended, or wait for approval, and return them.

    The server may be away for three minutes at a time.

    Raises:
        StillRunning: After `timeout_s`.
        KernelwatchError: The server refuses, or was away for longer.
    """
    began = answered_at = time.monotonic()
    with progress() as shown:
        while True:
            over = timeout_s is not None and time.monotonic() - began > timeout_s
            try:
                found = [client().runs.get(one) for one in ids]
                waiting = [one for one in found if one.state in runs.OPEN and one.state != "held"]
                if not waiting:
                    return found
                left_s = {one.id: one.eta_s for one in client().queue.list() if one.id in ids}
            except KernelwatchError as error:
                if over or not _is_away(error, time.monotonic() - answered_at):
                    raise
                for one in ids:
                    shown.show(one, f"run {one}: the server does not answer, trying again", None)
            else:
                answered_at = time.monotonic()
                if over:
                    raise _too_late(waiting[0], timeout_s)
                for run in found:
                    shown.show(run.id, f"run {run.id}: {run.stage or run.state}", left_s.get(run.id))
            time.sleep(EVERY_S)


def _is_away(error: KernelwatchError, silent_s: float) -> bool:
    """Whether the server, or a proxy before it, may answer soon."""
    if isinstance(error, ApiError):
        unanswered = error.status == _BUSY or (error.status in _GATEWAY and not error.title)
    else:
        unanswered = isinstance(error, Unreachable)
    return unanswered and silent_s <= MAX_SILENT_S


def _too_late(run: RunDocument, timeout_s: float | None) -> StillRunning:
    return StillRunning(
        f"Run {run.id} is still {run.state} after {timeout_s:g} s, and goes on: wait longer with --timeout, or look at "
        f"{run.url}."
    )


def results(found: Sequence[RunDocument], wanted: frozenset[GateFinding] | None, folder: Path | None) -> View:
    """Their results with the gravest exit code of the `wanted` findings; also written into the folder."""
    view = reports.several(found, exit_code(found, wanted), lambda: comment([one.id for one in found]))
    if folder is not None:
        save(folder, view, found)
    return view


def comment(ids: Sequence[int]) -> str:
    """Their results as one comment."""
    first, *others = ids
    return client().runs.comment(first, also=others or None)
