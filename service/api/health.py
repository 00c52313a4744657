"""Health, readiness and Prometheus metrics."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.api.access import BY_ANYBODY, as_reader
from service.api.common import in_thread_of
from service.db import check
from service.db.engine import clock, reading
from service.db.models import (
    SAMPLES,
    ChannelHealth,
    Notice,
    NoticeMessage,
    OutboxMessage,
    Quarantine,
    RegressionRow,
    Run,
    RunTotals,
    Series,
    Target,
)
from service.db.paging import filtered
from service.db.size import sizes
from service.domain.states import OPEN_REGRESSIONS, OPEN_STATES, OutboxState, Outcome, Purpose
from service.domain.text import DAY_S
from service.ledger import phases
from service.ledger.health import control, fleet
from service.ledger.reading.queries import waiting, workers
from service.settings import settings

router = APIRouter(tags=["health"])
FRESH_S = 2.0  # a probe of the database answers the requests of this time
_PATIENCE_S = 5.0  # how long a request waits for a probe
_THREADS = ThreadPoolExecutor(2, "health")  # these endpoints answer when all other threads are busy
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@router.get("/healthz", openapi_extra=BY_ANYBODY)
async def healthz() -> dict[str, str]:
    """Return 200 while the process responds."""
    return {"status": "ok"}


class Readiness:
    """Whether the database is ready, probed at most once in `FRESH_S`: a flood of requests is no flood of writes."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._probe: Future[list[str]] | None = None
        self._probed_at = 0.0

    async def problems(self) -> list[str]:
        """Return why the database is not ready.  Requests share a probe, and wait for it only for a while."""
        if self._probe is None or (self._probe.done() and time.monotonic() - self._probed_at >= FRESH_S):
            self._probe, self._probed_at = self._thread.submit(check.unready), time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._probe)), _PATIENCE_S)
        except TimeoutError:
            return [f"the database did not accept a write within {_PATIENCE_S:.0f} s"]

    def router(self) -> APIRouter:
        routes = APIRouter(tags=["health"])

        @routes.get(
            "/readyz", responses={503: {"description": "Not ready; `reasons` says why."}}, openapi_extra=BY_ANYBODY
        )
        async def readyz(response: Response) -> dict[str, Any]:
            """Return 200 if the database answers, has the schema of this version, and accepts a write."""
            reasons = await self.problems()
            response.status_code = 503 if reasons else 200
            return {"status": "not ready" if reasons else "ready", "reasons": reasons}

        return routes


class Metrics:
    """The metrics of one app.  Those of the database are read on each request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Ledger())
        self.duration = Histogram(
            "kernelwatch_http_request_seconds",
            "Duration of requests.",
            ("method", "route", "status"),
            buckets=_DURATIONS,
            registry=self.registry,
        )

    def router(self) -> APIRouter:
        routes = APIRouter(tags=["health"])

        @routes.get("/metrics", response_class=Response, openapi_extra=BY_ANYBODY)
        async def metrics(request: Request) -> Response:
            """Return the metrics for Prometheus; those of private targets need a key."""
            text = await in_thread_of(_THREADS, as_reader, request, lambda: generate_latest(self.registry))
            return Response(text, media_type=CONTENT_TYPE_LATEST)

        return routes


class _Ledger(Collector):
    """Metrics read from the database on each request."""

    def describe(self) -> Iterator[Metric]:
        return iter(())  # nothing is read while the registry is being filled

    def collect(self) -> Iterator[Metric]:
        with reading() as session:
            yield from _families(session)


def _families(session: Session) -> Iterator[Metric]:
    now = clock(session)
    runs = GaugeMetricFamily(
        "kernelwatch_runs",
        "Runs that have not ended, and those that ended in the last 24 hours.",
        labels=("state", "device"),
    )
    by_state = select(Run.state, Run.device, func.count()).where(Run.target_id.not_in(SAMPLES))
    for which in (Run.state.in_(OPEN_STATES), Run.finished_at > now - DAY_S):
        for state, device, n in session.execute(by_state.where(which).group_by(filtered(Run.state), Run.device)):
            runs.add_metric((state.value, device), n)
    age = GaugeMetricFamily(
        "kernelwatch_queue_age_seconds", "Waiting time of the oldest queued run.", labels=("device",)
    )
    for one in waiting(session):
        age.add_metric((one.device,), one.oldest_s)
    seen = GaugeMetricFamily(
        "kernelwatch_worker_silence_seconds", "Time since a worker was seen.", labels=("worker", "device")
    )
    registered = workers(session)
    for worker in registered:
        seen.add_metric((worker.name, worker.device), max(0.0, now - worker.seen_at))
    seconds = GaugeMetricFamily(
        "kernelwatch_run_seconds_last_day",
        "Mean seconds of a run from lease to verdict, of the runs measured in the last 24 hours.",
        labels=("worker", "device", "phase"),
    )
    for (name, device), means in phases.mean_seconds_of_a_day(session, now).items():
        for phase, mean in means.items():
            seconds.add_metric((name, device, phase), mean)
    busy = GaugeMetricFamily(
        "kernelwatch_worker_busy_share_last_day",
        "Share of the last 24 hours in which a worker held a run.",
        labels=("worker", "device"),
    )
    for of, share in fleet.busy_shares(session, now).items():
        busy.add_metric(of, share)
    spread = GaugeMetricFamily(
        "kernelwatch_equal_code_spread",
        "Root mean square of the relative differences of equal code, of the last 30 days.",
        labels=("worker", "device"),
    )
    here = {worker.name: worker.device for worker in registered}
    for name, nights in fleet.equal_code(session, here, now).items():
        if nights.spread is not None:
            spread.add_metric((name, here[name]), nights.spread)
    tick = GaugeMetricFamily(
        "kernelwatch_control_silence_seconds", "Time since control ran its periodic tasks, none of which hung."
    )
    if (at := control.ticked_at(session)) is not None:
        tick.add_metric((), max(0.0, now - at))
    free = GaugeMetricFamily(
        "kernelwatch_disk_free_bytes", "Free space where the API has its state folder.", labels=("folder",)
    )
    with suppress(OSError):  # an API of a fleet has no state folder
        free.add_metric((str(settings().state),), shutil.disk_usage(settings().state).free)
    verdicts = GaugeMetricFamily(
        "kernelwatch_verdicts_last_day",
        "Verdicts against the parent, of the last 24 hours; without bisections, calibrations and quarantined cases.",
        labels=("outcome", "device"),
    )
    sums = (func.sum(getattr(RunTotals, outcome.value)) for outcome in Outcome)
    lately = RunTotals.at > now - DAY_S, RunTotals.purpose == Purpose.WATCH, RunTotals.target_id.not_in(SAMPLES)
    for device, *counts in session.execute(select(RunTotals.device, *sums).where(*lately).group_by(RunTotals.device)):
        for outcome, n in zip(Outcome, counts, strict=True):
            if n:
                verdicts.add_metric((outcome.value, device), n)
    messages = GaugeMetricFamily(
        "kernelwatch_outbox_messages", "Comments and checks that wait, or were given up.", labels=("kind", "state")
    )
    for kind, message_state, n in session.execute(
        select(OutboxMessage.kind, OutboxMessage.state, func.count())
        .where(OutboxMessage.state.in_((OutboxState.WAITING, OutboxState.FAILED)))
        .group_by(OutboxMessage.kind, OutboxMessage.state)
    ):
        messages.add_metric((kind, message_state.value), n)
    notices = GaugeMetricFamily(
        "kernelwatch_notice_messages", "Messages to channels, of the last 30 days.", labels=("channel", "state")
    )
    for channel, message_state, n in session.execute(
        select(NoticeMessage.channel, NoticeMessage.state, func.count()).group_by(
            NoticeMessage.channel, NoticeMessage.state
        )
    ):
        notices.add_metric((channel, message_state.value), n)
    events = GaugeMetricFamily(
        "kernelwatch_notices", "Events for subscriptions, of the last 30 days.", labels=("kind", "state")
    )
    for kind, notice_state, n in session.execute(
        select(Notice.kind, Notice.state, func.count()).group_by(Notice.kind, Notice.state)
    ):
        events.add_metric((kind.value, notice_state.value), n)
    channels = GaugeMetricFamily(
        "kernelwatch_channel_failures", "Failed attempts of a channel in a row.", labels=("channel",)
    )
    for channel, failures in session.execute(select(ChannelHealth.channel, ChannelHealth.failures)):
        channels.add_metric((channel,), failures)
    regressions = GaugeMetricFamily(
        "kernelwatch_regressions", "Regressions that are neither fixed nor dismissed.", labels=("state", "device")
    )
    for regression_state, device, n in session.execute(
        select(RegressionRow.state, Series.device, func.count())
        .join(RegressionRow.series)
        .where(RegressionRow.state.in_(OPEN_REGRESSIONS), Series.target_id.not_in(SAMPLES))
        .group_by(RegressionRow.state, Series.device)
    ):
        regressions.add_metric((regression_state.value, device), n)
    quarantined = GaugeMetricFamily("kernelwatch_quarantined_cases", "Quarantined cases.", labels=("device",))
    for device, n in session.execute(
        select(Series.device, func.count())
        .join(Quarantine.series)
        .where(Quarantine.released_at.is_(None), Series.target_id.not_in(SAMPLES))
        .group_by(Series.device)
    ):
        quarantined.add_metric((device,), n)
    tables = GaugeMetricFamily(
        "kernelwatch_table_bytes", "Size of a table with its indexes; of PostgreSQL.", labels=("table",)
    )
    for size_of in sizes(session) if session.get_bind().dialect.name == "postgresql" else ():
        tables.add_metric((size_of.table,), size_of.bytes)
    mirrors = GaugeMetricFamily("kernelwatch_mirror_bytes", "Size of a target's mirror.", labels=("target",))
    failing = GaugeMetricFamily(
        "kernelwatch_target_poll_failures", "Failed polls of a target in a row.", labels=("target",)
    )
    for name, size, failures in session.execute(select(Target.name, Target.mirror_bytes, Target.poll_failures)):
        failing.add_metric((name,), failures)
        if size is not None:
            mirrors.add_metric((name,), size)
    yield from (
        runs,
        age,
        seen,
        seconds,
        busy,
        spread,
        tick,
        free,
        verdicts,
        messages,
        notices,
        events,
        channels,
        regressions,
        quarantined,
        mirrors,
        tables,
        failing,
    )
