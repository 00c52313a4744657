"""`kernelwatch status`: targets, workers and the queue."""

from rich.table import Table
from rich.text import Text

from service.commands.printing import line, out
from service.db.engine import clock, reading
from service.db.models import Run
from service.domain.states import Purpose
from service.domain.text import printable
from service.ledger import queries
from service.ledger.intake import targets


def status() -> None:
    """Show targets, workers and the queue."""
    table = Table("run", "target", "revision", "device", "for", "state", "stage")
    with reading() as session:
        cards = [queries.card(session, one, lines=1) for one in targets.all_targets(session)]
        for one in queries.queue(session):
            names = (str(one.id), one.target.name, one.revision.short, one.device)
            cells = (*names, _purpose(one), one.state.value, one.stage or "")
            table.add_row(*(Text(printable(cell)) for cell in cells))
        workers = queries.workers(session)
        now = clock(session)
    for card in cards:
        by_state = ", ".join(f"{n} {state.value}" for state, n in card.standing.items()) or "none"
        paused = "; paused" if card.target.paused_at else ""
        line("target ", (card.target.name, "bold"), f": regressions {by_state}; {card.behind} behind SOTA{paused}")
    out.print(table if table.row_count else "The queue is empty.")
    for each in workers:
        line("worker ", (each.name, "bold"), f" ({each.description}) was seen {now - each.seen_at:.0f} s ago")


def _purpose(one: Run) -> str:
    """The purpose of a run; empty for a mainline revision."""
    if one.purpose is Purpose.WATCH:
        return f"pull request {one.pull}" if one.pull else ""
    return f"bisection {one.bisection_id}" if one.bisection_id else one.purpose.value
