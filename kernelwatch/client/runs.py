"""Runs, and the workers and queue that they go through."""

import time
from collections.abc import Sequence
from datetime import datetime

from kernelwatch.client.exchange import Events

from . import models
from .calls import Listing, get_events
from .errors import StillRunning
from .exchange import Flow, Sleep
from .resources import Mode, Resource, endpoint, events, flow, listing

OPEN: tuple[models.RunState, ...] = ("held", "queued", "leased")
FIRST_POLL_S, LAST_POLL_S = 1.0, 10.0


class Runs(Resource[Mode]):
    """Measurements of one revision on one device."""

    @listing("/runs")
    def list(
        self,
        *,
        target: str | None = None,
        device: str | None = None,
        state: Sequence[models.RunState] | None = None,
        purpose: models.Purpose | None = None,
        pull: int | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        expand: Sequence[str] | None = None,
    ) -> Listing[models.RunItem]:
        """Runs of all targets, the newest first; `expand=["counts"]` adds the number of cases by outcome."""

    @endpoint("GET /runs/{run_id}")
    def get(self, run_id: int, *, tables: bool | None = None) -> models.RunDocument:
        """One run with its verdicts and measurements; `tables` includes the tables of facts, which may be megabytes."""

    @listing("/runs/{run_id}/measurements")
    def measurements(
        self,
        run_id: int,
        *,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        role: str | None = None,
        state: models.CellState | None = None,
        tables: bool | None = None,
    ) -> Listing[models.MeasurementItem]:
        """What the contenders of a run took; `case` may have * and ? for several."""

    @listing("/runs/{run_id}/verdicts")
    def verdicts(
        self,
        run_id: int,
        *,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        outcome: Sequence[models.Outcome] | None = None,
        baseline_kind: models.BaselineKind | None = None,
    ) -> Listing[models.VerdictItem]:
        """What a run decided about its cases; `case` may have * and ? for several."""

    @endpoint("GET /runs/{run_id}/samples")
    def samples(self, run_id: int, contender: str, case: str) -> models.SamplesDocument:
        """The raw samples of one contender (`head:norms`) at one case."""

    @endpoint("POST /runs")
    def start(
        self,
        target: str,
        revision: str,
        *,
        device: str | None = None,
        suite: str | None = None,
        again: bool | None = None,
        idempotency_key: str | None = None,
    ) -> models.RequestedRunsDocument:
        """Queue a revision to be measured on one device, or on all; `again` even if it was measured already.

        `created` of the result has the ids of the new runs, `items` all runs of the revision that were asked for.
        A program that may be started again passes the same `idempotency_key`: a repetition within a day returns the
        first result.
        """

    @endpoint("POST /runs/{run_id}/cancel")
    def cancel(self, run_id: int) -> models.RunItem:
        """Cancel a run."""

    @endpoint("POST /runs/{run_id}/retry")
    def retry(self, run_id: int) -> models.RunItem:
        """Queue a run again that ended without a result."""

    @endpoint("POST /runs/{run_id}/approve")
    def approve(self, run_id: int) -> models.ApprovedRunsDocument:
        """Approve the held runs of exactly this commit, on every device."""

    @events
    def events(self, run_id: int) -> Events[models.ProgressItem]:
        """Follow its progress until it ends: an event at once, after each change, and every 10 s."""
        call = get_events("/runs/{run_id}/events", models.ProgressItem, run_id=run_id)
        return Events(call, lambda found: found.state not in OPEN)

    @flow
    def wait(self, run_id: int, *, timeout_s: float | None = None) -> Flow[models.RunDocument]:
        """Wait until a run ends, and return it.  A held run waits for approval first.

        Raises StillRunning after `timeout_s`.
        """
        ends_at = time.monotonic() + timeout_s if timeout_s is not None else None
        poll_s = FIRST_POLL_S
        while True:
            run = yield from self._exchange.result(Runs.get.describe(self, run_id))
            if run.state not in OPEN:
                return run
            left_s = ends_at - time.monotonic() if ends_at is not None else poll_s
            if left_s <= 0:
                raise StillRunning(
                    f"Run {run_id} is still {run.state} after {timeout_s:g} s; wait longer, or look at {run.url}."
                )
            yield Sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 1.5, LAST_POLL_S)

    @endpoint("GET /runs/{run_id}/comment", accept="text/markdown")
    def comment(self, run_id: int, *, also: Sequence[int] | None = None) -> str:
        """The result of a run, and of those that `also` names, as Markdown, as a pull request shows it."""

    @endpoint("GET /runs/{run_id}/log", accept="text/plain")
    def log(self, run_id: int) -> str:
        """The whole build log of the run's revision."""

    @listing("/runs/{run_id}/code")
    def texts(self, run_id: int, *, case: str | None = None) -> Listing[models.KernelTextItem]:
        """The texts of compiled code that are stored of a run and of the facts check of its revision."""

    @endpoint("GET /runs/{run_id}/code/{sha256}", accept="text/plain")
    def text(self, run_id: int, sha256: str) -> str:
        """One of the texts of compiled code, by its `sha256`."""


class Workers(Resource[Mode]):
    """Processes that own a device."""

    @listing("/workers")
    def list(self) -> Listing[models.WorkerItem]:
        """All workers ever seen, by name; `online` is true for those seen in the last minute."""

    @endpoint("POST /workers/{name}/pause", slashes=True)
    def pause(self, worker: str) -> models.WorkerItem:
        """Let it take no further run; the run that it measures goes on."""

    @endpoint("POST /workers/{name}/drain", slashes=True)
    def drain(self, worker: str) -> models.WorkerItem:
        """Let it end its run and take no other; it is drained when `run_id` is None."""

    @endpoint("POST /workers/{name}/resume", slashes=True)
    def resume(self, worker: str) -> models.WorkerItem:
        """Let it take runs again."""


class Queue(Resource[Mode]):
    """What is being measured, and what waits."""

    @listing("/queue")
    def list(self) -> Listing[models.QueueItem]:
        """Runs in progress, then waiting runs in the order in which they will be taken."""
