"""The front page: what needs a person, what is fine, how each target did lately, and when the queues end."""

import shutil

from dashboards import strips
from dashboards.pages.watching.new import add_link
from dashboards.rendering import commit_address, page, page_router
from service.api.access import Reading
from service.ledger.health.overview import NIGHTS, health_facts
from service.reports.health import lately, needs
from service.settings import settings

router = page_router()

MAX_WORKERS = 8
MAX_QUEUES = 6


@router.get("/")
def health(session: Reading) -> str:
    """Show what needs a person, and how everything is."""
    facts = health_facts(session)
    here = disk()
    found = needs.needs(facts, here, commit_address)
    lines, news = lately.target_lines(facts), lately.since_yesterday(facts)
    # The longest first, and those that are silent.
    queues = sorted(facts.queues.devices, key=lambda one: (one.taken or not one.queued, -one.queued, one.device))
    workers = [one for queue in queues for one in queue.workers]
    workers.sort(key=lambda one: (one.online, one.run is None, one.row.name))
    return page(
        "health.html",
        now=facts.now,
        headline=needs.headline(found, facts),
        summary=needs.summary(found, facts),
        needs=found,
        fine=lately.fine(facts, lines, here),
        add=add_link(),
        lines=[(line, strips.strip(line.marks, line.marks_in_words), strips.sparkline(line.points)) for line in lines],
        news=news[: lately.MAX_CHANGES],
        more_news=max(0, len(news) - lately.MAX_CHANGES),
        queues=queues[:MAX_QUEUES],
        more_queues=max(0, len(queues) - MAX_QUEUES),
        longest=max((queue.queued for queue in queues), default=0),
        workers=workers[:MAX_WORKERS],
        more_workers=max(0, len(workers) - MAX_WORKERS),
        busy=any(queue.current for queue in queues),
        trust=lately.trusted(facts.nights),
        nights=strips.nights(facts.nights, NIGHTS),
        days=NIGHTS,
        quarantined=facts.quarantined,
    )


def disk() -> needs.Disk:
    """The disk of the state folder, or of the first folder above it that exists."""
    state = settings().state
    usage = shutil.disk_usage(next(folder for folder in (state, *state.parents) if folder.exists()))
    return needs.Disk(usage.free, usage.total)
