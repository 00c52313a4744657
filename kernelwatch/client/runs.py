"""Runs, and the workers and queue that they go through."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from kernelwatch.client.exchange import Events

from .calls import Call, Listing, SlashedName, get, get_events, get_list, get_text, post
from .errors import StillRunning
from .exchange import Flow, Sleep
from .models import (
    ApprovedRunsDocument,
    BaselineKind,
    CellState,
    KernelTextItem,
    MeasurementItem,
    Outcome,
    ProgressItem,
    Purpose,
    QueueItem,
    RequestedRunsDocument,
    RunDocument,
    RunItem,
    RunState,
    SamplesDocument,
    VerdictItem,
    WorkerItem,
)
from .resources import Mode, Resource, endpoint, events, flow, listing

OPEN: tuple[RunState, ...] = ("held", "queued", "leased")
FIRST_POLL_S, LAST_POLL_S = 1.0, 10.0


class Runs(Resource[Mode]):
    """Measurements of one revision on one device."""

    @listing
    def list(
        self,
        *,
        target: str | None = None,
        device: str | None = None,
        state: Sequence[RunState] | None = None,
        purpose: Purpose | None = None,
        pull: int | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        expand: Sequence[str] | None = None,
    ) -> Listing[RunItem]:
        """Runs of all targets, the newest first; `expand=["counts"]` adds the number of cases by outcome."""
        params = {"target": target, "device": device, "state": state, "purpose": purpose, "pull": pull}
        return get_list("/runs", RunItem, {**params, "revision": revision, "since": since, "expand": expand})

    @endpoint
    def get(self, run_id: int, *, tables: bool | None = None) -> Call[RunDocument]:
        """One run with its verdicts and measurements; `tables` includes the tables of facts, which may be megabytes."""
        return get("/runs/{run_id}", RunDocument, {"tables": tables}, run_id=run_id)

    @listing
    def measurements(
        self,
        run_id: int,
        *,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        role: str | None = None,
        state: CellState | None = None,
        tables: bool | None = None,
    ) -> Listing[MeasurementItem]:
        """What the contenders of a run took; `case` may have * and ? for several."""
        params = {"provider": provider, "op": op, "metric": metric, "case": case, "role": role, "state": state}
        return get_list("/runs/{run_id}/measurements", MeasurementItem, {**params, "tables": tables}, run_id=run_id)

    @listing
    def verdicts(
        self,
        run_id: int,
        *,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        outcome: Sequence[Outcome] | None = None,
        baseline_kind: BaselineKind | None = None,
    ) -> Listing[VerdictItem]:
        """What a run decided about its cases; `case` may have * and ? for several."""
        params = {"provider": provider, "op": op, "metric": metric, "case": case, "outcome": outcome}
        return get_list(
            "/runs/{run_id}/verdicts", VerdictItem, {**params, "baseline_kind": baseline_kind}, run_id=run_id
        )

    @endpoint
    def samples(self, run_id: int, contender: str, case: str) -> Call[SamplesDocument]:
        """The raw samples of one contender (`head:norms`) at one case."""
        return get("/runs/{run_id}/samples", SamplesDocument, {"contender": contender, "case": case}, run_id=run_id)

    @endpoint
    def start(
        self,
        target: str,
        revision: str,
        *,
        device: str | None = None,
        suite: str | None = None,
        again: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Call[RequestedRunsDocument]:
        """Queue a revision to be measured on one device, or on all; `again` even if it was measured already.

        `created` of the result has the ids of the new runs, `items` all runs of the revision that were asked for.
        A program that may be started again passes the same `idempotency_key`: a repetition within a day returns the
        first result.
        """
        fields = {"target": target, "revision": revision, "device": device, "suite": suite, "again": again}
        return replace(post("/runs", RequestedRunsDocument, fields), idempotency_key=idempotency_key)

    @endpoint
    def cancel(self, run_id: int) -> Call[RunItem]:
        """Cancel a run."""
        return post("/runs/{run_id}/cancel", RunItem, run_id=run_id)

    @endpoint
    def retry(self, run_id: int) -> Call[RunItem]:
        """Queue a run again that ended without a result."""
        return post("/runs/{run_id}/retry", RunItem, run_id=run_id)

    @endpoint
    def approve(self, run_id: int) -> Call[ApprovedRunsDocument]:
        """Approve the held runs of exactly this commit, on every device."""
        return post("/runs/{run_id}/approve", ApprovedRunsDocument, run_id=run_id)

    @events
    def events(self, run_id: int) -> Events[ProgressItem]:
        """Follow its progress until it ends: an event at once, after each change, and every 10 s."""
        call = get_events("/runs/{run_id}/events", ProgressItem, run_id=run_id)
        return Events(call, lambda found: found.state not in OPEN)

    @flow
    def wait(self, run_id: int, *, timeout_s: float | None = None) -> Flow[RunDocument]:
        """Wait until a run ends, and return it.  A held run waits for approval first.

        Raises StillRunning after `timeout_s`.
        """
        ends_at = time.monotonic() + timeout_s if timeout_s is not None else None
        poll_s = FIRST_POLL_S
        while True:
            run = yield from self._exchange.result(get("/runs/{run_id}", RunDocument, run_id=run_id))
            if run.state not in OPEN:
                return run
            left_s = ends_at - time.monotonic() if ends_at is not None else poll_s
            if left_s <= 0:
                raise StillRunning(
                    f"Run {run_id} is still {run.state} after {timeout_s:g} s; wait longer, or look at {run.url}."
                )
            yield Sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 1.5, LAST_POLL_S)

    @endpoint
    def comment(self, run_id: int, *, also: Sequence[int] | None = None) -> Call[str]:
        """The result of a run, and of those that `also` names, as Markdown, as a pull request shows it."""
        return get_text("/runs/{run_id}/comment", "text/markdown", {"also": also}, run_id=run_id)

    @endpoint
    def log(self, run_id: int) -> Call[str]:
        """The whole build log of the run's revision."""
        return get_text("/runs/{run_id}/log", "text/plain", run_id=run_id)

    @listing
    def texts(self, run_id: int, *, case: str | None = None) -> Listing[KernelTextItem]:
        """The texts of compiled code that are stored of a run and of the facts check of its revision."""
        return get_list("/runs/{run_id}/code", KernelTextItem, {"case": case}, run_id=run_id)

    @endpoint
    def text(self, run_id: int, sha256: str) -> Call[str]:
        """One of the texts of compiled code, by its `sha256`."""
        return get_text("/runs/{run_id}/code/{sha256}", "text/plain", run_id=run_id, sha256=sha256)


class Workers(Resource[Mode]):
    """Processes that own a device."""

    @listing
    def list(self) -> Listing[WorkerItem]:
        """All workers ever seen, by name; `online` is true for those seen in the last minute."""
        return get_list("/workers", WorkerItem)

    @endpoint
    def pause(self, worker: str) -> Call[WorkerItem]:
        """Let it take no further run; the run that it measures goes on."""
        return post("/workers/{name}/pause", WorkerItem, name=SlashedName(worker))

    @endpoint
    def drain(self, worker: str) -> Call[WorkerItem]:
        """Let it end its run and take no other; it is drained when `run_id` is None."""
        return post("/workers/{name}/drain", WorkerItem, name=SlashedName(worker))

    @endpoint
    def resume(self, worker: str) -> Call[WorkerItem]:
        """Let it take runs again."""
        return post("/workers/{name}/resume", WorkerItem, name=SlashedName(worker))


class Queue(Resource[Mode]):
    """What is being measured, and what waits."""

    @listing
    def list(self) -> Listing[QueueItem]:
        """Runs in progress, then waiting runs in the order in which they will be taken."""
        return get_list("/queue", QueueItem)
