"""Find new revisions: by a delivery, a poll, or a person.  No transaction is open while a source answers."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, assert_never

import structlog
from sqlalchemy import ColumnElement, case, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.db.engine import clock, database_now, reading, transaction, wake
from service.db.models import Delivery, Run, Target
from service.db.wakeups import CONTROL, send
from service.domain import slash_commands
from service.domain.forges import pull_noun
from service.domain.states import ForgeKind, Origin, TargetKind
from service.domain.text import is_due
from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.forge import clients, events, gitlab
from service.forge.events import (
    CheckRequested,
    Commented,
    Event,
    GroupChanged,
    Ignored,
    InstallationChanged,
    Pinged,
    PullChanged,
    Pushed,
)
from service.forge.forge import ForgeFailed
from service.ledger import audit, targets
from service.ledger.intake import check_actions, comments, pulls
from service.ledger.locking import insert_if_absent
from service.ledger.notices import happenings
from service.ledger.notify import compose
from service.ledger.runs import revisions
from service.ledger.runs.revisions import Push, PushResult, approve, record_push, run_wanted
from service.ledger.side_by_side import ROUND_S, STARTING_S, SideBySide, sum_until
from service.ledger.targets import adopted, branch_recipe, with_recipe
from service.settings import settings
from service.sources import open_source
from service.sources.source import Found, Source

__all__ = [
    "approve",
    "backfill",
    "backfill_last",
    "poll",
    "poll_due",
    "process_delivery",
    "process_due",
    "pull_appeared",
    "request_runs",
    "run_revision",
    "store_delivery",
]

log = structlog.get_logger()

GIVEN_UP = 5  # failures after which a delivery waits for a person, who may redeliver it
_AT_ONCE = 20  # deliveries in memory, which may have 25 MB each
_STORED_AT_ONCE = 500  # databases limit how many parameters a statement may have
_RETRY_S = (0, 10, 60, 300, 1200)  # after receipt, by the number of failures
_MAX_POLL_S = 3600.0
_POLLING_S = 60.0  # while a worker polls a target, no other does so; after this time without a renewal it is lost
_PAUSED = "the target is paused; redeliver this after `kernelwatch target resume`."
_DEEPEST = 1000  # revisions read back to find where a rewritten mainline left the known one


def store_delivery(
    session: Session, guid: str, event: str, body: bytes, kind: ForgeKind = ForgeKind.GITHUB
) -> tuple[int, bool]:
    """Store a delivery for later: its id, and whether it is new.  A redelivery of one that was given up is retried.

    A new one takes one statement, because each further statement waits for its turn on a busy machine.
    """
    values = {"guid": guid, "event": event, "forge_kind": kind, "body": body, "received_at": database_now(session)}
    new = insert_if_absent(session, Delivery, "guid", values)
    if new is not None:
        wake(session, CONTROL)
        return new, True
    delivery = session.execute(select(Delivery).where(Delivery.guid == guid).with_for_update()).scalar_one()
    if delivery.processed_at is not None and delivery.attempts >= GIVEN_UP:
        delivery.processed_at, delivery.outcome = None, None
        delivery.attempts, delivery.received_at = 0, clock(session)
        wake(session, CONTROL)
    return delivery.id, False


_polls, _repositories = SideBySide("poll"), SideBySide("deliveries")
_keys = dict[int, tuple[ForgeKind, str]]()  # the repositories of deliveries that wait until others of theirs are done


def process_due(*, wait: bool = True) -> int:
    """Process the deliveries that are due.  Returns how many were processed, or failed.

    All that waits for one repository is processed together: one fetch of its branches and one of the heads of pull
    requests answer any number of deliveries.  Repositories are processed side by side; without `wait` this returns
    once they have begun, and wakes control whenever one has ended.  What cannot begin waits for the next call.
    """
    busy = _repositories.busy()  # before the rows are read: they may be out of date of one that ends in between
    waiting = select(Delivery.id, Delivery.received_at, Delivery.attempts).where(Delivery.processed_at.is_(None))
    with reading() as session:
        now = clock(session)
        rows = session.execute(waiting.order_by(Delivery.received_at, Delivery.id)).all()
    waits_s = [_RETRY_S[min(row.attempts, GIVEN_UP - 1)] for row in rows]
    due = [row.id for row, wait_s in zip(rows, waits_s, strict=True) if is_due(row.received_at + wait_s, now, wait_s)]
    for delivery_id in _keys.keys() - {row.id for row in rows}:
        _keys.pop(delivery_id, None)
    free = [delivery_id for delivery_id in due if _keys.get(delivery_id) not in busy]
    return _process(free, ROUND_S if wait else STARTING_S, wait=wait)


def process_delivery(delivery_id: int) -> str:
    """Do what a delivery asks for, once.  Returns one sentence: what was done, or why nothing was done."""
    with reading() as session:
        delivery = session.get(Delivery, delivery_id)
    if delivery is None:
        raise NotFound("delivery", delivery_id)
    if delivery.processed_at is not None:
        return delivery.outcome or ""
    _process([delivery_id])
    with reading() as session:
        return session.get_one(Delivery, delivery_id).outcome or ""


@dataclass(frozen=True)
class _Waiting:
    """A delivery that waits, and what it says."""

    id: int
    failures: int
    forge: ForgeKind
    event: Event


_PARSERS = {ForgeKind.GITHUB: events.parse, ForgeKind.GITLAB: gitlab.parse}
_Answer = str | Exception  # one sentence, or what went wrong
_Answers = dict[int, _Answer]  # by delivery; one that is missing was not processed


def _process(ids: Sequence[int], within_s: float = math.inf, *, wait: bool = True) -> int:
    """Process these deliveries, the repositories in the order of their oldest one.  Returns how many were answered."""
    ends = time.monotonic() + within_s
    answers, read = _Answers(), list[_Waiting]()
    for start in range(0, len(ids), _AT_ONCE):
        with reading() as session:
            rows = select(Delivery).where(Delivery.id.in_(ids[start : start + _AT_ONCE])).order_by(Delivery.id)
            for row in session.execute(rows.execution_options(populate_existing=True)).scalars():
                try:
                    parse = _PARSERS[row.forge_kind]
                    read.append(_Waiting(row.id, row.attempts, row.forge_kind, parse(row.event, row.body)))
                except Exception as error:  # what is sent here is not always what the forge documents
                    answers[row.id] = error
            session.expunge_all()  # bodies are large
    by_repository = dict[tuple[ForgeKind, str], list[_Waiting]]()
    for waiting in read:
        match waiting.event:
            case Pinged():
                answers[waiting.id] = "The webhook works."
            case Ignored(why):
                answers[waiting.id] = f"Nothing to do: {why}."
            case InstallationChanged():
                answers[waiting.id] = _answer_of(compose.changed, waiting.event)
            case Commented(line=line) if not slash_commands.is_command(line):
                answers[waiting.id] = "Nothing to do: the comment does not begin with a command."
            case Pushed() | PullChanged() | GroupChanged() | Commented() | CheckRequested():
                repository = (waiting.forge, waiting.event.repository.lower())
                by_repository.setdefault(repository, []).append(waiting)
            case _:
                assert_never(waiting.event)
    _store(answers)
    begun = list[Future[int]]()
    for repository, of_one in by_repository.items():
        if (begins := _repositories.begin(repository, partial(_answer_all, of_one), ends)) is not None:
            begins.add_done_callback(_wake_control)
            begun.append(begins)
        _keys.update((waiting.id, repository) for waiting in of_one)
    return len(answers) + (sum_until(ends, begun) if wait else 0)


def _answer_all(waiting: Sequence[_Waiting]) -> int:
    """Answer the deliveries of one repository.  Returns how many were answered."""
    try:
        answers = _for_each_target(waiting)
        _store(answers)
    except Exception:
        log.exception("deliveries could not be answered", repository=_repository_of(waiting[0]))
        raise
    return len(answers)


def _wake_control(ended: Future[int]) -> None:
    """Let it begin what came for the repository meanwhile.  After a failure it waits for the next poll."""
    if ended.exception() is None:
        send(CONTROL)


def _answer_of(change: Callable[[InstallationChanged], str], event: InstallationChanged) -> _Answer:
    try:
        return change(event)
    except Exception as error:
        log.exception("an installation could not be recorded", account=event.account)
        return error


def _store(answers: _Answers) -> None:
    """Store the outcomes of deliveries, and which of them are done."""
    ids = list(answers)
    for start in range(0, len(ids), _STORED_AT_ONCE):
        some = ids[start : start + _STORED_AT_ONCE]
        with transaction() as session:
            failures = dict(session.execute(select(Delivery.id, Delivery.attempts).where(Delivery.id.in_(some))).all())
            now, rows = clock(session), list[dict[str, Any]]()
            for delivery_id, attempts in failures.items():
                outcome, attempts, done = _outcome(answers[delivery_id], attempts)
                processed_at = now if done else None
                rows.append({"id": delivery_id, "attempts": attempts, "outcome": outcome, "processed_at": processed_at})
                log.info("delivery", delivery=delivery_id, outcome=outcome, processed=done)
            if rows:
                session.execute(update(Delivery), rows)
                wake(session, CONTROL)  # which reports what was queued


def _outcome(answer: _Answer, attempts: int) -> tuple[str, int, bool]:
    """The sentence for a delivery, its number of failures, and whether it is done."""
    match answer:
        case str():
            return answer, attempts, True
        case SourceFailed():
            attempts = attempts + 1 if answer.passing else GIVEN_UP
        case ServiceError():
            attempts = GIVEN_UP
        case _:  # one bad delivery must not keep the others waiting
            attempts += 1
            return f"internal error: {type(answer).__name__}: {answer}", attempts, attempts >= GIVEN_UP
    return str(answer), attempts, attempts >= GIVEN_UP


def poll_due(*, wait: bool = True) -> int:
    """Poll the targets that are due side by side, those that have waited longest first.  Returns how many were polled.

    Without `wait` this returns once they have begun; what cannot begin in a while waits for the next call.
    """
    with reading() as session:
        polled = (_is_poll_due(clock(session)), Target.paused_at.is_(None))
        due = session.execute(select(Target.id).where(*polled).order_by(Target.poll_at)).scalars().all()
    return _polls.each(due, _claim_and_poll, wait=wait)


def _claim_and_poll(target_id: int) -> int:
    """Poll a target unless another process does so.  Returns how many were polled."""
    try:
        if not _claimed(target_id):
            return 0
        poll(target_id)
    except Exception:
        log.exception("a target could not be polled", target=target_id)
        raise
    return 1


def _claimed(target_id: int) -> bool:
    with transaction() as session:
        now = clock(session)
        values = {"poll_at": now + _POLLING_S}
        claim = update(Target).where(Target.id == target_id, _is_poll_due(now)).values(values)
        claim = claim.returning(Target.id).execution_options(synchronize_session=False)
        return session.execute(claim).first() is not None


def _renewing(target_id: int) -> Callable[[], None]:
    """A function that keeps the claim on a target while its source is fetched; a mirror's first fetch takes minutes."""
    renewed = time.monotonic()

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed < _POLLING_S / 3:
            return
        renewed = time.monotonic()
        with suppress(SQLAlchemyError), transaction() as session:  # an outage must not end the fetch
            values = {"poll_at": database_now(session) + _POLLING_S}
            session.execute(update(Target).where(Target.id == target_id).values(values))

    return renew


def _is_poll_due(now: float) -> ColumnElement[bool]:
    usual_s = max(_POLLING_S, settings().remote_poll_s)
    longest_s = case((Target.poll_failures > 0, max(usual_s, _MAX_POLL_S)), else_=usual_s)
    due: ColumnElement[bool] = is_due(Target.poll_at, now, longest_s)
    return or_(Target.poll_at <= now, Target.poll_at > now + usual_s) & due  # as an index has it


def poll(target_id: int, first: int = 1) -> bool:
    """Record new revisions of the mainline; on the first poll of a target only the newest `first`.

    A remote that fails is polled with exponential back-off, at least hourly, and the target keeps the error.
    """
    target = _target(Target.id == target_id)
    try:
        source = open_source(target, _renewing(target_id))
        source.refresh()
        answer = _scan_mainline(target, Origin.POLL, first=first, source=source)
        failed = None
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("poll failed", target=target.name)
        failed = str(error) if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
        answer = failed
    log.debug("polled", target=target.name, said=answer)
    with transaction() as session:
        row = session.get_one(Target, target_id)
        failures_before = row.poll_failures
        row.poll_failures = row.poll_failures + 1 if failed else 0
        row.poll_error = failed
        wait = min(_MAX_POLL_S, settings().remote_poll_s * 2 ** min(row.poll_failures, 20))
        now = clock(session)
        row.poll_at = now + wait
        happenings.target_polled(session, row, failures_before, now)
    return failed is None


def backfill_last(target_id: int, n: int) -> int:
    """Measure the newest `n` revisions of the mainline, at low priority.  Returns how many runs were queued."""
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    commits = source.mainline(target.branch, n)
    return _record(target, source, Push(Origin.BACKFILL, tuple(commits), mainline=True)).queued if commits else 0


def backfill(name: str, base: str, head: str, sample: int | None = None) -> int:
    """Measure what `head` adds to `base`, at low priority.  Returns how many runs were queued.

    Of a `sample` only so many revisions are measured, each against the one before it: between two that differ, a
    bisection begins automatically.
    """
    target = _named(name)
    source = open_source(target)
    source.refresh()
    first, last = source.resolve(base), source.resolve(head)
    commits = source.between(first, last)
    if not commits:
        raise BadInput(f"No commits in {base}..{head} of {name}; put the older revision first.")
    [tip] = source.mainline(target.branch, 1)
    line = [commit.sha for commit in source.between(first, tip.sha)]
    mainline = last in line
    later = line[line.index(last) + 1 :] if mainline else []
    trusted = mainline or source.is_on_branch(last)
    sampled = _sample([first, *(commit.sha for commit in commits)], sample) if sample and sample < len(commits) else {}
    push = Push(
        Origin.BACKFILL,
        tuple(commits),
        mainline=mainline,
        later=tuple(later),
        trusted=trusted,
        baselines=sampled,
    )
    return _record(target, source, push, asked_for=f"{base}..{head}").queued


def _sample(line: Sequence[str], count: int) -> dict[str, str]:
    """`count` revisions at equal distances, the last one of the line among them, each with the one before it."""
    places = [round(number * (len(line) - 1) / count) for number in range(count + 1)]
    return {line[place]: line[before] for before, place in pairwise(places)}


@dataclass(frozen=True)
class RequestedRuns:
    """The runs of a revision that a person requested, one for each device, and those of them that are new."""

    ids: tuple[int, ...]
    created: tuple[int, ...]


def run_revision(
    name: str, revision: str, *, device: str | None = None, suite: str | None = None, again: bool = False
) -> list[int]:
    """Queue this revision: the ids of its runs (see `request_runs`)."""
    return list(request_runs(name, revision, device=device, suite=suite, again=again).ids)


def request_runs(
    name: str, revision: str, *, device: str | None = None, suite: str | None = None, again: bool = False
) -> RequestedRuns:
    """Queue this revision, for one device or for all of the recipe.  Requesting it twice queues it once.

    It is compared with where it left the mainline; a revision of the mainline, with its parent; the head of an open
    pull request, with what that is compared with, which may be a release branch.
    A commit that is on no branch of the repository may be a stranger's: its runs are held, whoever names it.
    """
    target = _named(name)
    source = open_source(target)
    source.refresh()
    commit = source.describe(source.resolve(revision))
    trusted = source.is_on_branch(commit.sha)
    with reading() as session:
        of_pull = pulls.baseline_of_head(session, target, commit.sha)
    baseline = of_pull or pulls.baseline_of(target, source, commit)
    recipe = branch_recipe(target, source)
    with transaction() as session:
        target = adopted(session, target, recipe)
        devices = [device] if device else revisions.devices_of(session, target, commit.sha)
        newest = session.scalar(select(func.max(Run.id))) or 0  # those of this target: nobody else adds any now
        runs = [
            run_wanted(
                session, target, commit, device=device, trusted=trusted, baseline=baseline, suite=suite, again=again
            )
            for device in devices
        ]
        for run in runs:
            details = {"revision": commit.sha, "device": run.device, "suite": run.suite, "again": again}
            audit.record(session, "run.start", target=target.name, of=f"run {run.id}", details=details)
        ids = tuple(run.id for run in runs)
        return RequestedRuns(ids, tuple(run_id for run_id in ids if run_id > newest))


def pull_appeared(target_id: int, number: int, *, vouched: bool = False) -> str:
    """Record the head that a pull request has in its repository; what was done, as a sentence.

    It is held for approval unless a branch of the repository has it, or the caller has `vouched` for it.
    """
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    with transaction() as session:
        revisions.locked_pull(session, target.id, number).closed_at = None
    outcome = pulls.record_heads(target, source, {number: pulls.Wanted(number, vouched=vouched)})[number]
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


def _for_each_target(waiting: Sequence[_Waiting]) -> _Answers:
    """Answer the deliveries of one repository by all of its targets; an error of one does not stop the others."""
    kind, repository = waiting[0].forge, _repository_of(waiting[0])
    with reading() as session:
        watching = targets.targets_on(session, kind, repository)
    if not watching:
        hint = (
            f"Add one with `kernelwatch target add NAME {clients.addresses()[kind]}/{repository} --forge {repository} "
            "--recipe FILE`, and redeliver."
        )
        return {delivery.id: NotFound("target", f"watches {repository}", hint) for delivery in waiting}
    commits = [delivery for delivery in waiting if isinstance(delivery.event, Pushed | PullChanged)]
    by_target = [(target.name, _for_target(target, commits)) for target in watching if commits]
    done = {
        delivery.id: _together([(name, answers[delivery.id]) for name, answers in by_target])
        for delivery in commits
        if all(delivery.id in answers for _, answers in by_target)
    }
    for delivery in waiting:  # after the commits that they may be about
        if isinstance(delivery.event, GroupChanged):
            done[delivery.id] = _together(
                [(target.name, _for_group(target, delivery.event, delivery.id)) for target in watching]
            )
        if isinstance(delivery.event, Commented | CheckRequested):
            done[delivery.id] = _carried_out(watching, delivery.event, delivery)
    return done


def _for_group(target: Target, event: GroupChanged, delivery_id: int) -> _Answer:
    if target.paused_at is not None:
        return _PAUSED
    try:
        source = open_source(target)
        source.refresh()
        return pulls.carry_out(target, source, event, delivery_id)
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("a merge queue could not be answered", target=target.name)
        return error


def _carried_out(watching: Sequence[Target], event: Commented | CheckRequested, waiting: _Waiting) -> _Answer:
    try:
        if isinstance(event, CheckRequested):
            return check_actions.carry_out(watching, event, waiting.id)
        return comments.carry_out(watching, event, waiting.id, last=waiting.failures + 1 >= GIVEN_UP)
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("a command failed", delivery=waiting.id)
        return error


def _repository_of(waiting: _Waiting) -> str:
    if isinstance(waiting.event, Pushed | PullChanged | GroupChanged | Commented | CheckRequested):
        return waiting.event.repository
    raise TypeError(f"{waiting.event} is of no repository")


def _together(answers: Sequence[tuple[str, _Answer]]) -> _Answer:
    """One answer from those of several targets.  What may pass is tried again: repeating the rest is harmless."""
    for _, answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, ServiceError):
            return answer
    words = " ".join(f"{name}: {answer}" for name, answer in answers)
    if passing := [
        f"{name}: {answer}" for name, answer in answers if isinstance(answer, SourceFailed) and answer.passing
    ]:
        return SourceFailed(" ".join(passing))
    return BadInput(words) if any(isinstance(answer, ServiceError) for _, answer in answers) else words


def _for_target(target: Target, waiting: Sequence[_Waiting]) -> _Answers:
    """Answer all deliveries for one target with one fetch of its branches, and one of the heads that are wanted."""
    if target.paused_at is not None:
        return {delivery.id: _PAUSED for delivery in waiting}
    answers, wanted = _Answers(), dict[int, pulls.Wanted]()
    pushes = [(delivery.id, delivery.event) for delivery in waiting if isinstance(delivery.event, Pushed)]
    changes = [
        (delivery.id, delivery.failures, _with_merge(delivery.forge, delivery.event))
        for delivery in waiting
        if isinstance(delivery.event, PullChanged)
    ]
    try:
        if changes:
            with transaction() as session:
                said, wanted = pulls.sort_out(session, session.get_one(Target, target.id), changes)
            answers |= said
        if pushes or wanted:
            source = open_source(target)
            source.refresh()
            if pushes:
                answers |= _pushed(target, source, pushes)
            for number, answer in (pulls.record_heads(target, source, wanted) if wanted else {}).items():
                answers |= dict.fromkeys(wanted[number].deliveries, answer)
            return answers
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("deliveries failed", target=target.name)
        return {delivery.id: error for delivery in waiting} | answers
    return answers


def _with_merge(kind: ForgeKind, event: PullChanged) -> PullChanged:
    """A change of a pull request, with the commit that it was merged as where only the forge can name it."""
    if not event.merge_unnamed:
        return event
    try:
        merged_as = clients.connect(kind).pull(event.repository, event.number).merged_as
    except ForgeFailed as failure:
        log.warning("the commit of a merge is unknown", pull=event.number, error=str(failure))
        merged_as = None
    return replace(event, merged_as=merged_as or event.head)  # a fast-forward, most likely


def _pushed(target: Target, source: Source, pushes: Sequence[tuple[int, Pushed]]) -> _Answers:
    """Answer pushes.  Whatever they say, the mainline is recorded as the source has it now."""
    answers = _Answers()
    try:
        mainline = target.branch or source.default_branch()
        moved = list[tuple[int, Pushed]]()
        for delivery_id, event in pushes:
            if event.branch != mainline:
                answers[delivery_id] = (
                    f"{event.branch} is not the mainline ({mainline}); "
                    f"its {pull_noun(target.forge_kind)} is what is measured."
                )
            elif event.deleted:
                answers[delivery_id] = f"{event.branch} was deleted; there is nothing to measure."
            else:
                moved.append((delivery_id, event))
        if moved:
            (_, first), (newest, _) = moved[0], moved[-1]
            answer = _scan_mainline(target, Origin.PUSH, since=first.before, delivery_id=newest, source=source)
            answers |= {delivery_id: answer for delivery_id, _ in moved}
    except ServiceError as failure:  # pull requests go on
        answers = {delivery_id: answers.get(delivery_id, failure) for delivery_id, _ in pushes}
    return answers


def _scan_mainline(
    target: Target,
    origin: Origin,
    *,
    first: int = 1,
    since: str | None = None,
    delivery_id: int | None = None,
    source: Source | None = None,
) -> str:
    """Record what the mainline of the source has now, so that the next delivery makes up for a lost one."""
    if source is None:
        source = open_source(target)
        source.refresh()
    with reading() as session:
        newest = revisions.newest_of(session, target)
    commits, gone = _news(target, source, newest, first, since)
    if not commits and not gone:
        return "nothing new on the mainline."
    push = Push(origin, tuple(commits), mainline=True, gone=tuple(gone), delivery_id=delivery_id)
    result = _record(target, source, push)
    if gone:
        count = len(gone)
        return f"the mainline was rewritten, {count} revision{'s' if count > 1 else ''} left it; {result}."
    return f"{result}."


def _news(
    target: Target, source: Source, newest: str | None, first: int, since: str | None
) -> tuple[Sequence[Found], Sequence[str]]:
    """The revisions that are new on the mainline, and the known ones that left it."""
    [tip] = source.mainline(target.branch, 1)
    if newest is None:
        if since is not None and _leads_to(source, since, tip.sha):
            return source.between(since, tip.sha), ()
        return source.mainline(target.branch, first), ()
    if target.kind is TargetKind.PACKAGE:  # a late release of an older line is placed before the newest
        mainline, line = _mainline(target), source.mainline(target.branch, _DEEPEST)
        start = next((place for place, commit in enumerate(line) if commit.sha in mainline), 0)
        return [commit for commit in line[start:] if commit.sha not in mainline], ()
    if tip.sha == newest:
        return (), ()
    # That the newest is an ancestor is not enough.  Of a merge into a developer's branch that is pushed as the mainline
    # the first parent is his own commit, and what the mainline had until then is a side branch.
    if _leads_to(source, newest, tip.sha):
        new = source.between(newest, tip.sha)
        if new and new[0].parent == newest:
            return new, ()
    mainline, line = _mainline(target), source.mainline(target.branch, _DEEPEST)
    places = {sha: place for place, sha in enumerate(mainline)}
    kept = [place for place, commit in enumerate(line) if commit.sha in places]
    if not kept:
        return line[-first:], mainline
    return line[kept[-1] + 1 :], mainline[places[line[kept[-1]].sha] + 1 :]


def _mainline(target: Target) -> Sequence[str]:
    with reading() as session:
        return revisions.mainline_of(session, target)


def _leads_to(source: Source, old: str, new: str) -> bool:
    """Whether `old` is an ancestor of `new`.  A forced push may have removed `old`."""
    try:
        return source.merge_base(old, new) == old
    except NotFound:
        return False


def _record(target: Target, source: Source, push: Push, *, asked_for: str | None = None) -> PushResult:
    """Store commits of a mainline, with the recipe that its branch has.  Every push and backfill comes through here.

    `asked_for`: the range of revisions that a person requested, as text.
    """
    recipe = branch_recipe(target, source)
    with transaction() as session:
        result = record_push(session, adopted(session, target, recipe, rewritten=bool(push.gone)), push)
        if asked_for is not None:
            details = {"revisions": asked_for, "queued": result.queued}
            audit.record(session, "target.backfill", target=target.name, of=f"target {target.name}", details=details)
        return result


def _target(which: Any) -> Target:
    with reading() as session:
        return session.execute(with_recipe().where(which)).scalar_one()


def _named(name: str) -> Target:
    with reading() as session:
        return targets.target_named(session, name)
