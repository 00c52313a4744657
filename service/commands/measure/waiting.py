"""Wait for runs, print what they found, and write their results into a folder for later steps of a job."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernelwatch.client import ApiError, KernelwatchError, StillRunning, Unreachable
from kernelwatch.client.models import RunDocument
from service.commands import files
from service.commands.connection import client
from service.commands.measure.fail_on import GateFinding, exit_code, explain
from service.commands.output.console import progress
from service.commands.output.formats import as_json
from service.commands.output.views import View
from service.commands.views import reports, runs
from service.domain.text import one_line
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import RunDocument

_FILES = {"report.md": "md", "report.xml": "junit", "report.sarif": "sarif"}
MOST_SEVERE_FIRST = ("fail", "undecided", "warn", "pass")  # states of the gate


def save(folder: Path, view: "View", runs: Sequence["RunDocument"]) -> None:
    """Write the report in several formats, and result.env with a line for each value.

    Raises:
        BadInput: The folder cannot be written.
    """
    severity = {state: place for place, state in enumerate(MOST_SEVERE_FIRST)}
    worst = min(runs, key=lambda run: severity.get(run.gate.state, 0))
    values = _values([run.id for run in runs], worst.gate.state, view.code, worst.url, worst.headline)
    texts = {"report.json": as_json(view.document), "result.env": values}
    texts |= {name: view.texts[form]() for name, form in _FILES.items()}
    _write(folder, texts)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--save cannot write to {folder}: {error.strerror}.") from None


def _values(ids: Sequence[int], outcome: str, code: int, url: str, headline: str) -> str:
    """Values for shells; what a repository wrote into a headline stays in its line."""
    values = {
        "runs": " ".join(map(str, ids)),
        "outcome": outcome,
        "exit_code": str(code),
        "url": url,
        "headline": headline,
    }
    return "\n".join(f"{name}={one_line(value, 1000)}" for name, value in values.items())


T = TypeVar("T")
_ERROR = 2  # the exit code of a command that raises
_BUSY = 503  # of the server, or of a proxy before it
_GATEWAY = (502, 504)  # of a proxy; the server answers so, with a title, if a repository does not answer


@dataclass(frozen=True)
class Patience:
    """How often a server is asked, how long it may be away, and the clock by which this is counted."""

    every_s: float = 1.0
    max_silent_s: float = 180.0  # a server is restarted for an upgrade in less
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


PATIENCE = Patience()  # of commands


def until_answered(ask: Callable[[], T], timeout_s: float | None = None, patience: Patience | None = None) -> T:
    """Ask a server that may be away for three minutes until it answers.  What is asked may be asked again.

    Raises:
        KernelwatchError: The server refuses, or was away for longer, or for longer than `timeout_s`.
    """
    patience = patience or PATIENCE
    began = patience.now()
    with progress() as shown:
        while True:
            try:
                return ask()
            except KernelwatchError as error:
                silent_s = patience.now() - began
                too_long = silent_s > min(math.inf if timeout_s is None else timeout_s, patience.max_silent_s)
                if too_long or not _is_away(error):
                    raise
            shown.show(0, "the server does not answer, trying again", None)
            patience.sleep(patience.every_s)


def until_done(
    ids: Sequence[int],
    timeout_s: float | None = None,
    folder: Path | None = None,
    patience: Patience | None = None,
) -> list[RunDocument]:
    """Wait until all runs have ended, or wait for approval, and return them.

    The server may be away for three minutes at a time.

    Raises:
        StillRunning: After `timeout_s`.
        KernelwatchError: The server refuses, or was away for longer.

    In both cases the runs are in result.env of the folder.
    """
    patience = patience or PATIENCE
    began = answered_at = patience.now()
    found = list[RunDocument]()
    with progress() as shown:
        while True:
            over = timeout_s is not None and patience.now() - began > timeout_s
            try:
                found = [client().runs.get(one) for one in ids]
                waiting = [one for one in found if one.state in runs.OPEN and one.state != "held"]
                if not waiting:
                    return found
                left_s = {one.id: one.eta_s for one in client().queue.list() if one.id in ids}
            except KernelwatchError as error:
                if over or patience.now() - answered_at > patience.max_silent_s or not _is_away(error):
                    if folder is not None:
                        url = found[0].url if found else ""
                        _write(folder, {"result.env": _values(ids, "error", _ERROR, url, str(error))})
                    raise
                for one in ids:
                    shown.show(one, f"run {one}: the server does not answer, trying again", None)
            else:
                answered_at = patience.now()
                if over:
                    run = waiting[0]
                    late = f"Run {run.id} is still {run.state} after {timeout_s:g} s, and goes on"
                    if folder is not None:
                        _write(folder, {"result.env": _values(ids, "undecided", _ERROR, run.url, late)})
                    raise StillRunning(f"{late}: wait longer with --timeout, or look at {run.url}.")
                for run in found:
                    shown.show(run.id, f"run {run.id}: {run.stage or run.state}", left_s.get(run.id))
            patience.sleep(patience.every_s)


def _is_away(error: KernelwatchError) -> bool:
    """Whether the server, or a proxy before it, may answer soon."""
    if isinstance(error, ApiError):
        return error.status == _BUSY or (error.status in _GATEWAY and not error.title)
    return isinstance(error, Unreachable)


def results(found: Sequence[RunDocument], wanted: frozenset[GateFinding] | None, folder: Path | None) -> View:
    """Their results with the most severe exit code of the `wanted` findings; also written into the folder."""
    explain(found, wanted)
    texts = files.texts(found, lambda: comment([one.id for one in found]))
    view = reports.several(found, exit_code(found, wanted), texts)
    if folder is not None:
        save(folder, view, found)
    return view


def comment(ids: Sequence[int]) -> str:
    """Their results as one comment."""
    first, *others = ids
    return client().runs.comment(first, also=others or None)
