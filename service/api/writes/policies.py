"""The policies that made verdicts, and another policy applied to stored runs."""

from typing import Annotated

from fastapi import APIRouter, Path

from kernelwatch.documents.base import Page
from kernelwatch.documents.regressions import PolicyDocument, PolicyItem, ReplayDocument
from service.api.access import Acting, Reading, ReadingRoute, WritingRoute, needs, permit
from service.api.common import Cursor, Limit, page_of
from service.api.writes.objects import TargetName, permitted_target
from service.db.engine import reading
from service.domain.access import Scope
from service.domain.policy.policy import read
from service.ledger import policies
from service.ledger.policies import server_policy
from service.ledger.runs import replays
from service.ledger.targets import target_named
from service.reports.schema.regressions import replay_document
from service.reports.schema.requests import ReplayRequest

router = APIRouter()
_reads = APIRouter(route_class=ReadingRoute, tags=["policies"])
_writes = APIRouter(route_class=WritingRoute, tags=["policies"])
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="`policy_version` of a verdict.")]


@_reads.get("/policies", response_model=Page[PolicyItem])
@needs(Scope.ADMIN)
def list_policies(session: Reading, actor: Acting, cursor: Cursor = None, limit: Limit = 50) -> Page[PolicyItem]:
    """List the versions of policies that made verdicts, the newest first."""
    permit(actor, Scope.ADMIN)
    return page_of(policies.listed(session, cursor, limit), PolicyItem.model_validate)


@_reads.get("/policies/{digest}", response_model=PolicyDocument)
@needs(Scope.ADMIN)
def get_policy(digest: Digest, session: Reading, actor: Acting) -> PolicyDocument:
    """Get one version of a policy with its values."""
    permit(actor, Scope.ADMIN)
    return PolicyDocument.model_validate(policies.one(session, digest))


@_writes.post("/targets/{name}/replay", response_model=ReplayDocument)
@needs(Scope.RUN)
def replay_policy(name: TargetName, body: ReplayRequest, actor: Acting) -> ReplayDocument:
    """Apply a policy to stored runs: which alarms would be new, missed or unchanged.  Nothing is changed."""
    permitted_target(actor, Scope.RUN, name)
    written, since = read(body.policy, "of the request"), body.since.timestamp() if body.since else 0.0
    with reading() as session:
        target = target_named(session, name)
        return replay_document(replays.replayed(session, written, server_policy(), target, body.device, since))


router.include_router(_reads)
router.include_router(_writes)
