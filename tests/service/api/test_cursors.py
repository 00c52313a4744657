"""Pages of lists while rows arrive: between two pages other rows are added before, between and after those there."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from httpx import URL
from sqlalchemy.orm import Session

from service.db.engine import transaction
from service.db.models import (
    Account,
    Base,
    CodeText,
    Gap,
    Incident,
    IngestBatch,
    IngestedMeasurement,
    KernelTextRow,
    PolicyRow,
    Quarantine,
    Revision,
    Run,
    Subscription,
    Target,
)
from service.domain.states import ActorKind, GateAction, RunState, TargetKind
from service.ledger import audit
from service.ledger.studies import sessions
from tests import world
from tests.fakes.api import Api, app_openapi
from tests.service.ledger.studies.literal import session_file

Add = Callable[[Session, Target, int], Any]
Row = TypeVar("Row", bound=Base)


def scattered(number: int) -> int:
    """A place among the others that does not grow with the number."""
    return number * 7919 % 1009


def add(session: Session, row: Row) -> Row:
    session.add(row)
    session.flush()
    return row


def case(number: int) -> str:
    return f"rmsnorm.fwd.{scattered(number) + 1}x64.fp32"


def revision(session: Session, target: Target, number: int) -> Revision:
    return world.commit(session, target.id, f"{number:040}", committed_at=float(scattered(number) // 3))


def run(session: Session, target: Target, number: int, **columns: Any) -> Run:
    return world.run(session, revision(session, target, number), **columns)


def queued(session: Session, target: Target, number: int) -> None:
    state = (RunState.LEASED, RunState.QUEUED, RunState.HELD)[scattered(number) % 3]
    device = ("cpu", "h100", "h200")[scattered(number) % 7 % 3]
    run(session, target, number, state=state, device=device, priority=scattered(number) % 30)


def regression(session: Session, target: Target, number: int) -> None:
    world.regression(session, run(session, target, number), case(number))


def incident(session: Session, target: Target, number: int) -> None:
    of = revision(session, target, number)
    add(session, Incident(target_id=target.id, device="cpu", revision_id=of.id, opened_at=0.0))


def gap(session: Session, target: Target, number: int) -> None:
    last, of = run(session, target, number), world.series(session, target.id, case(number))
    ratio = 1 + scattered(number) // 100 / 10
    add(session, Gap(series_id=of, behind_sota=True, last_run_id=last.id, ratio_now=ratio, own=1.0, sota=1.0))


def drift(session: Session, target: Target, number: int) -> None:
    of = run(session, target, number)
    world.drift(session, of, of, case(number))


def change_point(session: Session, target: Target, number: int) -> None:
    at, before = revision(session, target, 2 * number), revision(session, target, 2 * number + 1)
    world.change_point(session, before, at, case(number))


def bisection(session: Session, target: Target, number: int) -> None:
    world.bisection(session, [revision(session, target, number)])


def quarantine(session: Session, target: Target, number: int) -> None:
    of = world.series(session, target.id, case(number))
    add(session, Quarantine(series_id=of, since=0.0, by="ada", reason="noisy"))


def worker(session: Session, target: Target, number: int) -> None:
    world.worker(session, f"box {scattered(number)}", seen_at=float(number))


def measurement(session: Session, target: Target, number: int) -> None:
    of = run(session, target, 0, state=RunState.DONE) if number == 0 else session.get_one(Run, 1)
    world.measured(session, of, case(number), 1.0)


def code_text(session: Session, target: Target, number: int) -> None:
    of = run(session, target, 0) if number == 0 else session.get_one(Run, 1)
    text = CodeText(target_id=target.id, sha256=f"{number:064x}", packed=b"", bytes=0)
    add(session, text)
    names = {"contender": "head:norms", "case": "rmsnorm.fwd.64x64.fp32", "kernel": "_forward", "kind": "ptx"}
    add(session, KernelTextRow(run_id=of.id, text_id=text.id, number=number, arch="", made_at=0.0, **names))


def check(session: Session, target: Target, number: int) -> None:
    world.facts_check(session, revision(session, target, number))


def verdict(session: Session, target: Target, number: int) -> None:
    of = run(session, target, 0) if number == 0 else session.get_one(Run, 1)
    world.judged(session, of, case(number))


def named_target(session: Session, target: Target, number: int) -> None:
    row = Target(name=f"t{scattered(number)}", kind=TargetKind.GIT, location=f"/{number}", created_at=0.0)
    add(session, row)


def person(session: Session, target: Target, number: int) -> None:
    who = {"issuer": "https://github.com", "subject": str(scattered(number)), "login": f"p{scattered(number)}"}
    add(session, Account(**who, created_at=0.0, signed_in_at=float(number)))


def audited(session: Session, target: Target, number: int) -> None:
    audit.record(session, "target.edit", target=target.name, of=f"target {number}")


def batch(session: Session, target: Target, number: int) -> IngestBatch:
    of: dict[str, Any] = {"device": "cpu", "tool": f"tool {scattered(number)}", "machine": "box", "sent_by": "ada"}
    return add(session, IngestBatch(target_id=target.id, stack={}, notes={}, received_at=0.0, complete=True, **of))


def ingested(session: Session, target: Target, number: int) -> None:
    of = {"target_id": target.id, "batch_id": batch(session, target, number).id, "device": "cpu", "provider": "norms"}
    case = "rmsnorm.fwd.64x64.fp32"
    add(session, IngestedMeasurement(**of, case=case, revision=f"c{scattered(number)}", median=1.0, samples="[1.0]"))


def policy(session: Session, target: Target, number: int) -> None:
    add(session, PolicyRow(digest=f"{scattered(number):064}", values={}, created_at=0.0))


def subscription(session: Session, target: Target, number: int) -> None:
    of: dict[str, Any] = {"channel": f"c{scattered(number)}", "severity": GateAction.WARN, "created_by": "ada"}
    add(session, Subscription(target_id=target.id, owner_kind=ActorKind.LOCAL, created_at=0.0, **of))


def study_session(session: Session, target: Target, number: int) -> None:
    day = f"2026-11-20T03:{scattered(number) // 60:02}:{scattered(number) % 60:02}+00:00"
    file = session_file()
    sessions.store(session, replace(file, session=replace(file.session, began=day), records=()))


LISTS: dict[str, Add] = {
    "/subscriptions": subscription,
    "/targets": named_target,
    "/targets/{name}/revisions": revision,
    "/targets/{name}/runs": run,
    "/targets/{name}/regressions": regression,
    "/targets/{name}/incidents": incident,
    "/incidents": incident,
    "/targets/{name}/gaps": gap,
    "/targets/{name}/drifts": drift,
    "/targets/{name}/change-points": change_point,
    "/runs": run,
    "/runs/{run_id}/measurements": measurement,
    "/runs/{run_id}/verdicts": verdict,
    "/runs/{run_id}/code": code_text,
    "/targets/{name}/cases": measurement,
    "/targets/{name}/series/keys": measurement,
    "/targets/{name}/facts": check,
    "/targets/{name}/ingested": batch,
    "/targets/{name}/ingested/series?device=cpu&provider=norms&case=rmsnorm.fwd.64x64.fp32": ingested,
    "/regressions": regression,
    "/bisections": bisection,
    "/quarantines": quarantine,
    "/policies": policy,
    "/queue": queued,
    "/workers": worker,
    "/people": person,
    "/audit": audited,
    "/studies/s3/sessions": study_session,
}


@pytest.mark.parametrize("path", LISTS)
def test_no_row_is_lost_or_given_twice_while_others_arrive(state: object, path: str) -> None:
    target = world.target(name="norms")
    arrive, number = LISTS[path], 0
    reader = Api().with_key("admin")

    def let_arrive(count: int) -> None:
        nonlocal number
        with transaction() as session:
            for _ in range(count):
                arrive(session, session.get_one(Target, target.id), number)
                number += 1

    def page(cursor: str | None, limit: int) -> dict[str, Any]:
        sent = {"limit": limit} | ({"cursor": cursor} if cursor is not None else {})
        answer = reader.get(str(URL(path.format(name="norms", run_id=1)).copy_merge_params(sent)))
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    let_arrive(9)
    there = {json.dumps(one) for one in page(None, 200)["items"]}
    seen, cursor = list[str](), ""  # as a form without one sends it
    while True:
        found = page(cursor, 2)
        seen += [json.dumps(one) for one in found["items"]]
        if (cursor := found["next"]) is None or len(seen) > 60:
            break
        let_arrive(1)
    assert len(there) >= 9
    assert len(seen) == len(set(seen)), "an item was given twice"
    assert there <= set(seen), "an item was lost"


def test_every_list_of_the_api_is_tested_here() -> None:
    paths = app_openapi()["paths"]
    paged = {
        path.removeprefix("/api/v1")
        for path, found in paths.items()
        if any(one["name"] == "cursor" for one in found.get("get", {}).get("parameters", ()))
    }
    assert paged == {path.partition("?")[0].replace("/s3/", "/{name}/") for path in LISTS}


@pytest.mark.parametrize(
    "cursor",
    ["zzz", "W10", "WyJ4Il0", "WzEuNV0", "W3RydWVd", "W251bGxd", "WzFlOTk5XQ", "WzEsMl0", "W1sxXV0", "W" * 1000],
)
def test_a_cursor_of_another_list_is_refused(either: str, cursor: str) -> None:
    world.target(name="norms")
    answer = Api().get("/targets/norms/runs", params={"cursor": cursor})
    assert answer.status_code == 422
    assert "use `next` of the page before" in answer.json()["detail"]


def test_limits_and_parameters_that_do_not_exist_are_refused(state: object) -> None:
    api = Api()
    for wrong, said in {
        "limit=0": "limit",
        "limit=201": "limit",
        "limt=5": "There is no parameter 'limt' here: this address takes the parameters cursor, expand, limit, state.",
    }.items():
        answer = api.get(f"/regressions?{wrong}")
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
    assert "takes no parameters" in api.with_key("admin").post("/keys?a=1", {}).json()["detail"]
    assert "takes the parameter " in api.get("/runs/1?table=true").json()["detail"]
