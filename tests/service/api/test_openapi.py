"""The OpenAPI document: what generated clients are made of."""

import re

from tests.fakes.api import app_openapi


def test_an_operation_has_the_name_of_its_endpoint() -> None:
    ids = [one["operationId"] for found in app_openapi()["paths"].values() for one in found.values()]
    assert len(set(ids)) == len(ids) > 100
    assert {"list_targets", "get_run", "readyz"} <= set(ids)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", one) for one in ids)
