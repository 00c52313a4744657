"""A key or a webhook's secret leaked: the commands of docs/keys.md find what was done with it, and end it."""

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from service.db.engine import transaction
from service.settings import settings
from tests import world
from tests.fakes.api import Api, new_key
from tests.fakes.contracts import webhooks
from tests.fakes.processes import ROOT
from tests.shell import kernelwatch

PAGE = (ROOT / "docs/keys.md").read_text()


def commands(heading: str) -> list[str]:
    chapter = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.partition("#")[0].strip() for line in re.findall(r"^kernelwatch (.+)$", chapter, re.MULTILINE)]


def test_a_leaked_key_and_what_it_made_end(state: Path) -> None:
    world.target("[providers]")
    leaked = new_key("admin", name="CI")
    made = Api(leaked).post("/keys", {"name": "backdoor", "scopes": ["read"]}).json()
    assert Api(leaked).get("/targets").status_code == 200

    listed, revoke, by_key, made_keys, create = (
        one.replace("kw_0123456789", leaked[:13]) for one in commands("When a key leaks")
    )
    assert leaked[:13] in kernelwatch(listed).output
    kernelwatch(revoke)
    assert Api(leaked).get("/targets").status_code == 401
    assert "key.create" in kernelwatch(by_key).output
    [other] = re.findall(r"kw_\w+", kernelwatch(made_keys).output)
    kernelwatch("key", "revoke", other)
    assert Api(made["key"]).get("/targets").status_code == 401
    successor = kernelwatch(create).stdout.strip()
    assert Api(successor).get("/targets").status_code == 200
    assert Api(successor).post("/keys", {"name": "more", "scopes": ["read"]}).status_code == 403


@pytest.fixture
def sent(state: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], int]:
    """Post a delivery signed with the second secret to an API that has the first: the status."""

    def post(accepted: str, secret: str) -> int:
        monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", accepted)
        settings.cache_clear()
        ping = webhooks.from_github("ping", {"zen": "Keep it short."}, guid=str(uuid.uuid4()), secret=secret)
        return Api().request("POST", "/webhooks/github", below="", **ping).status_code

    return post


def test_a_leaked_webhook_secret_is_refused_and_its_runs_end(sent: Callable[[str, str], int]) -> None:
    leaked, new = "leaked-leaked", "another-one"
    assert sent(leaked, leaked) == 202
    assert sent(new, leaked) == 401
    assert sent(new, new) == 202

    target = world.target("[providers]")
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1))
        run_id = run.id
    listed, cancel = commands("When a webhook's secret leaks")
    kernelwatch(cancel.replace("7", str(run_id)))
    assert "run.cancel" in kernelwatch(listed).output
