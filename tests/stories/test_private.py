"""A private target, with everything that days of watching leave behind, is found by nobody who may not read it."""

import re
from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from dashboards.pages import MODULES
from service.db.engine import reading, transaction
from service.db.models import Bisection, Incident, RegressionRow, Revision, Run, Subscription, Target, Worker
from service.db.visibility import hidden_tables
from service.domain.exports import Exportable
from service.domain.notices import EventKind, NotableEvent
from service.domain.states import ActorKind, GateAction
from service.ledger.notices.happenings import record
from tests import world
from tests.dashboards import seed_deciding
from tests.dashboards.seed import watched
from tests.fakes.api import Api

NAME = "zq-secret"
MOST = 6  # addresses of one path
WITHOUT_TARGETS = {"/sign-in", "/sign-in/{name}", "/sign-in/{name}/callback"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An app with one private target, which was watched for days, and a public one without any run."""
    with watched(tmp_path_factory.mktemp("state"), seed_deciding.seed):
        with transaction() as session:
            session.execute(update(Target).values(private=True))
            session.execute(update(Target).where(Target.name == "norms").values(name=NAME))
            watched_one = session.scalars(select(Target).where(Target.name == NAME)).one()
            _subscribed(session, watched_one)
        world.target(name="open")
        yield Api()


def _subscribed(session: Session, target: Target) -> None:
    """A channel named as the target is subscribed to it, and an event waits for it."""
    told = Subscription(channel=NAME, target_id=target.id, severity=GateAction.WARN, created_at=0.0, created_by=NAME)
    told.owner_kind = ActorKind.LOCAL
    session.add(told)
    session.flush()
    event = NotableEvent(EventKind.TARGET_UNREACHABLE, 0.0, target=NAME)
    record(session, event, target_id=target.id, subject="source", key="lost")


def paths_of(router: APIRouter) -> list[str]:
    """Every path below a router, with those of the routers in it."""
    found = []
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        found += paths_of(inner) if inner is not None else [route.path] if "GET" in route.methods else []
    return found


def filled(path: str) -> list[str]:
    """Some addresses of what there is, and those of all exports, for one path with parameters."""
    with reading() as session:
        ids = {
            "run_id": list(session.scalars(select(Run.id))),
            "regression_id": list(session.scalars(select(RegressionRow.id))),
            "incident_id": list(session.scalars(select(Incident.id))),
            "bisection_id": list(session.scalars(select(Bisection.id))),
            "name": [NAME],
            "sha": list(session.scalars(select(Revision.sha)))[:3],
            "what": list(Exportable),
        }
    names = re.findall(r"{(\w+)}", path)
    found = [path]
    for name in names:
        found = [one.replace(f"{{{name}}}", str(value)) for one in found for value in ids.get(name, [])]
    return found if "what" in names else found[:MOST]


def secrets() -> list[str]:
    """Words by which the private target would be recognised."""
    with reading() as session:
        shas = [sha[:7] for sha in session.scalars(select(Revision.sha)) if len(sha) == 40]
        return [NAME, *shas, *session.scalars(select(Revision.subject).distinct())]


def every_address(api: Api) -> list[str]:
    documents = [path for path, verbs in api.at("/openapi.json").json()["paths"].items() if "get" in verbs]
    every = {*documents, *(path for module in MODULES for path in paths_of(module.router))} - WITHOUT_TARGETS
    return sorted(one for one in every if "/studies/" not in one)  # their names are those of published results


def test_the_story_has_something_to_hide(api: Api) -> None:
    """Every table that can be hidden has rows here, or the other tests prove little."""
    with reading() as session:
        rows = {one.__tablename__: session.scalar(select(func.count()).select_from(one)) for one in hidden_tables()}
    empty = {table for table, n in rows.items() if not n}
    not_seeded = {"facts_checks", "key_grants", "pulls", "pushes", "roles"}
    assert empty <= not_seeded | {"ingest_batches", "ingested_measurements"}


def test_no_page_and_no_document_shows_it(api: Api) -> None:
    words = secrets()
    required = "case=rmsnorm.fwd.4096x1024.bf16-fp32&provider=norms&device=h200&base=main&head=main"
    seen = 0
    asked = ((api, ("", f"?{required}", f"?target={NAME}")), (api.with_key("run:open", "ingest:open"), ("",)))
    for reader, queries in asked:
        for path in every_address(api):
            for address in filled(path):
                for query in queries:
                    answer = reader.at(address + query)
                    leaks = [word for word in words if word in answer.text.replace(address, "").replace(query[1:], "")]
                    detail = answer.text[:300]
                    assert not [word for word in leaks if f"No target {word}." not in answer.text], (
                        address,
                        leaks,
                        detail,
                    )
                    assert answer.status_code < 500, (address, detail)
                    seen += 1
    assert seen > 100


def test_what_belongs_to_it_answers_as_if_it_did_not_exist(api: Api) -> None:
    for path in every_address(api):
        if re.search(r"{(run_id|regression_id|incident_id|bisection_id|name)}", path):
            for address in filled(path):
                assert api.at(address).status_code in (404, 422), address


def test_its_readers_see_it(api: Api) -> None:
    reader = api.with_key(f"read:{NAME}")
    assert reader.at(f"/targets/{NAME}").status_code == 200
    assert NAME in reader.at("/").text
    assert NAME in reader.get("/queue").text


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
    for reader, named in ((api, None), (api.with_key("run:open"), None), (api.with_key(f"read:{NAME}"), run_id)):
        assert {one["run_id"] for one in reader.get("/workers").json()["items"]} == {named}
        assert (f'href="/runs/{run_id}"' in reader.at("/workers").text) is (named is not None)
        assert f'href="/runs/{run_id}"' not in reader.at("/").text
    with reading() as session:
        assert set(session.scalars(select(Worker.run_id))) == {run_id}, "the rows keep it"
