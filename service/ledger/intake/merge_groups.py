"""Merge queues: a forge puts pull requests on top of a branch in a commit of its own, and waits for its checks.

The commit is measured against what it is put on.  It is measured again as a revision of the mainline once it is merged:
only there its regressions are recorded.
"""

from service.db.engine import transaction
from service.db.models import Target
from service.domain.states import Origin
from service.domain.text import short
from service.forge.events import GroupChanged
from service.ledger.intake.branch_recipes import adopted, branch_recipe
from service.ledger.runs.revisions import Push, group_dropped, record_push
from service.sources.source import Source


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
    found = source.between(event.base, event.head)
    if not found:
        return f"{short(event.head)} of the merge queue adds nothing to {short(event.base)}."
    recipe = branch_recipe(target, source)
    push = Push(Origin.MERGE_GROUP, tuple(found), baselines={event.head: event.base}, delivery_id=delivery_id)
    with transaction() as session:
        result = record_push(session, adopted(session, target, recipe), push)
    return f"merge queue, {result}."
