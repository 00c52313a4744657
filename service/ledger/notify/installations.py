"""The GitHub App comes and goes: nothing is sent to repositories that it left, until it is back."""

from contextlib import suppress

from sqlalchemy import func, select, update

from service.db.engine import clock, transaction, wake
from service.db.models import OutboxMessage, Target
from service.db.wakeups import CONTROL
from service.domain.states import ForgeKind, OutboxState
from service.forge import github
from service.forge.events import InstallationChanged
from service.forge.forge import MAX_PAUSE_S, ForgeFailed


def changed(event: InstallationChanged) -> str:
    """Pause or resume what is sent to the repositories of an installation; one sentence on what was done.

    A pause ends by itself: the next message then finds out whether the App is back, so that a lost delivery does not
    silence a target for ever.
    """
    with suppress(ForgeFailed):  # without credentials there is no token to forget
        github.connect().forget(event.account)
    where = func.lower(Target.forge).startswith(f"{event.account.lower()}/", autoescape=True)
    if event.repositories is not None:
        where = func.lower(Target.forge).in_([one.lower() for one in event.repositories])
    with transaction() as session:
        names = []
        there = select(Target).where(Target.forge_kind == ForgeKind.GITHUB, where).order_by(Target.id)
        for target in session.scalars(there.with_for_update(key_share=True)):
            names.append(target.name)
            target.forge_paused_until = clock(session) + MAX_PAUSE_S if event.why_gone else 0.0
            target.forge_error = event.why_gone
            if event.why_gone is None:
                waiting = (OutboxMessage.target_id == target.id, OutboxMessage.state == OutboxState.WAITING)
                session.execute(update(OutboxMessage).where(*waiting).values(next_at=0.0))
        if names and event.why_gone is None:
            wake(session, CONTROL)
    if not names:
        return "Nothing to do: no target is on these repositories."
    return f"{'Sending is paused' if event.why_gone else 'Sending goes on'} for {', '.join(names)}."
