"""The fleet: what each worker does, what waits and why, what needs approval, and whether the service is alive."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from dashboards.pages import controls
from dashboards.pages.health import disk
from dashboards.rendering import page, page_router
from service.api.access import Reading
from service.db.engine import clock
from service.db.models import Run
from service.domain.access import Scope
from service.domain.states import OutboxState
from service.domain.text import in_bytes, lasted
from service.ledger.acting import acting
from service.ledger.health import fleet
from service.ledger.health.fleet import queues
from service.ledger.runs.queue import NO_PLACE, QueuePlace, places
from service.reports.health.facts import DeviceQueue, Queues, ServiceState
from service.reports.health.needs import MIN_FREE, SILENT_S, Disk
from service.settings import settings

router = page_router()

MAX_WORKERS = 40
_BROKER_FRESH_S, _BROKER_PATIENCE_S = 15.0, 0.3
_PORTS = {"amqp": 5672, "amqps": 5671, "redis": 6379, "rediss": 6379}
_broker_seen: dict[str, tuple[float, bool]] = {}


@dataclass(frozen=True)
class Sign:
    """A part of the service with its last sign of life."""

    name: str
    text: str
    ok: bool


@router.get("/workers")
def workers(session: Reading) -> str:
    """Show what the workers do, the queue of each device, and whether the service is alive."""
    now = clock(session)
    found = queues(session, now)
    every = [one for queue in found.devices for one in queue.workers]
    every.sort(key=lambda one: (not one.online, one.run is None, one.row.name))  # the busy ones first
    shown = every[:MAX_WORKERS]
    held = fleet.held(session)
    signs = signs_of_life(fleet.service_state(session, now), disk(), now)
    return page(
        "workers.html",
        now=now,
        headline=headline(found),
        workers=shown,
        more_workers=len(every) - len(shown),
        lately=fleet.workers_lately(session, [one.row.name for one in shown], now),
        worker_forms={one.row.id: controls.form_of_worker(one.row) for one in shown},
        known_runs=fleet.known_runs(session, [one.row.run_id for one in shown]),
        queues=[one for one in found.devices if one.queued or one.current],
        longest=max((one.queued for one in found.devices), default=0),
        queued=sum(one.queued for one in found.devices),
        waiting=_waiting(session, found),
        held=[(run, controls.form_of_run(run, controls.APPROVE)) for run in held],
        held_runs=sum(one.count for one in found.held),
        signs=signs,
    )


def headline(found: Queues) -> str:
    """`3 of 7 workers online; 92 runs wait, the last ends in 4 h`."""
    every = [one for queue in found.devices for one in queue.workers]
    waiting = [queue for queue in found.devices if queue.queued]
    count = sum(queue.queued for queue in waiting)
    online = sum(one.online for one in every)
    words = f"{online} of {len(every)} worker{'s' * (len(every) != 1)} online" if every else "No workers yet"
    if not count:
        return f"{words}; nothing waits" if every else words
    words += f"; {count} run{'s wait' if count != 1 else ' waits'}"
    known = [queue.ends_in_s for queue in waiting if queue.taken and queue.ends_in_s]
    untaken = [queue for queue in waiting if not queue.taken]
    if untaken:
        alone = sum(queue.queued for queue in untaken)
        return f"{words}, {f'{alone} of them ' if alone < count else ''}without a worker"
    return f"{words}, the last ends in {lasted(max(known))}" if len(known) == len(waiting) else words


def _waiting(session: Session, found: Queues) -> list[tuple[Run, QueuePlace, str]]:
    """The first waiting runs of each device with their places, and why each waits."""
    by_device = {one.device: one for one in found.devices}
    place_of = places(session)
    now = clock(session)
    return [
        (run, place_of.get(run.id, NO_PLACE), why_it_waits(run, by_device.get(run.device), now))
        for run in fleet.first_waiting(session)
    ]


def why_it_waits(run: Run, queue: DeviceQueue | None, now: float) -> str:
    """What a queued run waits for."""
    able = [one.row for one in queue.workers if one.takes_runs] if queue is not None else []
    if not able:
        return f"no worker of {run.device} takes runs"
    if run.only_worker is not None and run.only_worker not in {one.name for one in able}:
        return f"bound to {run.only_worker}, which takes none"
    if not (run.trusted and run.target.allow_unsandboxed) and all(one.sandbox is not None for one in able):
        return "needs a worker with a sandbox"
    if run.not_before > now:
        return f"next attempt in {lasted(run.not_before - now)}" + (f": {run.reason}" if run.reason else "")
    return f"bound to {run.only_worker}" if run.only_worker is not None else "runs before it"


def signs_of_life(state: ServiceState, here: Disk, now: float) -> Sequence[Sign]:
    """Control, broker, outbox, webhooks and disk, each with its last sign of life."""
    silent_s = 0.0 if state.poll_at is None else now - state.poll_at
    late = sum(one.count for one in state.unsent if one.state == OutboxState.WAITING)
    failed = sum(one.count for one in state.unsent if one.state == OutboxState.FAILED)
    if state.poll_at is None:
        control = "nothing to poll"
    else:
        control = f"polls were due {lasted(silent_s)} ago" if silent_s > SILENT_S else "polls on time"
    if state.oldest_delivery is not None:
        webhooks = f"one waits for {lasted(now - state.oldest_delivery)}"
    elif state.last_delivery is not None and acting().actor.may(Scope.READ):  # it may be of a private target
        webhooks = f"last {lasted(max(0.0, now - state.last_delivery))} ago"
    else:
        webhooks = "none waits"
    return (
        Sign("Control", control, silent_s <= SILENT_S),
        _broker(),
        Sign("Outbox", f"{late} late, {failed} given up in a day", not late and not failed),
        Sign("Webhooks", webhooks, state.oldest_delivery is None),
        Sign("Disk", f"{in_bytes(here.free)} free", here.free >= MIN_FREE),
    )


def _broker() -> Sign:
    """Whether the broker accepts connections; asked again after some seconds."""
    secret = settings().broker_url
    if secret is None:
        return Sign("Broker", "none, workers use a timer", True)
    url = urlsplit(secret.get_secret_value().split(";")[0])
    port = url.port or _PORTS.get(url.scheme)
    if url.hostname is None or port is None:
        return Sign("Broker", "not checked", True)
    address = f"{url.hostname}:{port}"
    asked_at, answers = _broker_seen.get(address, (-_BROKER_FRESH_S, False))
    if time.monotonic() - asked_at >= _BROKER_FRESH_S:
        try:
            socket.create_connection((url.hostname, port), _BROKER_PATIENCE_S).close()
            answers = True
        except OSError:
            answers = False
        _broker_seen[address] = time.monotonic(), answers
    return Sign("Broker", "accepts connections" if answers else "does not answer", answers)
