"""Do what comments on pull requests command, once, and answer them; search the commits of a pull request.

The forge is asked, when the command is carried out, what its author may do and which commit is the head: a command
holds for that commit.  What is done and the answer are one transaction, and the answer's row says that a command was
carried out.  No transaction is open while the forge or a source answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import Delivery, OutboxMessage, Pull, PushRow, Revision, Run, Target
from service.domain.access import Actor
from service.domain.forges import pull_name
from service.domain.slash_commands import NAME, Command, CommandName, read
from service.domain.states import OPEN_STATES, ForgeKind, Purpose, RunState
from service.domain.text import DAY_S, code, escaped, one_line, short
from service.errors import BadInput, Conflict, ServiceError, SourceFailed
from service.forge import clients
from service.forge.events import Commented
from service.forge.forge import Forge, ForgeFailed, PullHead
from service.ledger.access.sign_ins import ForgePerson, who_is
from service.ledger.acting import as_actor
from service.ledger.bisections import advance
from service.ledger.bisections.steps import moved_between
from service.ledger.intake import pulls
from service.ledger.locking import lock
from service.ledger.notify import outbox
from service.ledger.regressions import decisions
from service.ledger.runs import queue, revisions
from service.ledger.runs.queue import NO_PLACE, places
from service.reports import answers
from service.reports.answers import Reaction, Reply
from service.reports.payloads import CommentPayload, ReactionPayload
from service.settings import settings
from service.sources import open_source


def start(target: Target, run: Run, who: str) -> str:
    """Bisect between the base and the commit of a run, for the cases that it found slower; a line about the search.

    An open bisection of the same is continued.  Raises Conflict where there is nothing to search, and what
    `advance.search` raises.
    """
    with reading() as session:
        sha, good = session.get_one(Revision, run.revision_id).sha, run.baseline
        slower = good and moved_between(session, target, run.device, good, sha)
        parent = session.get_one(Revision, run.revision_id).parent
    if run.state is not RunState.DONE:
        raise Conflict(f"Run {run.id} on {run.device} is {run.state}; bisect when it is done.")
    if not good or not slower:
        raise Conflict(f"Run {run.id} on {run.device} found no case slower than its base; there is nothing to search.")
    if parent == good:
        raise Conflict(f"{short(sha)} is the only commit after its base {short(good)}; there is nothing to search.")
    requested = advance.search(
        target.name, good, sha, device=run.device, suite=run.suite, patterns=slower, asked_by=who
    )
    number = requested.id
    page = f"{settings().address}/bisections/{number}"
    cases = f"{len(slower)} case{'s' * (len(slower) != 1)}"
    return (
        f"[bisection {number}]({page}) on {code(run.device)} searches {code(f'{short(good)}..{short(sha)}')} for the "
        f"commit that made {cases} slower."
    )


def newest_runs(session: Session, target: Target, pull: int, sha: str) -> Sequence[Run]:
    """The newest run of a head that is done, for each device."""
    rows = (
        select(Run)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == target.id, Run.pull == pull, Revision.sha == sha, Run.purpose == Purpose.WATCH)
        .where(Run.state == RunState.DONE)
        .order_by(Run.id)
    )
    return list({run.device: run for run in session.scalars(rows)}.values())


log = structlog.get_logger()

# On one pull request, in a day and to all strangers together: anybody may comment on a public repository.
MAX_ANSWERS_TO_STRANGERS = 5
# These need the head recorded first.
_FROM_HEAD = frozenset(CommandName) - {CommandName.HELP, CommandName.STOP}


@dataclass(frozen=True)
class _Asked:
    """A command, who gave it, and the pull request as the forge has it now."""

    command: Command
    event: Commented
    actor: Actor
    head: PullHead

    @property
    def number(self) -> int:
        return self.event.number

    @property
    def needs_head(self) -> bool:
        """Whether the ledger must have the head that the forge names; of a closed pull request it stays as it was."""
        return self.head.open and self.command.verb in _FROM_HEAD


def carry_out(watching: Sequence[Target], event: Commented, delivery_id: int, *, last: bool) -> str:
    """Carry out the command of a comment for the targets that watch its repository; one sentence on what was done.

    Raises SourceFailed where the forge or a source did not answer; on the `last` attempt that is answered too.
    """
    kind = _kind(watching)
    with reading() as session:
        if outbox.is_known(session, _key(event, kind, "reaction")):
            return f"comment {event.comment} was answered before."
    try:
        client = clients.connect(kind)
        if client.is_self(event.author):
            return "Nothing to do: kernelwatch wrote the comment."
        if client.is_bot(event.author_id):
            return "Nothing to do: a bot wrote the comment."
        if not client.has_comment(event.repository, event.number, event.comment):
            return f"Nothing to do: comment {event.comment} was deleted."
        person = who_is(client, kind, event.repository, event.author, event.author_id, watching)
        effect = _answer_of(client, watching, event, delivery_id, person)
        return _answered(watching, event, effect, stranger=not person.may_command)
    except (ForgeFailed, SourceFailed) as failure:
        if last or not failure.passing:
            why = escaped(one_line(str(failure)))
            _answered(watching, event, _Done(answers.refused(f"It could not be done: {why}.")), stranger=True)
        raise SourceFailed(str(failure), passing=failure.passing) from None


@dataclass(frozen=True)
class _Done:
    """An answer that is known before its transaction."""

    answer: Reply

    def __call__(self, _session: Session) -> Reply:
        return self.answer


_Effect = Callable[[Session], Reply]


def _answer_of(
    client: Forge, watching: Sequence[Target], event: Commented, delivery_id: int, person: ForgePerson
) -> _Effect:
    """What to do in the transaction of the answer.  Asks the forge and the sources for all that it needs."""
    try:
        command = read(event.line)
        chosen = [target for target in watching if command.target in (None, target.name)]
        if not chosen:
            names = ", ".join(target.name for target in watching)
            raise BadInput(f"No target {command.target} watches this repository; {names} does.")
    except BadInput as mistake:
        return _Done(answers.refused(escaped(str(mistake))))
    if command.verb is CommandName.HELP:
        return _Done(answers.help_text(_kind(watching)))
    if why := person.refusal(command.form.scope, chosen, f"{NAME} {command.verb}"):
        return _Done(answers.refused(why))
    head = client.pull(event.repository, event.number)
    asked = _Asked(command, event, person.actor, head)
    if not head.open and command.verb not in (CommandName.STOP, CommandName.ACCEPT):
        return _Done(answers.refused(f"{_sentence(_kind(chosen), event.number)} is closed; reopen it first."))
    prepared = {target.id: _prepared(target, asked, delivery_id) for target in chosen}

    def effect(session: Session) -> Reply:
        with as_actor(asked.actor):
            return answers.together(_for_target(session, target.id, asked, prepared[target.id]) for target in chosen)

    return effect


@dataclass(frozen=True)
class _Prepared:
    """What was found out about a target before the transaction."""

    known_head: str | None  # when the comment arrived
    trouble: str | None = None  # why the head cannot be used
    done: Reply | None = None  # by a command that has transactions of its own


def _prepared(target: Target, asked: _Asked, delivery_id: int) -> _Prepared:
    """Record the head that the forge names, where the ledger has another one.  Raises SourceFailed."""
    with reading() as session:
        announced = _head_at(session, target.id, asked.number, delivery_id)
        pull = queue.pull_of(session, target.id, asked.number)
    if not asked.needs_head or target.paused_at is not None:
        return _Prepared(announced)
    recorded = pull is not None and pull.head == asked.head.sha and pull.closed_at is None
    trouble = None if recorded else _record_head(target, asked)
    bisects = asked.command.verb is CommandName.BISECT and trouble is None
    return _Prepared(announced, trouble, _bisect(target, asked) if bisects else None)


def _record_head(target: Target, asked: _Asked) -> str | None:
    """Record the head as its delivery would have done, had it arrived; why it cannot be used, if so."""
    head = asked.head
    with transaction() as session:
        revisions.locked_pull(session, target.id, asked.number).closed_at = None
    try:
        source = open_source(target)
        source.refresh()
        wanted = pulls.Wanted(asked.number, head.fork, announced={head.sha: 0}, author=head.author)
        wanted.base, wanted.base_ref = head.base, head.base_ref
        outcome = pulls.record_heads(target, source, {asked.number: wanted})[asked.number]
    except SourceFailed:
        raise
    except ServiceError as failure:
        outcome = failure
    if isinstance(outcome, SourceFailed):
        raise outcome
    with reading() as session:
        recorded = queue.pull_of(session, target.id, asked.number)
    return None if recorded is not None and recorded.head == head.sha else str(outcome)


def _head_at(session: Session, target_id: int, number: int, delivery_id: int) -> str | None:
    """The head that was known when a delivery arrived."""
    arrived = select(Delivery.received_at).where(Delivery.id == delivery_id).scalar_subquery()
    rows = select(PushRow.head).where(PushRow.target_id == target_id, PushRow.pull == number)
    return session.scalar(rows.where(PushRow.created_at <= arrived).order_by(PushRow.id.desc()).limit(1))


def _answered(watching: Sequence[Target], event: Commented, effect: _Effect, *, stranger: bool) -> str:
    """Carry it out and answer it in one transaction; whoever comes second does nothing.

    Each command gets a reaction; those of strangers get a bounded number of answers.
    """
    with transaction() as session:
        for target in watching:  # in the order of their ids, as everywhere
            lock(session, target.id)
        kind = _kind(watching)
        if outbox.is_known(session, _key(event, kind, "reaction")):
            return f"comment {event.comment} was answered before."
        answer = effect(session)
        first = session.get_one(Target, watching[0].id)
        reaction = ReactionPayload(pull=event.number, comment=event.comment, content=answer.reaction)
        outbox.enqueue(session, _key(event, kind, "reaction"), "reaction", first, None, reaction.model_dump())
        left = MAX_ANSWERS_TO_STRANGERS - _answers_to_strangers(session, first, event.number) if stranger else None
        if left is None or left > 0:
            lines = (*answer.lines, *([answers.LAST_TO_STRANGERS] if left == 1 else []))
            body = answers.comment(event.line, event.author, f"comment {event.comment}", lines)
            reply = CommentPayload(pull=event.number, body=body, to_stranger=stranger)
            outbox.enqueue(session, _key(event, kind, "answer"), "answer", first, None, reply.model_dump())
    verdict = "refused" if answer.reaction is Reaction.REFUSED else "carried out"
    return f"{one_line(event.line, 80)} of {event.author} was {verdict}."


def _answers_to_strangers(session: Session, target: Target, number: int) -> int:
    """How many answers strangers got on a pull request in the last day."""
    of_day = OutboxMessage.created_at > clock(session) - DAY_S
    asked = select(OutboxMessage.payload).where(OutboxMessage.target_id == target.id, OutboxMessage.kind == "answer")
    payloads = session.scalars(asked.where(of_day))
    return sum(payload.get("pull") == number and bool(payload.get("to_stranger")) for payload in payloads)


def _key(event: Commented, kind: ForgeKind, what: str) -> str:
    """The key of a message about a comment; every command gets a reaction.  Forges number comments each by itself."""
    return f"{what}:{event.comment}" if kind is ForgeKind.GITHUB else f"{what}:{kind}:{event.comment}"


def _kind(targets: Sequence[Target]) -> ForgeKind:
    """The forge of targets that watch one repository."""
    return targets[0].forge_kind or ForgeKind.GITHUB


def _sentence(kind: ForgeKind | None, number: int) -> str:
    """A pull request at the beginning of a sentence: `Merge request !7`."""
    name = pull_name(kind, number)
    return name[:1].upper() + name[1:]


def _for_target(session: Session, target_id: int, asked: _Asked, prepared: _Prepared) -> Reply:
    """Carry out a command for one target."""
    target = session.get_one(Target, target_id)
    if target.paused_at is not None and asked.command.verb is not CommandName.STOP:
        hint = code(f"kernelwatch target resume {target.name}")
        return answers.refused(answers.about(target.name, f"the target is paused; an operator resumes it with {hint}."))
    pull = revisions.locked_pull(session, target_id, asked.number)
    if prepared.trouble is not None:
        return answers.refused(answers.about(target.name, f"{escaped(one_line(prepared.trouble))}."))
    if asked.needs_head and pull.head != asked.head.sha:
        raise SourceFailed(f"the head of {pull_name(target.forge_kind, asked.number)} is moving.")
    try:
        with session.begin_nested():
            reply = prepared.done or _EFFECTS[asked.command.verb](session, target, pull, asked)
    except ServiceError as refusal:
        return answers.refused(answers.about(target.name, escaped(str(refusal))))
    moved = _moved(asked, prepared)
    lines = [answers.about(target.name, line) for line in reply.lines]
    return Reply(reply.reaction, (*lines, *([answers.about(target.name, moved)] if moved else [])))


def _moved(asked: _Asked, prepared: _Prepared) -> str | None:
    """Say so where the head is another one than when the comment arrived."""
    was = prepared.known_head
    if not asked.needs_head or was in (None, asked.head.sha):
        return None
    return f"the head was {code(short(was or ''))} when the comment arrived, and is {code(short(asked.head.sha))} now."


# -- the commands, each in the transaction of its answer


def _run(session: Session, target: Target, pull: Pull, asked: _Asked) -> Reply:
    suite, device = _suite_and_device(session, target, asked.command)
    devices = [device] if device else revisions.devices_of(session, target, pull.head)
    runs = [
        revisions.run_of_revision(session, target, pull.head, pull.number, device, suite=suite) for device in devices
    ]
    return _waiting(session, runs, asked)


def _rerun(session: Session, target: Target, pull: Pull, asked: _Asked) -> Reply:
    devices = revisions.devices_of(session, target, pull.head)
    runs = [
        revisions.run_of_revision(session, target, pull.head, pull.number, device, again=True) for device in devices
    ]
    return _waiting(session, runs, asked)


def _suite_and_device(session: Session, target: Target, command: Command) -> tuple[str | None, str | None]:
    """Each word is a suite or a device of the recipe, the suite first where it could be both."""
    _, recipe = revisions.recipe_of(session, target)
    suite, device = None, None
    for word in command.words:
        if device is None and word in recipe.devices and (suite is not None or word not in recipe.suites):
            device = word
        elif suite is None and device is None:
            recipe.cases(word)  # raises for a name that it does not have
            suite = word
        else:
            raise BadInput(f"{word[:40]!r} is no device of {target.name}; its recipe says {', '.join(recipe.devices)}.")
    return suite, device


def _bisect(target: Target, asked: _Asked) -> Reply:
    """Start the bisections of a head; the open ones are found again, so that doing it twice starts none twice."""
    with reading() as session:
        runs = newest_runs(session, target, asked.number, asked.head.sha)
    if not runs:
        return answers.refused("no device has measured the head yet; bisect when one has.")
    lines, started = [], False
    for run in runs:
        try:
            with as_actor(asked.actor):
                lines.append(start(target, run, asked.actor.name))
            started = True
        except SourceFailed:
            raise
        except ServiceError as refusal:
            lines.append(escaped(one_line(str(refusal), 600)) + ".")
    return Reply(Reaction.WORKING if started else Reaction.REFUSED, tuple(lines))


def _stop(session: Session, target: Target, pull: Pull, asked: _Asked) -> Reply:
    ours = (Run.target_id == target.id, Run.pull == pull.number, Run.purpose == Purpose.WATCH)
    open_ones = session.scalars(select(Run).where(*ours, Run.state.in_(OPEN_STATES)).order_by(Run.id)).all()
    stopped = [run for run in open_ones if queue.cancel(session, run.id, asked.actor.name)]
    if not stopped:
        return answers.done("there was nothing to stop.")
    names = ", ".join(f"[run {run.id}]({_url(run)}) on {code(run.device)}" for run in stopped)
    return answers.done(f"cancelled {names}.")


def _accept(session: Session, target: Target, pull: Pull, asked: _Asked) -> Reply:
    if not asked.head.open and pull.merged_as is None:
        raise Conflict(f"{_sentence(target.forge_kind, pull.number)} was closed without a merge.")
    cases = decisions.accept(session, target, pull, asked.actor.name, " ".join(asked.command.words))
    what = f"{cases} slower case{'s' * (cases != 1)} at {code(short(pull.head or ''))}"
    if not asked.head.open:
        return answers.done(f"accepted {what}; its regressions on the mainline are acknowledged.")
    return answers.done(
        f"accepted {what}. A new push voids this. After the merge, its regressions on the mainline are acknowledged."
    )


def _approve(session: Session, target: Target, pull: Pull, asked: _Asked) -> Reply:
    [sha] = asked.command.words
    head = asked.head.sha
    if head != sha:
        raise BadInput(f"{sha} is not the head, which is {head}. Read that one, then approve it.")
    runs = decisions.runs_of_head(session, target.id, pull.number, pull.head)
    held = [run for run in runs if run.state is RunState.HELD]
    if not held:
        return answers.done(f"nothing is held at {code(short(head))}.")
    return _waiting(session, revisions.approve(session, held[0].id), asked)


def _waiting(session: Session, runs: Sequence[Run], asked: _Asked) -> Reply:
    """Runs with their places in the queue."""
    session.flush()
    queued, head, lines = places(session), asked.head.sha, []
    for run in runs:
        place = queued.get(run.id, NO_PLACE)
        lines.append(answers.of_run(run, head, _url(run), place=place.position, eta_s=place.eta_s))
    if any(run.state is RunState.HELD for run in runs):
        lines.append(f"Read the commit, then comment {code(f'{NAME} {CommandName.APPROVE} {head}')}.")
    working = any(run.state in (RunState.QUEUED, RunState.LEASED) for run in runs)
    return Reply(Reaction.WORKING if working else Reaction.DONE, tuple(lines))


def _url(run: Run) -> str:
    return f"{settings().address}/runs/{run.id}"


_EFFECTS: Mapping[CommandName, Callable[[Session, Target, Pull, _Asked], Reply]] = {
    CommandName.RUN: _run,
    CommandName.RERUN: _rerun,
    CommandName.STOP: _stop,
    CommandName.ACCEPT: _accept,
    CommandName.APPROVE: _approve,
}
