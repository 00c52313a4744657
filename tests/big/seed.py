"""Fills a database with years of a busy, hostile service: 14 targets, 300 revisions of one with 206 cases, and more.

python -m tests.big.seed --measurements 10000000    # into the database of the settings
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from service.db import migrate
from service.db import models as m
from service.db.engine import clock, transaction
from service.domain.policy.policy import Policy
from tests import world
from tests.big import others
from tests.big.bulk import Bulk
from tests.big.matters import Matters
from tests.big.multiply import multiply, release_ids, reserve_ids
from tests.big.seeder import Places, Seeder
from tests.big.story import DAY, Size, Story


def seed(session: Session, size: Size | None = None, measurements: int = 0) -> Places:
    """Fill an empty database, in the caller's transaction, with about as many `measurements` as named."""
    if measurements:
        reserve_ids(session)
    now = clock(session)
    seeder = Seeder(session, Story(size or Size()), now, Bulk(session))
    policy = Policy(smallest_change=0.02)
    seeder.policy_id = seeder.add(
        m.PolicyRow(digest=policy.digest, values=policy.model_dump(mode="json"), created_at=now - 200 * DAY)
    ).id
    for place, (torch, quack, driver) in enumerate((("2.12.1", "0.6.4", "590.44"), ("2.13.0", "0.6.5", "595.12"))):
        versions = {"python": "3.12.3", "torch": f"{torch}+cu130", "triton": "3.7.1", "cuda": "13.0", "driver": driver}
        stack = m.Stack(digest=str(place) * 64, versions=versions | {"quack": quack, "liger": "0.8.5"})
        seeder.stacks.append(seeder.add(stack).id)
    seeder.mainline()
    Matters(seeder).write()
    others.pulls(seeder)
    others.package(seeder)
    others.hostile(seeder)
    others.teams(seeder)
    seeder.bulk.flush()
    if measurements:
        release_ids(session)
    world.totalled(session)
    if measurements:
        multiply(session.connection(), measurements)
    seeder.places.measurements = session.execute(select(func.count()).select_from(m.Measurement)).scalar_one()
    return seeder.places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=int, default=0, help="about how many; by default some 430,000")
    parser.add_argument("--places", type=Path, help="write to this file where things are, for the studies of pages")
    given = parser.parse_args()
    began = time.monotonic()
    migrate.upgrade()
    with transaction() as session:
        places = seed(session, measurements=given.measurements)
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("ANALYZE"))
    if given.places:
        given.places.write_text(json.dumps(asdict(places)) + "\n")
    print(places, f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
