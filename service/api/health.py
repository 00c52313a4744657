"""Health, readiness and Prometheus metrics."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.api.common import in_thread_of
from service.db import migrate
from service.db.engine import clock, reading
from service.db.models import OutboxMessage, Quarantine, RegressionRow, Run, Series, VerdictRow
from service.domain.states import BaselineKind, Purpose
from service.ledger.queries import waiting, workers

router = APIRouter(tags=["health"])
DAY_S = 86_400.0
_THREADS = ThreadPoolExecutor(2, "health")  # these endpoints answer when all other threads are busy
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return 200 while the process responds."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "Not ready; `reasons` says why."}})
async def readyz(response: Response) -> dict[str, Any]:
    """Return 200 if the database responds and has the schema of this version."""
    reasons = await in_thread_of(_THREADS, _reasons)
    response.status_code = 503 if reasons else 200
    return {"status": "not ready" if reasons else "ready", "reasons": reasons}


def _reasons() -> list[str]:
    try:
        current, newest = migrate.current(), migrate.newest()
    except SQLAlchemyError as error:
        return [f"the database does not answer ({type(getattr(error, 'orig', None) or error).__name__})"]
    if current is None:
        return ["the database has no tables yet; run `kernelwatch db upgrade`"]
    if current != newest:
        return [
            f"the database is at migration {current}, and this version needs {newest}; run `kernelwatch db upgrade`"
        ]
    return []


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

        @routes.get("/metrics", response_class=Response)
        async def metrics() -> Response:
            """Return the metrics for Prometheus."""
            text = await in_thread_of(_THREADS, generate_latest, self.registry)
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
    runs = GaugeMetricFamily("kernelwatch_runs", "Runs by state and device.", labels=("state", "device"))
    for state, device, n in session.execute(
        select(Run.state, Run.device, func.count()).group_by(Run.state, Run.device)
    ):
        runs.add_metric((state.value, device), n)
    age = GaugeMetricFamily(
        "kernelwatch_queue_age_seconds", "Waiting time of the oldest queued run.", labels=("device",)
    )
    for one in waiting(session):
        age.add_metric((one.device,), one.oldest_s)
    seen = GaugeMetricFamily(
        "kernelwatch_worker_silence_seconds", "Time since a worker was seen.", labels=("worker", "device")
    )
    for worker in workers(session):
        seen.add_metric((worker.name, worker.device), max(0.0, now - worker.seen_at))
    verdicts = GaugeMetricFamily(
        "kernelwatch_verdicts_last_day",
        "Verdicts against the parent, of the last 24 hours; without bisections and calibrations.",
        labels=("outcome", "device"),
    )
    for outcome, device, n in session.execute(
        select(VerdictRow.outcome, Run.device, func.count())
        .join(Run, Run.id == VerdictRow.run_id)
        .where(
            VerdictRow.baseline_kind == BaselineKind.PARENT, Run.purpose == Purpose.WATCH, Run.finished_at > now - DAY_S
        )
        .group_by(VerdictRow.outcome, Run.device)
    ):
        verdicts.add_metric((outcome, device), n)
    messages = GaugeMetricFamily(
        "kernelwatch_outbox_messages", "Comments and checks in the outbox.", labels=("kind", "state")
    )
    for kind, message_state, n in session.execute(
        select(OutboxMessage.kind, OutboxMessage.state, func.count()).group_by(OutboxMessage.kind, OutboxMessage.state)
    ):
        messages.add_metric((kind, message_state.value), n)
    regressions = GaugeMetricFamily(
        "kernelwatch_regressions", "Regressions by state and device.", labels=("state", "device")
    )
    for regression_state, device, n in session.execute(
        select(RegressionRow.state, Series.device, func.count())
        .join(RegressionRow.series)
        .group_by(RegressionRow.state, Series.device)
    ):
        regressions.add_metric((regression_state.value, device), n)
    quarantined = GaugeMetricFamily("kernelwatch_quarantined_cases", "Quarantined cases.", labels=("device",))
    for device, n in session.execute(
        select(Series.device, func.count())
        .join(Quarantine.series)
        .where(Quarantine.released_at.is_(None))
        .group_by(Series.device)
    ):
        quarantined.add_metric((device,), n)
    yield from (runs, age, seen, verdicts, messages, regressions, quarantined)
