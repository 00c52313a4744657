"""The facts worker: compile pushed revisions without a GPU, compare them with their baselines, store the findings.

No run waits for it, and its failures are only reported in the comment.
"""

import os
import threading
import time

import structlog

from service.db import schema
from service.db.engine import reading, transaction
from service.db.models import FactsCheck
from service.domain.codefacts.findings import FactsReport, Findings
from service.domain.policy import recipes
from service.domain.states import FactsState
from service.errors import BuildFailed, LeaseLost, SandboxFailed, ServiceError, SourceFailed
from service.ledger.runs import facts_checks
from service.ledger.runs.facts_checks import FactsLease
from service.settings import settings
from service.sources import open_source
from workers.compile import compare
from workers.compile.offline import Subject
from workers.run.heartbeat import Stopped, stopping
from workers.sandbox import sandbox

log = structlog.get_logger()

LEASE_S = 900.0  # longer than the longest step without a renewal: a build
RENEW_S = 30.0
NICE = 10  # below everything that is measured on the same machine


def compile_due() -> int:
    """Do the waiting checks, the newest first.  Returns how many there were."""
    if not settings().facts or not schema.fits():
        return 0
    with transaction() as session:
        facts_checks.plan(session)
    taken = 0
    while not stopping.is_set() and schema.fits() and (lease := _claim()) is not None:
        _take(lease)
        taken += 1
    return taken


def run_with_control() -> threading.Thread:
    """Start a thread that does facts checks at low priority for as long as this process lives."""

    def compile_until_stopped() -> None:
        # Of this thread and what it starts.  Only root may lower a niceness.
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
        while not stopping.is_set():
            try:
                compile_due()
            except Exception:  # e.g. without a database: retried at the next poll
                log.exception("facts worker failed")
            stopping.wait(settings().queue_poll_s)

    thread = threading.Thread(target=compile_until_stopped, name="facts", daemon=True)
    thread.start()
    return thread


def _claim() -> FactsLease | None:
    works = sandbox.self_test() is None
    with transaction() as session:
        return facts_checks.claim(session, LEASE_S, has_sandbox=works)


def _take(lease: FactsLease) -> None:
    """Do one check and end it, whatever the result; give it back if this process is asked to stop meanwhile."""
    try:
        with reading() as session:
            check = facts_checks.claimed(session, lease)
        found = _compiled_unless_stopped(lease, check)
    except LeaseLost as lost:
        log.info("check lost", check=lease.check_id, reason=str(lost))
    except BuildFailed as failure:
        _end(lease, FactsState.FAILED, str(failure))
    except SourceFailed as failure:
        _end(lease, None if failure.passing else FactsState.UNAVAILABLE, str(failure))
    except (Stopped, SandboxFailed) as reason:
        _give_back(lease, str(reason))
    except SystemExit:  # how Celery ends a process of its pool on a signal, e.g. from systemd
        _give_back(lease, str(Stopped()))
        raise
    except ServiceError as trouble:
        _end(lease, FactsState.UNAVAILABLE, str(trouble))
    except Exception as error:
        log.exception("check failed", check=lease.check_id)
        _end(lease, None, f"internal error: {type(error).__name__}: {error}")
    else:
        _end(lease, FactsState.DONE if found else FactsState.SKIPPED, None, found)


def _compiled_unless_stopped(lease: FactsLease, check: FactsCheck) -> FactsReport | None:
    """As `_compiled`.  Raises Stopped instead of any result or error once this process was asked to stop.

    Systemd sends the signal to all processes of a service, so it may also have ended programs of this check.
    """
    try:
        report = _compiled(lease, check)
    except Exception:
        _keep_going()
        raise
    _keep_going()
    return report


def _keep_going() -> None:
    if stopping.is_set():
        raise Stopped


def _compiled(lease: FactsLease, check: FactsCheck) -> FactsReport | None:
    """The report; None where no device of the recipe is a GPU that can be compiled for."""
    recipe = recipes.parse(check.recipe.text)
    archs = compare.archs_of(recipe)
    if not archs:
        return None
    target = check.target
    trouble = sandbox.self_test()
    if trouble and not (check.trusted and target.allow_unsandboxed):
        raise SandboxFailed(f"The sandbox of the machine that compiles stopped working: {trouble}")
    source = open_source(target, _keep_going)
    sha = check.revision.sha
    source.resolve(sha)
    subject = Subject(target.name, target.kind.value, source, recipe, check.recipe.adapters, trouble is None)
    revisions = f"{check.base}..{sha}" if check.base else sha
    wish = compare.Wish(revisions, archs=archs, keep=True)
    return compare.facts(subject, wish, _Renewing(lease), _keep_going)


class _Renewing:
    """Renews the lease while the compilation reports its progress."""

    def __init__(self, lease: FactsLease) -> None:
        self._lease, self._next = lease, time.monotonic() + RENEW_S
        self._lock = threading.Lock()

    def __call__(self, stage: str) -> None:
        with self._lock:
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + RENEW_S
            with transaction() as session:
                facts_checks.renew(session, self._lease, LEASE_S)
            log.info("compiling", check=self._lease.check_id, stage=stage)


def _give_back(lease: FactsLease, reason: str) -> None:
    log.warning("check given back", check=lease.check_id, reason=reason)
    try:
        with transaction() as session:
            facts_checks.give_back(session, lease, reason)
    except Exception:  # as in _end
        log.exception("check could not be given back", check=lease.check_id)


def _end(lease: FactsLease, state: FactsState | None, reason: str | None, found: FactsReport | None = None) -> None:
    """Store the end of a check; without a state it is retried."""
    try:
        with transaction() as session:
            if state is None:
                facts_checks.retry(session, lease, reason or "")
            else:
                facts_checks.end(session, lease, state, reason, Findings.of(found) if found else None)
                if found:
                    facts_checks.keep_texts(session, lease, found.texts)
    except LeaseLost as lost:
        log.info("check lost", check=lease.check_id, reason=str(lost))
    except Exception:  # e.g. without a database: the lease expires, and the check is claimed again
        log.exception("check could not be ended", check=lease.check_id)
    if reason:
        log.warning("no facts", check=lease.check_id, reason=reason)
