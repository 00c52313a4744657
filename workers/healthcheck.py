"""The health check of a worker's container: exit code 0 where the worker of this host is alive, else 1."""

import platform
import sys

from sqlalchemy import func, select

from service.db.engine import clock, reading
from service.db.models import Worker

SILENT_S = 90  # a worker that measures sends a heartbeat every two seconds, an idle one at every poll


def is_alive(host: str) -> bool:
    """Did a worker of `host` send a heartbeat lately?"""
    with reading() as session:
        here = Worker.name.startswith(f"{host}/", autoescape=True)
        seen = session.scalar(select(func.max(Worker.seen_at)).where(here))
        return seen is not None and clock(session) - seen < SILENT_S


if __name__ == "__main__":
    sys.exit(0 if is_alive(platform.node()) else 1)
