"""Keys, scopes, private targets and the audit log, as programs elsewhere meet them."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, select

from service.db.engine import clock, reading, transaction
from service.db.models import ApiKey, KeyGrant
from service.ledger import stored_texts
from service.settings import settings
from tests import world
from tests.fakes.api import Api, new_key

pytestmark = pytest.mark.usefixtures("state")


def test_everybody_reads_and_only_keys_change() -> None:
    api = Api()
    assert api.get("/targets").status_code == 200
    refused = api.post("/keys", {"name": "CI", "scopes": ["read"]})
    assert refused.status_code == 401
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["title"] == "Unauthorized"
    assert "Authorization: Bearer KEY" in refused.json()["detail"]


def test_an_administrator_makes_a_key_that_is_shown_once_and_stored_as_a_hash() -> None:
    world.target(name="norms")
    admin = Api().with_key("admin")
    made = admin.post("/keys", {"name": "CI of norms", "scopes": ["run:norms", "triage:norms"]})
    assert made.status_code == 201
    key = made.json()["key"]
    assert key.startswith(made.json()["prefix"] + "_")

    [listed, _] = admin.get("/keys").json()["items"]
    assert listed["scopes"] == ["run:norms", "triage:norms"]
    assert "key" not in listed
    with reading() as session:
        assert all(key not in str(vars(row)) for row in session.query(ApiKey))


@pytest.mark.parametrize(
    ("scopes", "why"),
    [
        (["write"], "'write' is no scope. Use one of read, ingest, run, triage, worker, admin"),
        (["run:nowhere"], "No target nowhere."),
        (["admin:norms"], "admin cannot be limited to a target"),
    ],
)
def test_a_scope_that_does_not_exist_is_refused(scopes: list[str], why: str) -> None:
    world.target(name="norms")
    answer = Api().with_key("admin").post("/keys", {"name": "CI", "scopes": scopes})
    assert answer.status_code in (404, 422), answer.text
    assert why in answer.json()["detail"]


def test_a_key_of_a_user_makes_no_keys() -> None:
    world.target(name="norms")
    user = Api().with_key("run:norms", "triage:norms", "read", "worker", "ingest:norms")
    for answer in (
        user.post("/keys", {"name": "more", "scopes": ["run:norms"]}),
        user.get("/keys"),
        user.get("/audit"),
    ):
        assert answer.status_code == 403
        assert answer.json()["detail"] == "CI does not have the scope admin. An administrator can grant it to a key."


def test_a_revoked_key_is_refused_at_the_next_request() -> None:
    admin, user = Api().with_key("admin"), Api().with_key("read")
    assert user.get("/targets").status_code == 200
    prefix = (user.key or "")[:13]
    assert admin.post(f"/keys/{prefix}/revoke").json()["revoked_by"] == "CI"
    refused = user.get("/targets")
    assert refused.status_code == 401
    assert f"The key {prefix} was revoked" in refused.json()["detail"]


def expire(key: str | None) -> None:
    """Let a key expire now."""
    with transaction() as session:
        row = session.execute(select(ApiKey).where(ApiKey.prefix == (key or "")[:13])).scalar_one()
        row.expires_at = clock(session)


def test_rotation_gives_a_new_key_and_ends_the_old_one_later() -> None:
    world.target(name="norms")
    admin, user = Api().with_key("admin"), Api().with_key("run:norms")
    prefix = (user.key or "")[:13]
    made = admin.post(f"/keys/{prefix}/rotate", {"overlap_s": 3600}).json()
    assert made["scopes"] == ["run:norms"]
    successor = Api(made["key"], user.app)
    assert user.get("/targets").status_code == successor.get("/targets").status_code == 200
    [old] = [one for one in admin.get("/keys").json()["items"] if one["prefix"] == prefix]
    left_s = (datetime.fromisoformat(old["expires_at"]) - datetime.now(UTC)).total_seconds()
    assert 3000 < left_s <= 3600
    expire(user.key)
    assert user.get("/targets").status_code == 401
    assert successor.get("/targets").status_code == 200
    assert admin.post(f"/keys/{prefix}/rotate").status_code == 403


def test_an_expired_key_is_refused() -> None:
    user = Api().with_key("read")
    assert user.get("/targets").status_code == 200
    expire(user.key)
    assert "has expired" in user.get("/targets").json()["detail"]


@pytest.mark.parametrize("sent", ["Bearer kw_0000000000_wrong", "Bearer nonsense", "Basic dTpw", "Bearer"])
def test_a_key_that_is_not_one_is_refused_even_where_none_is_needed(sent: str) -> None:
    answer = Api().get("/targets", headers={"Authorization": sent})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_guess_of_a_known_prefix_is_refused() -> None:
    key = new_key("admin")
    assert Api(key[:-1] + ("a" if key[-1] != "a" else "b")).get("/targets").status_code == 401


def test_reading_may_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    world.target(name="norms")
    monkeypatch.setenv("KERNELWATCH_PUBLIC_READ", "false")
    settings.cache_clear()
    api = Api()
    assert api.get("/targets").status_code == 401
    assert api.get("/targets/norms").status_code == 401
    assert [one["name"] for one in api.with_key("run:norms").get("/targets").json()["items"]] == ["norms"]


def test_nothing_reveals_a_private_target() -> None:
    """Names, counts, addresses, search and metrics are as if it did not exist."""
    world.target(name="norms")
    secret = world.target(name="secret", private=True)
    with transaction() as session:
        run = world.run(session, world.commit(session, secret.id, 1))
        world.measured(session, run, "rmsnorm.fwd.4x4.fp32", 1.0)
        run_id = run.id
        stored_texts.keep_log(session, run_id, "compiling the secret")
    api = Api()
    assert api.with_key("admin").get(f"/runs/{run_id}/log").text == "compiling the secret"
    for reader in (api, api.with_key("run:norms"), api.with_key("worker")):
        assert [one["name"] for one in reader.get("/targets").json()["items"]] == ["norms"]
        assert reader.get("/queue").json()["items"] == []
        missing, never = reader.get("/targets/secret"), reader.get("/targets/nothing")
        assert missing.json()["detail"].replace("secret", "") == never.json()["detail"].replace("nothing", "")
        for path in (f"/runs/{run_id}", f"/runs/{run_id}/comment", f"/runs/{run_id}/log", "/bisections?target=secret"):
            assert reader.get(path).status_code == 404, path
        assert "secret" not in reader.at("/metrics").text
        assert 'kernelwatch_runs{device="cpu",state="queued"}' not in reader.at("/metrics").text
    for reader in (
        api.with_key("read:secret"),
        api.with_key("read"),
        api.with_key("admin"),
        api.with_key("run:secret"),
    ):
        assert reader.get(f"/runs/{run_id}").json()["target"] == "secret"
        assert [one["id"] for one in reader.get("/queue").json()["items"]] == [run_id]


def test_a_permission_lost_between_two_requests_is_lost() -> None:
    world.target(name="secret", private=True)
    user = Api().with_key("read:secret")
    assert user.get("/targets/secret").status_code == 200
    with transaction() as session:
        session.execute(delete(KeyGrant))
    assert user.get("/targets/secret").status_code == 404


def test_what_was_changed_is_in_the_audit_log() -> None:
    admin = Api().with_key("admin", name="ada")
    made = admin.post("/keys", {"name": "CI", "scopes": ["read"]}).json()
    admin.post(f"/keys/{made['id']}/revoke")
    revoked, created, first = admin.get("/audit").json()["items"]
    assert (revoked["action"], revoked["actor"], revoked["object"]) == ("key.revoke", "ada", f"key {made['prefix']}")
    assert (created["action"], created["address"], created["details"]["scopes"]) == (
        "key.create",
        "127.0.0.1",
        ["read"],
    )
    assert (first["actor_kind"], first["actor"]) == ("local", "root")
    assert [one["id"] for one in admin.get("/audit?action=key.revoke").json()["items"]] == [revoked["id"]]
