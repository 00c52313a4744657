"""Pull requests and merge queues: what deliveries say of them, and their heads as the source has them.

Deliveries arrive late, twice and in any order.  Whether a pull request is open follows from their times and kinds; its
head is what the source has when it is fetched, whatever a delivery says.  No transaction is open while it is fetched:
a row of the pull request has a version, and who finds another one than before fetches again.

The commit is measured against what it is put on.  It is measured again as a revision of the mainline once it is merged:
only there its regressions are recorded.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from service.db.engine import reading, transaction
from service.db.models import Pull, Revision, Run, Target
from service.domain.forges import pull_name
from service.domain.states import Origin, TargetKind
from service.domain.text import short
from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.forge.events import GroupChanged, PullChanged
from service.ledger.regressions import decisions
from service.ledger.runs.revisions import Push, group_dropped, locked_pull, pull_closed, record_push
from service.ledger.targets import BranchRecipe, adopted, branch_recipe
from service.sources.source import Found, Source

MAX_COMMITS = 250  # of a pull request that are recorded, the newest; GitHub shows no more either
_PATIENCE = 2  # failures of a delivery after which an announced head that the source lacks is not waited for
_TRIES = 3  # while others record the same pull request
_FETCH_S, _ROUND_S = 60.0, 120.0  # to fetch heads, and to fetch and record them; the rest waits for the next round


@dataclass
class Wanted:
    """A pull request whose head is to be recorded.  The deliveries that asked for it, and what they said."""

    number: int
    fork: bool = False
    vouched: bool = False  # somebody trusts its head, whoever it is from
    base: str | None = None  # the sha that the forge named; None for the tip of `base_ref`, or of the mainline
    base_ref: str | None = None
    announced: dict[str, int] = field(default_factory=dict)  # heads, each with the failures of its delivery
    deliveries: list[int] = field(default_factory=list)
    author: str = ""

    def add(self, event: PullChanged, delivery_id: int, failures: int) -> None:
        """A later delivery."""
        self.fork |= event.fork
        self.base, self.base_ref, self.author = event.base_sha, event.base_ref, event.author
        self.announced[event.head] = failures
        self.deliveries.append(delivery_id)


def sort_out(
    session: Session, target: Target, events: Iterable[tuple[int, int, PullChanged]]
) -> tuple[dict[int, str], dict[int, Wanted]]:
    """Note what deliveries say: `events` are (delivery, failures so far, event), in the order of receipt.

    Returns one sentence for each delivery that is done, and the pull requests with a head to record.
    """
    answers, wanted, rows = dict[int, str](), dict[int, Wanted](), dict[int, Pull]()
    for delivery_id, failures, event in events:
        if event.number not in rows:
            rows[event.number] = locked_pull(session, target.id, event.number)
        row = rows[event.number]
        later = _compare(event.updated_at, row.updated_at)
        row.updated_at = max(event.updated_at or 0.0, row.updated_at or 0.0) or None
        name = pull_name(target.forge_kind, event.number)
        if event.action == "closed":
            if later < 0:
                answers[delivery_id] = f"{name} was reopened or changed later."
                continue
            if (before := wanted.pop(event.number, None)) is not None:
                answers |= dict.fromkeys(before.deliveries, f"{name} was closed by a later delivery.")
            answers[delivery_id] = close(session, target, event.number)
            row.merged_as = event.merged_as
            decisions.acknowledge_merged(session, row)
        elif row.closed_at is not None and not (later > 0 or (event.action == "reopened" and later == 0)):
            answers[delivery_id] = f"{name} is closed; this delivery is older than that."
        else:
            row.closed_at = None
            wanted.setdefault(event.number, Wanted(event.number)).add(event, delivery_id, failures)
    return answers, wanted


def close(session: Session, target: Target, number: int) -> str:
    cancelled = pull_closed(session, target, number)
    name = pull_name(target.forge_kind, number)
    return f"{name} was closed; {cancelled} of its runs were waiting, and are cancelled."


def record_heads(target: Target, source: Source, wanted: Mapping[int, Wanted]) -> dict[int, str | ServiceError]:
    """Fetch the heads of pull requests together and record them: what was done of each, or why it could not be done.

    Those that there was no time for are left out.  The source was refreshed before.
    """
    done, recipe = dict[int, str | ServiceError](), branch_recipe(target, source)
    left, ends = dict(wanted), time.monotonic() + _ROUND_S
    for _ in range(_TRIES):
        if not left:
            return done
        with reading() as session:
            numbers = select(Pull.number, Pull.version).where(Pull.target_id == target.id)
            versions = dict(session.execute(numbers).all())
        heads = source.fetch_pulls(left.keys(), _FETCH_S)
        own = [head for number, head in heads.items() if isinstance(head, str) and not left[number].fork]
        if not all(map(source.is_on_branch, own)):  # a branch may have moved since it was fetched
            source.refresh()
        for number, head in heads.items():
            if done and time.monotonic() > ends:
                return done
            try:
                answer = _record(target, source, recipe, left[number], head, versions.get(number, 0))
            except ServiceError as failure:
                done[number] = failure
            else:
                if answer is None:
                    continue  # another process recorded something of it meanwhile
                done[number] = answer
            del left[number]
        if not heads.keys() & left.keys():
            return done
    busy = {number: pull_name(target.forge_kind, number) for number in left if number in heads}
    return done | {number: SourceFailed(f"another process is recording {name}.") for number, name in busy.items()}


def _record(
    target: Target, source: Source, recipe: BranchRecipe | None, wanted: Wanted, head: str | ServiceError, version: int
) -> str | None:
    """Record one head: what was done, or None where the row has another version by now.  Raises ServiceError."""
    name = pull_name(target.forge_kind, wanted.number)
    try:
        if isinstance(head, ServiceError):
            raise head
        push = _push(target, source, wanted, head)
    except ServiceError as failure:
        if not wanted.announced or (isinstance(failure, SourceFailed) and failure.passing):
            raise
        _refuse(target, recipe, wanted, failure, version)
        return None
    with transaction() as session:
        row = adopted(session, target, recipe)
        pull = locked_pull(session, row.id, wanted.number)
        if pull.closed_at is not None:
            return f"{name} was closed meanwhile."
        if pull.version != version:
            return None
        result = record_push(session, row, push) if push else None
    if _is_awaited(source, wanted, head):
        raise SourceFailed(f"the forge serves {head[:10]} as the head of {name}; it may not serve the newest yet.")
    return f"{name}, {result}." if result else f"{name} has no commits that are not in its base."


def _push(target: Target, source: Source, wanted: Wanted, head: str) -> Push | None:
    """What a head adds to its base; None where that is nothing."""
    base = _base(target, source, wanted, head)
    commits = source.between(base, head)
    if not commits:
        return None
    if len(commits) > MAX_COMMITS:
        commits = [replace(commits[-MAX_COMMITS], more_paths=True), *commits[-MAX_COMMITS + 1 :]]
    return Push(
        Origin.PULL_REQUEST,
        tuple(commits),
        pull=wanted.number,
        baseline=base,
        trusted=wanted.vouched or (not wanted.fork and source.is_on_branch(head)),
        delivery_id=max(wanted.deliveries, default=None),
    )


def baseline_of(target: Target, source: Source, commit: Found) -> str | None:
    """What a revision that a person requests is compared with: where it left the mainline; on it, its parent.

    The same holds after a merge commit brought it there.  A revision without a common ancestor keeps its parent.
    """
    if target.kind is TargetKind.PACKAGE:
        return commit.parent
    tip = source.mainline(target.branch, 1)[0].sha
    try:
        base = source.merge_base(tip, commit.sha)
    except NotFound:
        return commit.parent
    if base != commit.sha:
        return base
    after = source.between(commit.sha, tip)
    left = after[0].parent if after else None  # where the mainline was before it had the revision
    # A source lists only so many revisions: of a very old one the first of these may be much younger.
    was_merged = left not in (None, commit.sha) and source.merge_base(left, commit.sha) == left
    return left if was_merged else commit.parent


def baseline_of_head(session: Session, target: Target, sha: str) -> str | None:
    """What an open pull request that has this head is compared with; None where there is none."""
    runs = (
        select(Run.baseline)
        .join(Revision, Revision.id == Run.revision_id)
        .join(Pull, and_(Pull.target_id == Run.target_id, Pull.number == Run.pull))
        .where(Run.target_id == target.id, Revision.sha == sha, Pull.head == sha, Pull.closed_at.is_(None))
        .order_by(Run.id.desc())
    )
    return session.scalars(runs.limit(1)).first()


def _base(target: Target, source: Source, wanted: Wanted, head: str) -> str:
    """Where a head left the branch that it is to be merged into.

    GitHub names the tip of that branch as it was when the pull request was opened.  The repository knows what the head
    has merged of it since; only a head that was merged itself no longer shows where it began.
    """
    named = wanted.base if wanted.base is not None and source.has(wanted.base) else None
    tip = _tip(target, source, wanted) or named or source.mainline(target.branch, 1)[0].sha
    base = source.merge_base(tip, head)
    return source.merge_base(named, head) if base == head and named is not None else base


def _tip(target: Target, source: Source, wanted: Wanted) -> str | None:
    """The newest commit of the branch that it is to be merged into; None where that was deleted."""
    with suppress(NotFound):
        return source.mainline(wanted.base_ref or target.branch, 1)[0].sha
    return None


def _refuse(target: Target, recipe: BranchRecipe | None, wanted: Wanted, why: ServiceError, version: int) -> None:
    """Record a head that cannot be fetched as runs that failed, so that its author reads the reason."""
    sha = list(wanted.announced)[-1]
    reason = str(why)
    push = Push(
        Origin.PULL_REQUEST,
        (Found(sha, None, "", wanted.author, 0.0, ()),),
        pull=wanted.number,
        trusted=False,
        delivery_id=max(wanted.deliveries, default=None),
        refused=reason,
    )
    with transaction() as session:
        row = adopted(session, target, recipe)
        if locked_pull(session, row.id, wanted.number).version != version:
            return
        record_push(session, row, push)
    raise BadInput(reason)


def _is_awaited(source: Source, wanted: Wanted, head: str) -> bool:
    """Whether a forge announced another head that it does not serve yet, as happens for a moment after a push."""
    if head in wanted.announced:
        return False
    return any(failures < _PATIENCE and not source.has(sha) for sha, failures in wanted.announced.items())


def _compare(moment: float | None, recorded: float | None) -> int:
    """-1, 0 or 1 for an earlier, an equal (or unknown) and a later time."""
    if moment is None or recorded is None:
        return 0
    return (moment > recorded) - (moment < recorded)


def carry_out(target: Target, source: Source, event: GroupChanged, delivery_id: int) -> str:
    """Queue the runs of a group, or cancel those of a dropped one; what was done, as a sentence.

    Raises: NotFound where the source does not have the commits.
    """
    mainline = target.branch or source.default_branch()
    if event.base_ref != mainline:
        return f"{event.base_ref} is not the mainline ({mainline}); its merge queue is not measured."
    if event.dropped:
        with transaction() as session:
            ended = group_dropped(session, session.get_one(Target, target.id), event.head)
        return f"the merge queue dropped {short(event.head)}: {ended} run{'s' * (ended != 1)} cancelled."
    commits = source.between(event.base, event.head)
    if not commits:
        return f"{short(event.head)} of the merge queue adds nothing to {short(event.base)}."
    recipe = branch_recipe(target, source)
    push = Push(Origin.MERGE_GROUP, tuple(commits), baselines={event.head: event.base}, delivery_id=delivery_id)
    with transaction() as session:
        result = record_push(session, adopted(session, target, recipe), push)
    return f"merge queue, {result}."
