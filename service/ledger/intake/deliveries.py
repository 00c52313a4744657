"""Find new revisions: by a delivery, a poll, or a person.  No transaction is open while a source answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

import structlog
from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock, database_now, reading, transaction, wake
from service.db.models import Delivery, PushRow, Target
from service.domain.policy import recipes
from service.domain.states import Origin, TargetKind
from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.forge.events import Ignored, Pinged, PullChanged, Pushed, parse
from service.ledger.intake import targets
from service.ledger.locking import insert_if_absent, lock
from service.ledger.runs import revisions
from service.ledger.runs.revisions import Push, PushResult, approve, record_push, run_wanted
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
    "pull_closed",
    "run_revision",
    "store_delivery",
]

log = structlog.get_logger()

CONTROL = "control"  # the queue of the control workers
RECIPE = "kernelwatch.toml"  # its name in a repository that brings its own
GIVEN_UP = 5  # failures after which a delivery waits for a person, who may redeliver it
_RETRY_S = (0, 10, 60, 300, 1200)  # after receipt, by the number of failures
_MAX_POLL_S = 3600.0
_POLLING_S = 600.0  # while a worker polls a target, no other does so for this long
_PAUSED = "the target is paused; redeliver this after `kernelwatch target resume`."
_DEEPEST = 1000  # revisions read back to find where a rewritten mainline left the known one


def store_delivery(session: Session, guid: str, event: str, body: bytes) -> tuple[int, bool]:
    """Store a delivery for later: its id, and whether it is new.  A redelivery of one that was given up is retried.

    A new one takes one statement, because each further statement waits for its turn on a busy machine.
    """
    values = {"guid": guid, "event": event, "body": body, "received_at": database_now(session)}
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


def process_due() -> int:
    """Process the deliveries that are due, in the order of receipt.  Returns how many there were."""
    waiting = select(Delivery.id, Delivery.received_at, Delivery.attempts).where(Delivery.processed_at.is_(None))
    with reading() as session:
        now = clock(session)
        rows = session.execute(waiting.order_by(Delivery.id)).all()
    due = [row.id for row in rows if row.received_at + _RETRY_S[min(row.attempts, GIVEN_UP - 1)] <= now]
    for delivery_id in due:
        process_delivery(delivery_id)
    return len(due)


def process_delivery(delivery_id: int) -> str:
    """Do what a delivery asks for, once.  Returns one sentence: what was done, or why nothing was done."""
    with reading() as session:
        delivery = session.get(Delivery, delivery_id)
    if delivery is None:
        raise NotFound("delivery", delivery_id)
    if delivery.processed_at is not None:
        return delivery.outcome or ""
    try:
        outcome, failures, done = _act_on(delivery), delivery.attempts, True
    except SourceFailed as failure:
        failures = delivery.attempts + 1 if failure.passing else GIVEN_UP
        outcome, done = str(failure), failures >= GIVEN_UP
    except ServiceError as refusal:
        outcome, failures, done = str(refusal), GIVEN_UP, True
    except Exception as error:  # one bad delivery must not keep the others waiting
        log.exception("delivery failed", delivery=delivery_id)
        failures = delivery.attempts + 1
        outcome, done = f"internal error: {type(error).__name__}: {error}", failures >= GIVEN_UP
    with transaction() as session:
        row = session.get_one(Delivery, delivery_id)
        row.outcome, row.attempts = outcome, failures
        row.processed_at = clock(session) if done else None
    log.info("delivery", delivery=delivery_id, outcome=outcome, processed=done)
    return outcome


def poll_due(first: int = 1) -> int:
    """Poll the targets that are due.  Returns how many there were."""
    with reading() as session:
        polled = (Target.poll_at <= database_now(session), Target.paused_at.is_(None))
        due = session.execute(select(Target.id).where(*polled)).scalars().all()
    claimed = 0
    for target_id in due:
        if _claimed(target_id):
            poll(target_id, first=first)
            claimed += 1
    return claimed


def _claimed(target_id: int) -> bool:
    with transaction() as session:
        now = database_now(session)
        claim = update(Target).where(Target.id == target_id, Target.poll_at <= now).values(poll_at=now + _POLLING_S)
        claim = claim.returning(Target.id).execution_options(synchronize_session=False)
        return session.execute(claim).first() is not None


def poll(target_id: int, first: int = 1) -> bool:
    """Record new revisions of the mainline; on the first poll of a target only the newest `first`.

    A remote that fails is polled with exponential back-off, at least hourly, and the target keeps the error.
    """
    target = _target(Target.id == target_id)
    try:
        said = _scan_mainline(target, Origin.POLL, first=first)
        failed = None
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("poll failed", target=target.name)
        failed = str(error) if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
        said = failed
    log.debug("polled", target=target.name, said=said)
    with transaction() as session:
        row = session.get_one(Target, target_id)
        row.poll_failures = row.poll_failures + 1 if failed else 0
        row.poll_error = failed
        wait = min(_MAX_POLL_S, settings().remote_poll_s * 2 ** min(row.poll_failures, 20))
        row.poll_at = clock(session) + wait
    return failed is None


def backfill_last(target_id: int, n: int) -> int:
    """Measure the newest `n` revisions of the mainline, at low priority.  Returns how many runs were queued."""
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    found = source.mainline(target.branch, n)
    return _record(target, source, Push(Origin.BACKFILL, tuple(found), mainline=True)).queued if found else 0


def backfill(name: str, base: str, head: str) -> int:
    """Measure what `head` adds to `base`, at low priority.  Returns how many runs were queued."""
    target = _named(name)
    source = open_source(target)
    source.refresh()
    first, last = source.resolve(base), source.resolve(head)
    found = source.between(first, last)
    if not found:
        raise BadInput(f"No commits in {base}..{head} of {name}; put the older revision first.")
    [tip] = source.mainline(target.branch, 1)
    line = [one.sha for one in source.between(first, tip.sha)]
    mainline = last in line
    later = line[line.index(last) + 1 :] if mainline else []
    push = Push(Origin.BACKFILL, tuple(found), mainline=mainline, later=tuple(later))
    return _record(target, source, push).queued


def run_revision(
    name: str, revision: str, *, device: str | None = None, suite: str | None = None, again: bool = False
) -> list[int]:
    """Queue this revision: the ids of its runs, one for each device of the recipe."""
    target = _named(name)
    source = open_source(target)
    source.refresh()
    found = source.describe(source.resolve(revision))
    recipe = branch_recipe(target, source)
    with transaction() as session:
        target = _adopted(session, target, recipe)
        devices = [device] if device else revisions.recipe_of(session, target)[1].devices
        return [run_wanted(session, target, found, device=one, suite=suite, again=again).id for one in devices]


def pull_appeared(
    target_id: int,
    number: int,
    *,
    head: str | None = None,
    base: str | None = None,
    fork: bool = False,
    delivery_id: int | None = None,
) -> str:
    """Record the new head of a pull request, by default that of its repository; what was done, as a sentence."""
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    head = _resolved(source, head) if head else source.resolve(f"refs/pull/{number}/head")
    base = source.merge_base(_base(target, source, base), head)
    found = source.between(base, head)
    if not found:
        return f"pull request {number} has no commits that are not in its base."
    recipe = branch_recipe(target, source)
    with transaction() as session:
        target = _adopted(session, target, recipe)
        lock(session, target.id)
        if delivery_id is not None and _overtaken(session, target, number, delivery_id):
            return f"a later delivery has updated pull request {number} already."
        push = Push(
            Origin.PULL_REQUEST,
            tuple(found),
            pull=number,
            baseline=base,
            trusted=not fork,
            delivery_id=delivery_id,
        )
        return f"pull request {number}, {record_push(session, target, push)}."


def pull_closed(target_id: int, number: int) -> str:
    """Pull request `number` was closed or merged."""
    with transaction() as session:
        cancelled = revisions.pull_closed(session, session.get_one(Target, target_id), number)
    return f"pull request {number} was closed; {cancelled} of its runs were waiting, and are cancelled."


def _act_on(delivery: Delivery) -> str:
    event = parse(delivery.event, delivery.body)
    match event:
        case Pinged():
            return "The webhook works."
        case Ignored(why):
            return f"Nothing to do: {why}."
        case Pushed():
            return _for_each_target(event.repository, lambda target: _pushed(target, event, delivery.id))
        case PullChanged(action="closed"):
            return _for_each_target(event.repository, lambda target: pull_closed(target.id, event.number))
        case PullChanged():
            return _for_each_target(event.repository, lambda target: _pull_changed(target, event, delivery.id))
        case _:
            assert_never(event)


def _for_each_target(repository: str, act: Callable[[Target], str]) -> str:
    """Act on every target of the repository; an error of one does not stop the others."""
    with reading() as session:
        watching = targets.targets_on(session, repository)
    if not watching:
        raise NotFound(
            "target",
            f"watches {repository}",
            f"Add one with `kernelwatch target add NAME https://github.com/{repository} --forge {repository} "
            "--recipe FILE`, and redeliver.",
        )
    said, passing, refused = list[str](), list[str](), False
    for target in watching:
        try:
            said.append(f"{target.name}: {act(target)}")
        except ServiceError as error:
            said.append(f"{target.name}: {error}")
            if isinstance(error, SourceFailed) and error.passing:
                passing.append(said[-1])
            refused = True
    if passing:  # repeating what succeeded is harmless
        raise SourceFailed(" ".join(passing))
    if refused:
        raise BadInput(" ".join(said))
    return " ".join(said)


def _pushed(target: Target, event: Pushed, delivery_id: int) -> str:
    if target.paused_at is not None:
        return _PAUSED
    source = open_source(target)
    source.refresh()
    mainline = target.branch or source.default_branch()
    if event.branch != mainline:
        return f"{event.branch} is not the mainline ({mainline}); its pull request is what is measured."
    if event.deleted:
        return f"{event.branch} was deleted; there is nothing to measure."
    return _scan_mainline(target, Origin.PUSH, since=event.before, delivery_id=delivery_id, source=source)


def _pull_changed(target: Target, event: PullChanged, delivery_id: int) -> str:
    if target.paused_at is not None:
        return _PAUSED
    return pull_appeared(
        target.id, event.number, head=event.head, base=event.base_sha, fork=event.fork, delivery_id=delivery_id
    )


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
        known = revisions.mainline_of(session, target)
    found, gone = _news(target, source, known, first, since)
    if not found and not gone:
        return "nothing new on the mainline."
    push = Push(origin, tuple(found), mainline=True, gone=tuple(gone), delivery_id=delivery_id)
    result = _record(target, source, push)
    if gone:
        count = len(gone)
        return f"the mainline was rewritten, {count} revision{'s' if count > 1 else ''} left it; {result}."
    return f"{result}."


def _news(
    target: Target, source: Source, known: Sequence[str], first: int, since: str | None
) -> tuple[Sequence[Found], Sequence[str]]:
    """The revisions that are new on the mainline, and the known ones that left it."""
    [tip] = source.mainline(target.branch, 1)
    if not known:
        if since is not None and _leads_to(source, since, tip.sha):
            return source.between(since, tip.sha), ()
        return source.mainline(target.branch, first), ()
    if target.kind is TargetKind.PACKAGE:  # a late release of an older line is placed before the newest
        line = source.mainline(target.branch, _DEEPEST)
        start = next((place for place, one in enumerate(line) if one.sha in known), 0)
        return [one for one in line[start:] if one.sha not in known], ()
    if tip.sha == known[-1]:
        return (), ()
    if _leads_to(source, known[-1], tip.sha):
        return source.between(known[-1], tip.sha), ()
    line = source.mainline(target.branch, _DEEPEST)
    places = {sha: place for place, sha in enumerate(known)}
    kept = [place for place, one in enumerate(line) if one.sha in places]
    if not kept:
        return line[-first:], known
    return line[kept[-1] + 1 :], known[places[line[kept[-1]].sha] + 1 :]


def _leads_to(source: Source, old: str, new: str) -> bool:
    """Whether `old` is an ancestor of `new`.  A forced push may have removed `old`."""
    try:
        return source.merge_base(old, new) == old
    except NotFound:
        return False


def _record(target: Target, source: Source, push: Push) -> PushResult:
    """The one way in for what a mainline has: with the recipe that its branch brings."""
    recipe = branch_recipe(target, source)
    with transaction() as session:
        return record_push(session, _adopted(session, target, recipe), push)


def _resolved(source: Source, sha: str) -> str:
    """The sha of a commit.  A forge announces it a moment before it can be fetched: then the failure is passing."""
    try:
        return source.resolve(sha)
    except NotFound as missing:
        raise SourceFailed(f"{missing} The forge may not serve it yet.") from None


def _base(target: Target, source: Source, base: str | None) -> str:
    """The base that the forge named, or the newest revision of the mainline where that is gone or was not named."""
    if base is not None:
        try:
            return source.resolve(base)
        except NotFound:
            pass
    [tip] = source.mainline(target.branch, 1)
    return tip.sha


def _overtaken(session: Session, target: Target, pull: int, delivery_id: int) -> bool:
    """Was a later delivery processed already?  Then the head of this one is outdated."""
    later = (PushRow.target_id == target.id, PushRow.pull == pull, PushRow.delivery_id > delivery_id)
    return session.execute(select(PushRow.id).where(*later).limit(1)).first() is not None


def branch_recipe(target: Target, source: Source) -> tuple[str, Mapping[str, str]] | None:
    """The recipe at the head of the mainline, with its adapters; None where the target brings none itself."""
    if not target.recipe_from_branch:
        return None
    [tip] = source.mainline(target.branch, 1)
    text = _text(source, tip.sha, RECIPE)
    if text is None:
        if target.recipe_id is not None:
            return None
        raise BadInput(f"{target.location} has no {RECIPE} at {tip.sha[:10]}; add one, or register a recipe.")
    found = {name: _text(source, tip.sha, name) for name in recipes.parse(text).adapters}
    return text, {name: content for name, content in found.items() if content is not None}


def _text(source: Source, sha: str, path: str) -> str | None:
    content = source.read(sha, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path} at {sha[:10]} is not text in UTF-8.") from None


def _adopted(session: Session, target: Target, recipe: tuple[str, Mapping[str, str]] | None) -> Target:
    """The target in this session, with the recipe that its branch brought."""
    row = session.execute(_whole(Target.id == target.id)).scalar_one()
    if recipe is not None:
        targets.adopt_recipe(session, row, *recipe)
    return row


def _target(which: Any) -> Target:
    with reading() as session:
        return session.execute(_whole(which)).scalar_one()


def _named(name: str) -> Target:
    with reading() as session:
        return targets.target_named(session, name)


def _whole(which: Any) -> Select[Target]:
    return select(Target).where(which).options(selectinload(Target.recipe))
