"""Subscriptions: who is notified of what.  A subscriber is never sent what they may not read."""

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session, selectinload

from kernelwatch.documents.administration import ChannelItem
from service.channels import channels
from service.db.engine import clock
from service.db.models import Account, ChannelHealth, Notice, NoticeMessage, Subscription, Target
from service.db.paging import ResultPage, paged
from service.domain.access import Actor, local
from service.domain.notices import EventKind
from service.domain.states import ActorKind, GateAction, NoticeState, OutboxState
from service.errors import BadInput, Conflict, NotFound
from service.ledger import audit
from service.ledger.access import keys, sign_ins
from service.reports.views import SubscriptionView

MAX = 200  # subscriptions of one channel
NOUNS = tuple(dict.fromkeys(kind.partition(".")[0] for kind in EventKind))


def create(
    session: Session,
    actor: Actor,
    channel: str,
    target: Target | None,
    *,
    device: str | None = None,
    severity: GateAction = GateAction.WARN,
    kinds: Sequence[str] | None = None,
) -> SubscriptionView:
    """Subscribe a channel to a target, or to all of them.  The caller has checked that the actor may triage it.

    Raises NotFound for a channel, BadInput for a channel that cannot work and for kinds that do not exist, and Conflict
    for a subscription that there is.
    """
    if trouble := channels.trouble(channels.named(channel)):
        raise BadInput(f"The channel {channel} cannot be used: {trouble}.")
    chosen = sorted(set(kinds)) if kinds else None
    for kind in chosen or ():
        if kind not in (*EventKind, *NOUNS):
            raise BadInput(f"{kind!r} is no kind of event. Use {', '.join(NOUNS)}, or one of {', '.join(EventKind)}.")
    target_id = target.id if target is not None else None
    ours = session.scalars(select(Subscription).where(Subscription.channel == channel)).all()
    if len(ours) >= MAX:
        raise Conflict(f"The channel {channel} has {MAX} subscriptions already; delete one.")
    wanted = (target_id, device, severity, chosen)
    for subscription in ours:
        if (subscription.target_id, subscription.device, subscription.severity, subscription.kinds) == wanted:
            raise Conflict(f"Subscription {subscription.id} is the same.")
    row = Subscription(
        channel=channel,
        target_id=target_id,
        device=device,
        severity=severity,
        kinds=chosen,
        created_at=clock(session),
        created_by=actor.name[:120],
        owner_kind=actor.kind,
        owner_id=actor.id,
    )
    session.add(row)
    session.flush()
    name = target.name if target is not None else None
    details = {"channel": channel, "device": device, "severity": severity, "kinds": chosen}
    audit.record(session, "subscription.create", target=name, of=f"subscription {row.id}", details=details)
    return SubscriptionView(row, name, 0, None)


def one(session: Session, subscription_id: int) -> SubscriptionView:
    """One subscription.  Raises NotFound."""
    row = session.get(Subscription, subscription_id, options=[selectinload(Subscription.target)])
    if row is None:
        raise NotFound("subscription", subscription_id, "`kernelwatch subscription list` lists them.")
    [view] = _views(session, [row])
    return view


def listed(
    session: Session, *, where: Collection[ColumnElement[bool]] = (), cursor: str | None = None, limit: int = 50
) -> ResultPage[SubscriptionView]:
    """Subscriptions, the newest first."""
    query = select(Subscription).where(*where).options(selectinload(Subscription.target))
    page = paged(session, query, (Subscription.id,), cursor, limit)
    return ResultPage(_views(session, page.items), page.next)


def remove(session: Session, subscription_id: int) -> None:
    """Delete a subscription; what waits for it is not sent.  Raises NotFound."""
    # Wait for who adds events to it, or deletes it at this moment.
    session.execute(select(Subscription.id).where(Subscription.id == subscription_id).with_for_update())
    subscription = one(session, subscription_id)
    for table in (Notice, NoticeMessage):
        theirs = table.subscription_id == subscription_id
        session.execute(delete(table).where(theirs).execution_options(synchronize_session=False))
    session.delete(subscription.row)
    session.flush()
    channel = subscription.row.channel
    if session.scalar(select(Subscription.id).where(Subscription.channel == channel).limit(1)) is None:
        session.execute(delete(ChannelHealth).where(ChannelHealth.channel == channel))  # nobody waits for it
    details = {"channel": channel}
    audit.record(
        session,
        "subscription.delete",
        target=subscription.target,
        of=f"subscription {subscription_id}",
        details=details,
    )


def _views(session: Session, rows: Sequence[Subscription]) -> tuple[SubscriptionView, ...]:
    ids = [row.id for row in rows]
    waits = select(Notice.subscription_id, func.count()).where(Notice.state == NoticeState.WAITING)
    waiting = dict(session.execute(waits.where(Notice.subscription_id.in_(ids)).group_by(Notice.subscription_id)).all())
    last = select(NoticeMessage.subscription_id, func.max(NoticeMessage.sent_at))
    last = last.where(NoticeMessage.subscription_id.in_(ids), NoticeMessage.state == OutboxState.SENT)
    sent = dict(session.execute(last.group_by(NoticeMessage.subscription_id)).all())
    return tuple(
        SubscriptionView(row, row.target.name if row.target else None, waiting.get(row.id, 0), sent.get(row.id))
        for row in rows
    )


def known_channels(session: Session) -> list[ChannelItem]:
    """The channels of the settings, and those that the settings no longer name but messages still wait for."""
    health = {row.channel: row for row in session.scalars(select(ChannelHealth))}
    waits = select(NoticeMessage.channel, func.count()).where(NoticeMessage.state == OutboxState.WAITING)
    waiting = dict(session.execute(waits.group_by(NoticeMessage.channel)).all())
    of_settings = {channel.name: channel for channel in channels.channels()}
    views = []
    for name in sorted(of_settings.keys() | waiting.keys()):
        channel, row = of_settings.get(name), health.get(name)
        views.append(
            ChannelItem(
                name=name,
                service=channel.service if channel else "",
                trouble=channels.trouble(channel) if channel else "it is not in KERNELWATCH_CHANNELS any more",
                error=row.error if row else None,
                failing_since=row.failing_since if row else None,
                paused_until=row.paused_until or None if row else None,
                sent_at=row.sent_at if row else None,
                waiting=waiting.get(name, 0),
            )
        )
    return views


def may_read(session: Session, subscription: Subscription) -> Callable[[int | None], bool]:
    """Which targets the owner of a subscription may read now; None is for what belongs to no target."""
    owner = _owner(session, subscription)
    if owner is None:
        return lambda _: False
    hidden = frozenset(sign_ins.hidden_from(session, owner))
    return lambda target_id: target_id not in hidden


def _owner(session: Session, subscription: Subscription) -> Actor | None:
    """The owner with what they may do now; None for a key that has ended, and for a person who is kept out."""
    match subscription.owner_kind:
        case ActorKind.KEY:
            return keys.actor_of(session, subscription.owner_id or 0)
        case ActorKind.PERSON:
            account = session.get(Account, subscription.owner_id)
            if account is None or account.disabled_at is not None:
                return None
            return sign_ins.person(session, account)
        case _:
            return local(subscription.created_by)
