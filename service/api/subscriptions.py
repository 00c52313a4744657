"""Subscriptions to events, and the channels of the settings."""

from typing import Annotated

from fastapi import Query, Response
from sqlalchemy import ColumnElement

from kernelwatch.documents.administration import ChannelItem, SubscriptionItem, TrialDocument
from kernelwatch.documents.base import Page
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import Cursor, Key, Limit, page_of
from service.api.objects import permitted_target
from service.db.engine import transaction
from service.db.models import Subscription, Target
from service.domain.access import Actor, Scope
from service.ledger.notices import deliver, subscriptions
from service.ledger.targets import target_named
from service.reports.feeds.notices import SubscriptionRequest, subscription_item

router = api_router("subscriptions")


@router.get("/subscriptions", response_model=Page[SubscriptionItem])
@needs(Scope.TRIAGE)
def list_subscriptions(
    session: Reading,
    actor: Acting,
    target: Annotated[str | None, Query(max_length=80, description="Only subscriptions to this target.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[SubscriptionItem]:
    """List the subscriptions to targets that you may triage, the newest first."""
    where = list(_triaged(actor))
    if target is not None:
        where.append(Subscription.target_id == target_named(session, target).id)
    return page_of(subscriptions.listed(session, where=where, cursor=cursor, limit=limit), subscription_item)


@router.get("/channels", response_model=Page[ChannelItem])
@needs(Scope.TRIAGE)
def list_channels(session: Reading, actor: Acting) -> Page[ChannelItem]:
    """List the channels that the operator named, without their addresses, and how they work."""
    _triaged(actor)
    return Page(items=subscriptions.known_channels(session))


@router.post("/subscriptions", response_model=SubscriptionItem, status_code=201)
@needs(Scope.TRIAGE)
def create_subscription(body: SubscriptionRequest, actor: Acting) -> SubscriptionItem:
    """Subscribe a channel to the events of a target, or of all targets and workers."""
    if body.target is None:
        permit(actor, Scope.TRIAGE)
    else:
        permitted_target(actor, Scope.TRIAGE, body.target)
    with transaction() as session:
        target = target_named(session, body.target) if body.target is not None else None
        made = subscriptions.create(
            session,
            actor,
            body.channel,
            target,
            device=body.device,
            severity=body.severity,
            kinds=body.kinds,
        )
        return subscription_item(made)


@router.post("/subscriptions/{subscription_id}/test", response_model=TrialDocument)
@needs(Scope.TRIAGE)
def try_subscription(subscription_id: Key, actor: Acting) -> TrialDocument:
    """Send a test to the channel of a subscription now."""
    with transaction() as session:
        row = _permitted(session, actor, subscription_id)
    result = deliver.try_out(row.id, row.channel)
    return TrialDocument(arrived=result.error is None, error=result.error, took_s=result.took_s)


@router.delete("/subscriptions/{subscription_id}", status_code=204, response_class=Response)
@needs(Scope.TRIAGE)
def delete_subscription(subscription_id: Key, actor: Acting) -> Response:
    """Delete a subscription.  What waits for it is not sent."""
    with transaction() as session:
        _permitted(session, actor, subscription_id)
        subscriptions.remove(session, subscription_id)
    return Response(status_code=204)


def _triaged(actor: Actor) -> tuple[ColumnElement[bool], ...]:
    """The condition for subscriptions to targets that the actor may triage.  Raises Refused if there is none."""
    if actor.may(Scope.TRIAGE):
        return ()
    if not actor.may_somewhere(Scope.TRIAGE):
        permit(actor, Scope.TRIAGE)
    mine = [target_id for target_id in actor.readable() if actor.may(Scope.TRIAGE, target_id)]
    return (Subscription.target_id.in_(mine),)


def _permitted(session: Reading, actor: Actor, subscription_id: int) -> Subscription:
    row = subscriptions.one(session, subscription_id).row
    permit(actor, Scope.TRIAGE, session.get_one(Target, row.target_id) if row.target_id is not None else None)
    return row
