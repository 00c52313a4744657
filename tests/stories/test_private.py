"""A private target, with a row in every table, is found by nobody who may not read it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from dashboards.site.export import export_site
from service.db.engine import reading, transaction
from service.db.models import Account, Run, Target, Worker
from service.domain.exports import Exportable
from service.ledger.access import sign_ins
from tests import every_table, world
from tests.big.routes import addresses
from tests.dashboards import seed_deciding
from tests.dashboards.seed import watched
from tests.every_table import CASE, DIGEST, MARK, MARKS, NAME, SHA
from tests.fakes.api import Api

WATCHED = f"{MARK}-norms"  # private as well, and watched for days
CHANGING = ("/metrics?", "/healthz?", "/readyz?")  # from one request to the next
# What nobody has, by what is private: the answers about both are the same.
UNKNOWN = {
    MARK: "zj8k",
    SHA: "6ed8e8" * 6 + "feeb",
    CASE: "rmsnorm.fwd.6919x6907.bf16-fp32",
    every_table.IDS: "88811",
    DIGEST: "9" * 64,
}
Rows = Mapping[str, Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """The rows of the private target, next to a private one that was watched for days, and a public one."""
    with watched(tmp_path_factory.mktemp("state"), seed_deciding.seed):
        world.target(name="open")
        with transaction() as session:
            session.execute(update(Target).where(Target.name != "open").values(private=True))
            session.execute(update(Target).where(Target.name == "norms").values(name=WATCHED))
            made = every_table.filled(session)
        yield made


@pytest.fixture(scope="module")
def api(rows: Rows) -> Api:
    return Api()


class Person(Api):
    """Somebody who has signed in in a browser."""

    def request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        cookie = {"Cookie": f"{sign_ins.cookie_name()}={self.key}"}
        return Api(None, self.app).request(method, path, headers=cookie | (headers or {}), **options)


def signed_in(api: Api) -> Api:
    with transaction() as session:
        stranger = Account(issuer="https://id", subject="1", login="stranger", created_at=0.0, signed_in_at=0.0)
        session.add(stranger)
        session.flush()
        return Person(sign_ins.begin(session, stranger), api.app)


STRANGERS = {
    "nobody": lambda api: api,
    "person": signed_in,
    "other target": lambda api: api.with_key("read:open", "run:open", "triage:open", name="other"),
    "ingest": lambda api: api.with_key("ingest:open", name="ingest"),
    "worker": lambda api: api.with_key("worker", name="worker"),
}


def names(rows: Rows) -> dict[str, tuple[str, ...]]:
    """What is private, by the parameters that name it."""
    ids = {table: str(row.id) for table, row in rows.items() if hasattr(row, "id")}
    return {
        **dict.fromkeys(("name", "target"), (NAME,)),
        **dict.fromkeys(("sha", "revision", "base", "head", "at", "a", "b"), (SHA,)),
        **dict.fromkeys(("by", "assignee", "worker"), (f"{MARK}-regressions-assignee",)),
        **{f"{table.removesuffix('s')}_id": (found,) for table, found in ids.items()},
        "q": (NAME, SHA, CASE, f"{MARK}-revisions-subject"),
        "case": (CASE,),
        "device": (f"{MARK}-device",),
        "provider": (MARK,),
        "contender": (f"head:{MARK}",),
        "sha256": (rows["code_texts"].sha256,),
        "digest": (DIGEST,),
        "run": (ids["runs"],),
        "pulls": ("1",),
        "runs": (ids["runs"],),
        "regressions": (ids["regressions"],),
        "incidents": (ids["incidents"],),
        "what": tuple(Exportable),
        "form": ("svg", "json"),
        "kind": ("ptx",),
        "part": ("gaps", "small"),
        "week": ("2026-W40",),
    }


def unknown(text: str) -> str:
    """The text with what nobody has in the place of what is private."""
    for private, other in UNKNOWN.items():
        text = text.replace(private, other)
    return text


def untimed(text: str) -> str:
    """The text without ages: a second may pass between two answers."""
    return re.sub(r"\b\d+ (s|min) ago\b", "just now", text)


def without_typed(text: str, address: str) -> str:
    """The text without the words of the request, which it may repeat."""
    for word in sorted(re.findall(r"[\w.:-]{5,}", address.replace(".atom", "")), key=len, reverse=True):
        text = text.replace(word, "")
    return text


def test_every_text_of_the_target_can_be_recognised(rows: Rows) -> None:
    # A form that pages read, all cases of a suite, and numbers.
    without_text = {"facts_checks.findings", "runs.only_cases", "ingested_measurements.samples"}
    assert every_table.unmarked(rows) == without_text


@pytest.mark.parametrize(
    "who", [pytest.param(who, marks=[pytest.mark.every_run] if who == "nobody" else []) for who in STRANGERS]
)
def test_whoever_may_not_read_it_is_answered_as_if_it_did_not_exist(rows: Rows, api: Api, who: str) -> None:
    reader = STRANGERS[who](api)
    every = sorted(set(addresses(api.app, names(rows))))
    assert len(every) > 300
    for address in every:
        answer, other = reader.at(address), reader.at(unknown(address))
        assert answer.status_code == other.status_code, address
        if not address.startswith(CHANGING):
            assert untimed(unknown(answer.text)) == untimed(other.text), address
        shown = re.sub(r" \S+$", "", answer.text, flags=re.MULTILINE) if "/metrics" in address else answer.text
        found = [mark for mark in MARKS if mark in without_typed(shown, address)]  # a number may hold any digits
        assert not found, (address, found)


@pytest.mark.parametrize("scope", [f"read:{NAME}", "admin"])
def test_its_readers_see_it(rows: Rows, api: Api, scope: str) -> None:
    reader = api.with_key(scope, name="reader")
    answers = {address: reader.at(address) for address in set(addresses(api.app, names(rows)))}
    assert not {address: one.text[:300] for address, one in answers.items() if one.status_code == 500}
    seen = [address for address, one in answers.items() if MARK in without_typed(one.text, address)]
    assert len(seen) > 100
    assert {"/?", "/api/v1/targets?", f"/targets/{NAME}?"} <= {*seen}


def test_a_published_site_has_nothing_of_it(rows: Rows, api: Api, tmp_path: Path) -> None:
    with transaction() as session:
        session.execute(update(Target).where(Target.name == WATCHED).values(private=False, name="norms"))
    try:
        export_site(tmp_path / "site", address="https://example.org/site")
    finally:
        with transaction() as session:
            session.execute(update(Target).where(Target.name == "norms").values(private=True, name=WATCHED))
    files = [one for one in (tmp_path / "site").rglob("*") if one.is_file()]
    assert any(b"rmsnorm" in one.read_bytes() for one in files)
    assert not [(one, mark) for one in files for mark in MARKS if mark.encode() in one.read_bytes()]


def test_counts_are_those_of_an_empty_server(api: Api) -> None:
    metrics = api.at("/metrics").text
    for name in (
        "runs",
        "verdicts_last_day",
        "run_seconds_last_day",
        "outbox_messages",
        "regressions",
        "quarantined_cases",
        "queue_age_seconds",
    ):
        assert not re.search(rf"^kernelwatch_{name}{{", metrics, re.MULTILINE), name
    for path in ("/runs", "/regressions", "/bisections", "/quarantines", "/queue"):
        answer = api.get(path)
        assert answer.status_code == 404 or answer.json()["items"] == [], answer.text
    for path in ("/regressions", "/bisections", "/targets/open"):
        assert not re.search(r"<span>[1-9]\d*</span>|[1-9]\d* (open regression|behind)", api.at(path).text), path


def test_a_worker_names_no_run_that_is_hidden(api: Api) -> None:
    with transaction() as session:
        [run_id] = session.scalars(select(Run.id).order_by(Run.id).limit(1))
        session.execute(update(Worker).values(run_id=run_id))
    for reader, named in ((api, None), (api.with_key("run:open"), None), (api.with_key(f"read:{WATCHED}"), run_id)):
        assert {one["run_id"] for one in reader.get("/workers").json()["items"]} == {named}
        assert (f'href="/runs/{run_id}"' in reader.at("/workers").text) is (named is not None)
        assert f'href="/runs/{run_id}"' not in reader.at("/").text
    with reading() as session:
        assert set(session.scalars(select(Worker.run_id))) == {run_id}, "the rows keep it"
