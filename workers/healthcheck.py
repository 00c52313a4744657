"""The health check of a worker's container: exit code 0 where the worker of this host is alive, else 1.

It prints why the worker's sandbox does not work, if so.  Such a worker is alive: it takes what may run without one.
"""

import platform
import sys

from sqlalchemy import select

from service.db.engine import clock, reading
from service.db.models import Worker
from service.domain.text import is_recent

SILENT_S = 90  # a worker that measures sends a heartbeat every two seconds, an idle one at every poll


def check(host: str) -> tuple[bool, str | None]:
    """(did a worker of `host` send a heartbeat lately?, why does its sandbox not work?)"""
    with reading() as session:
        here = Worker.name.startswith(f"{host}/", autoescape=True)
        workers = select(Worker).where(here, is_recent(Worker.seen_at, clock(session), SILENT_S))
        alive = session.scalars(workers.order_by(Worker.seen_at.desc()).limit(1)).first()
        return alive is not None, alive.sandbox if alive else None


def main() -> int:
    alive, trouble = check(platform.node())
    if trouble:
        sys.stdout.write(f"The sandbox does not work: {trouble}.\n")
    return 0 if alive else 1


if __name__ == "__main__":
    sys.exit(main())
