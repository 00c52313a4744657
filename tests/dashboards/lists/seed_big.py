"""The large database made small, as `watched` wants it: a function with a name."""

from sqlalchemy.orm import Session

from tests.big import seed
from tests.big.seeder import Places
from tests.big.story import SMALL


def small(session: Session, _now: float) -> Places:
    return seed.seed(session, SMALL)
