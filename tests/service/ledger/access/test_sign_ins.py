"""A link to sign in begins a session once, within ten minutes."""

from pathlib import Path

import pytest
from sqlalchemy import update

from service.db.engine import transaction
from service.db.models import Account, SignIn
from service.ledger.access import sign_ins


@pytest.mark.parametrize(("age_s", "works"), [(0.0, True), (590.0, True), (610.0, False)])
def test_a_link_works_once_for_ten_minutes(state: Path, age_s: float, works: bool) -> None:
    with transaction() as session:
        ada = Account(login="ada", admin=False, issuer="x", subject="1", created_at=0.0, signed_in_at=0.0)
        session.add(ada)
        session.flush()
        code = sign_ins.link_code(session, ada)
        session.flush()
        session.execute(update(SignIn).values(expires_at=SignIn.expires_at - age_s))
    for again in (False, True):
        with transaction() as session:
            assert (sign_ins.account_of_code(session, code) is not None) is (works and not again)
