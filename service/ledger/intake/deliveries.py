"""How revisions come to be known: by a delivery, a poll, a person.  Sources are asked with no transaction open."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import structlog
from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock, database_now, reading, transaction, wake
from service.db.models import Delivery, Push, Target
from service.domain.policy import recipes
from service.domain.states import Origin, TargetKind
from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.forge.events import Ignored, Pinged, PullChanged, Pushed, parse
from service.ledger.intake import targets
from service.ledger.locking import inserted, lock
from service.ledger.runs import revisions
from service.ledger.runs.revisions import Appeared, approve, revisions_appeared, run_wanted
from service.settings import settings
from service.sources import open_source
from service.sources.source import Found, Source

__all__ = [
    "Appeared",
    "approve",
    "backfill",
    "backfill_last",
    "poll",
    "poll_due",
    "process_due",
    "pull_appeared",
    "pull_closed",
    "revisions_appeared",
    "run_revision",
    "run_wanted",
    "store_delivery",
    "understand",
]

log = structlog.get_logger()

CONTROL = "control"  # the queue of those who understand deliveries
RECIPE = "kernelwatch.toml"  # its name in a repository that brings its own
GIVEN_UP = 5  # failures after which a delivery waits for a person, who may redeliver it
_RETRY_S = (0, 10, 60, 300, 1200)  # after receipt, by the number of failures
_MAX_POLL_S = 3600.0
_POLLING_S = 600.0  # nobody else polls a target for so long while one does
_PAUSED = "the target is paused; redeliver this after `kernelwatch target resume`."
_DEEPEST = 1000  # revisions read back to find where a rewritten mainline left the known one


def store_delivery(session: Session, guid: str, event: str, body: bytes) -> tuple[int, bool]:
    """Keep a delivery before it is processed: its id, and whether it is new.  One that was given up is tried again.

    A new one takes one statement: each more would wait for its turn on a busy machine.
    """
    values = {"guid": guid, "event": event, "body": body, "received_at": database_now(session)}
    new = inserted(session, Delivery, "guid", values)
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
    """Understand the deliveries whose time has come, in the order they came.  Returns how many were looked at."""
    waiting = select(Delivery.id, Delivery.received_at, Delivery.attempts).where(Delivery.processed_at.is_(None))
    with reading() as session:
        now = clock(session)
        rows = session.execute(waiting.order_by(Delivery.id)).all()
    due = [row.id for row in rows if row.received_at + _RETRY_S[min(row.attempts, GIVEN_UP - 1)] <= now]
    for delivery_id in due:
        understand(delivery_id)
    return len(due)


def understand(delivery_id: int) -> str:
    """Do what a delivery asks for, once.  Returns one sentence: what was done, or why nothing was."""
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
        log.exception("a delivery was not understood", delivery=delivery_id)
        failures = delivery.attempts + 1
        outcome, done = f"kernelwatch broke on it: {type(error).__name__}: {error}", failures >= GIVEN_UP
    with transaction() as session:
        row = session.get_one(Delivery, delivery_id)
        row.outcome, row.attempts = outcome, failures
        row.processed_at = clock(session) if done else None
    log.info("delivery", delivery=delivery_id, outcome=outcome, understood=done)
    return outcome


def poll_due(first: int = 1) -> int:
    """Ask the remotes of targets whose time has come for new revisions.  Returns how many were asked."""
    with reading() as session:
        polled = (Target.poll_at <= database_now(session), Target.paused_at.is_(None))
        due = session.execute(select(Target.id).where(*polled)).scalars().all()
    asked = 0
    for target_id in due:
        if _claimed(target_id):
            poll(target_id, first=first)
            asked += 1
    return asked


def _claimed(target_id: int) -> bool:
    with transaction() as session:
        now = database_now(session)
        claim = update(Target).where(Target.id == target_id, Target.poll_at <= now).values(poll_at=now + _POLLING_S)
        claim = claim.returning(Target.id).execution_options(synchronize_session=False)
        return session.execute(claim).first() is not None


def poll(target_id: int, first: int = 1) -> bool:
    """Look for new revisions of the mainline; of a target seen for the first time only the newest `first` count.

    A remote that fails is asked less and less often, at least hourly, and the target keeps the reason.
    """
    target = _target(Target.id == target_id)
    try:
        said = _look_at_mainline(target, Origin.POLL, first=first)
        failed = None
    except Exception as error:
        if not isinstance(error, ServiceError):
            log.exception("a poll broke", target=target.name)
        failed = str(error) if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
        said = failed
    log.debug("polled", target=target.name, said=said)
    with transaction() as session:
        row = session.get_one(Target, target_id)
        row.poll_failures = row.poll_failures + 1 if failed else 0
        row.poll_error = failed
        wait = min(_MAX_POLL_S, settings().poll_every_s * 2 ** min(row.poll_failures, 20))
        row.poll_at = clock(session) + wait
    return failed is None


def backfill_last(target_id: int, n: int) -> int:
    """Measure the newest `n` revisions of the mainline, at low priority.  Returns how many runs were queued."""
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    found = source.mainline(target.branch, n)
    return _appear(target, source, Origin.BACKFILL, found, mainline=True).queued if found else 0


def backfill(name: str, base: str, head: str) -> int:
    """Measure what `head` adds to `base`, at low priority.  Returns how many runs were queued."""
    target = _named(name)
    source = open_source(target)
    source.refresh()
    first, last = source.resolve(base), source.resolve(head)
    found = source.between(first, last)
    if not found:
        raise BadInput(f"{head} adds nothing to {base} in {name}: write BASE..HEAD, the older one first.")
    [tip] = source.mainline(target.branch, 1)
    line = [one.sha for one in source.between(first, tip.sha)]
    mainline = last in line
    later = line[line.index(last) + 1 :] if mainline else []
    return _appear(target, source, Origin.BACKFILL, found, mainline=mainline, later=later).queued


def run_revision(
    name: str, revision: str, *, device: str | None = None, suite: str | None = None, again: bool = False
) -> list[int]:
    """Somebody wants this revision measured: the ids of its runs, one for each device of the recipe."""
    target = _named(name)
    source = open_source(target)
    source.refresh()
    found = source.describe(source.resolve(revision))
    told = recipe_told(target, source)
    with transaction() as session:
        target = _adopted(session, target, told)
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
    """Pull request `number` has a new head (by default the one its repository tells); what was done, as a sentence."""
    target = _target(Target.id == target_id)
    source = open_source(target)
    source.refresh()
    head = _there(source, head) if head else source.resolve(f"refs/pull/{number}/head")
    base = source.merge_base(_base(target, source, base), head)
    found = source.between(base, head)
    if not found:
        return f"pull request {number} adds nothing to its base."
    told = recipe_told(target, source)
    with transaction() as session:
        target = _adopted(session, target, told)
        lock(session, target.id)
        if delivery_id is not None and _overtaken(session, target, number, delivery_id):
            return f"a later delivery has moved pull request {number} on already."
        appeared = revisions_appeared(
            session,
            target,
            Origin.PULL_REQUEST,
            found,
            head,
            pull=number,
            baseline=base,
            trusted=not fork,
            delivery_id=delivery_id,
        )
    return f"pull request {number}, {appeared}."


def pull_closed(target_id: int, number: int) -> str:
    """Pull request `number` was closed or merged."""
    with transaction() as session:
        cancelled = revisions.pull_closed(session, session.get_one(Target, target_id), number)
    return f"pull request {number} was closed; {cancelled} of its runs were waiting and are cancelled."


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
    """Every target on the repository gets its turn, whatever happens to the others."""
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
    if passing:  # doing again what went well is harmless
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
    return _look_at_mainline(target, Origin.PUSH, since=event.before, delivery_id=delivery_id, source=source)


def _pull_changed(target: Target, event: PullChanged, delivery_id: int) -> str:
    if target.paused_at is not None:
        return _PAUSED
    return pull_appeared(
        target.id, event.number, head=event.head, base=event.base_sha, fork=event.fork, delivery_id=delivery_id
    )


@dataclass(frozen=True)
class News:
    """What a mainline has that was not known, and what was known that it no longer has."""

    found: tuple[Found, ...] = ()
    gone: tuple[str, ...] = ()


def _look_at_mainline(
    target: Target,
    origin: Origin,
    *,
    first: int = 1,
    since: str | None = None,
    delivery_id: int | None = None,
    source: Source | None = None,
) -> str:
    """Whoever said that something changed, the source says what: so a lost delivery is made good by the next."""
    if source is None:
        source = open_source(target)
        source.refresh()
    with reading() as session:
        known = revisions.mainline_of(session, target)
    news = _news(target, source, known, first, since)
    if not news.found and not news.gone:
        return "nothing new on the mainline."
    appeared = _appear(target, source, origin, news.found, mainline=True, gone=news.gone, delivery_id=delivery_id)
    if news.gone:
        count = len(news.gone)
        return f"the mainline was rewritten, {count} revision{'s' if count > 1 else ''} left it; {appeared}."
    return f"{appeared}."


def _news(target: Target, source: Source, known: list[str], first: int, since: str | None) -> News:
    [tip] = source.mainline(target.branch, 1)
    if not known:
        if since is not None and _leads_to(source, since, tip.sha):
            return News(tuple(source.between(since, tip.sha)))
        return News(tuple(source.mainline(target.branch, first)))
    if target.kind is TargetKind.PACKAGE:  # a late release of an older line stands before the newest
        line = source.mainline(target.branch, _DEEPEST)
        start = next((place for place, one in enumerate(line) if one.sha in known), 0)
        return News(tuple(one for one in line[start:] if one.sha not in known))
    if tip.sha == known[-1]:
        return News()
    if _leads_to(source, known[-1], tip.sha):
        return News(tuple(source.between(known[-1], tip.sha)))
    line, places = source.mainline(target.branch, _DEEPEST), {sha: place for place, sha in enumerate(known)}
    kept = [place for place, one in enumerate(line) if one.sha in places]
    if not kept:
        return News(tuple(line[-first:]), tuple(known))
    return News(tuple(line[kept[-1] + 1 :]), tuple(known[places[line[kept[-1]].sha] + 1 :]))


def _leads_to(source: Source, old: str, new: str) -> bool:
    """Is `old` an ancestor of `new`?  A commit that a forced push threw away may not be there any more."""
    try:
        return source.merge_base(old, new) == old
    except NotFound:
        return False


def _appear(
    target: Target,
    source: Source,
    origin: Origin,
    found: tuple[Found, ...] | list[Found],
    *,
    mainline: bool,
    later: Sequence[str] = (),
    gone: tuple[str, ...] = (),
    delivery_id: int | None = None,
) -> Appeared:
    told = recipe_told(target, source)
    with transaction() as session:
        target = _adopted(session, target, told)
        if gone:
            revisions.revisions_left(session, target, gone)
        head = found[-1].sha if found else revisions.mainline_of(session, target)[-1]
        return revisions_appeared(
            session, target, origin, found, head, mainline=mainline, later=later, delivery_id=delivery_id
        )


def _there(source: Source, sha: str) -> str:
    """The forge tells of a commit a moment before it hands it out."""
    try:
        return source.resolve(sha)
    except NotFound as missing:
        raise SourceFailed(f"{missing} It may only be late.") from None


def _base(target: Target, source: Source, base: str | None) -> str:
    """The base that the forge told; the mainline's newest revision when that is gone or was not told."""
    if base is not None:
        try:
            return source.resolve(base)
        except NotFound:
            pass
    [tip] = source.mainline(target.branch, 1)
    return tip.sha


def _overtaken(session: Session, target: Target, pull: int, delivery_id: int) -> bool:
    """Has a delivery that came later been understood already?  Then this one's head is an old one."""
    later = (Push.target_id == target.id, Push.pull == pull, Push.delivery_id > delivery_id)
    return session.execute(select(Push.id).where(*later).limit(1)).first() is not None


def recipe_told(target: Target, source: Source) -> tuple[str, Mapping[str, str]] | None:
    """The recipe at the head of the mainline, with its adapters, when that is where this target's recipe comes from."""
    if not target.recipe_from_branch:
        return None
    [tip] = source.mainline(target.branch, 1)
    text = _text(source, tip.sha, RECIPE)
    if text is None:
        if target.recipe_id is not None:
            return None
        raise BadInput(f"{target.location} has no {RECIPE} at {tip.sha[:10]}; add one, or register a recipe.")
    found = {name: _text(source, tip.sha, name) for name in recipes.parse(text).adapters}
    return text, {name: told for name, told in found.items() if told is not None}


def _text(source: Source, sha: str, path: str) -> str | None:
    content = source.read(sha, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path} at {sha[:10]} is not text in UTF-8.") from None


def _adopted(session: Session, target: Target, told: tuple[str, Mapping[str, str]] | None) -> Target:
    """The target in this session, with the recipe that its source told."""
    row = session.execute(_whole(Target.id == target.id)).scalar_one()
    if told is not None:
        targets.adopt_recipe(session, row, *told)
    return row


def _target(which: Any) -> Target:
    with reading() as session:
        return session.execute(_whole(which)).scalar_one()


def _named(name: str) -> Target:
    with reading() as session:
        return targets.target_named(session, name)


def _whole(which: Any) -> Select[Target]:
    return select(Target).where(which).options(selectinload(Target.recipe))
