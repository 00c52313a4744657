"""Does the worker of this host tell the ledger that it lives?  The health check of its container: exit code 0 or 1."""

import platform
import sys

from sqlalchemy import func, select

from service.db.engine import clock, reading
from service.db.models import Worker

SILENT_S = 90  # a worker that measures says so every two seconds, an idle one at every look


def alive(host: str) -> bool:
    """Was a worker of `host` seen lately?"""
    with reading() as session:
        here = Worker.name.startswith(f"{host}/", autoescape=True)
        seen = session.scalar(select(func.max(Worker.seen_at)).where(here))
        return seen is not None and clock(session) - seen < SILENT_S


if __name__ == "__main__":
    sys.exit(0 if alive(platform.node()) else 1)
