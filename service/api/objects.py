"""Find what a request is about, and check that its sender may change it.

What is hidden from the sender does not exist, and what they see but may not change is refused.
"""

from typing import Annotated

from fastapi import Path, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session, selectinload

from service.api.access import permit
from service.db.engine import reading
from service.db.models import Run, Target
from service.domain.access import Actor, Scope
from service.domain.text import ONE_LINE
from service.errors import NotFound
from service.ledger import targets

TargetName = Annotated[str, Path(max_length=80, pattern=ONE_LINE, description="The name of the target.")]
AnyName = Annotated[str, Path(description="The name of the target.")]  # one that no target can have is not found


def permitted_target(actor: Actor, scope: Scope, name: str) -> Target:
    """The target of this name.  Raises NotFound, and Refused without the scope on it."""
    with reading() as session:
        target = targets.target_named(session, name)
    permit(actor, scope, target)
    return target


def permitted_run(session: Session, actor: Actor, scope: Scope, run_id: int) -> Run:
    """The run of this id.  Raises NotFound, and Refused without the scope on its target."""
    run = session.get(Run, run_id, options=[selectinload(Run.target), selectinload(Run.revision)])
    if run is None:
        raise NotFound("run", run_id)
    permit(actor, scope, run.target)
    return run


def document(found: BaseModel, status: int) -> Response:
    """The response with a document, where its status depends on what was done."""
    return Response(found.model_dump_json(), status, media_type="application/json")
