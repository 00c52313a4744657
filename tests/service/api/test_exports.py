"""Exports have what the API's documents have, in every format, and only what their reader may see."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from pyarrow import parquet

from service.api.access import Credentials
from service.api.reading import exports
from service.db import models as m
from service.db.engine import reading, transaction
from service.domain.exports import Exportable, FileFormat
from service.domain.states import SearchState
from service.ledger.reading import exports as rows
from service.ledger.reading.exports import KINDS, ExportFilter
from service.reports.encoders import flat_columns, text_of_cell
from tests import world
from tests.dashboards.seed import Seeded
from tests.fakes.api import Api

TARGET, OTHER = "norms", "liger"  # the other one has no row
SENT = {
    "batch": {"tool": "triton.testing 3.6", "machine": "ci-runner-7", "device": "h200", "stack": {"torch": "2.11.0"}},
    "measurement": {
        "revision": "1f3a9c2",
        "provider": "norms",
        "case": "rmsnorm.fwd.4096x1024.bf16-fp32",
        "samples": [7.0, 7.2, 7.1],
    },
}


@pytest.fixture(scope="module")
def api(decided: Seeded) -> Api:
    """An administrator of a server that has at least one row of everything."""
    admin = Api().with_key("admin", "ingest:norms")
    body = json.dumps({"batch": SENT["batch"]}) + "\n" + json.dumps(SENT["measurement"]) + "\n"
    headers = {"Content-Type": "application/x-ndjson"}
    made = admin.request("POST", f"/targets/{TARGET}/ingested", content=body.encode(), headers=headers)
    assert made.status_code == 201, made.text
    with transaction() as session:
        target = session.query(m.Target).filter_by(name=TARGET).one()
        old, new = session.query(m.Revision).filter_by(target_id=target.id).order_by(m.Revision.ordinal)[:2]
        new.subject = '=HYPERLINK("http://example.org")\n"quoted", naïve'
        world.facts_check(session, new, old.sha)
        world.bisection(session, [old, new], "rmsnorm.fwd.4096x1024.bf16-fp32", state=SearchState.STOPPED)
        session.add(m.Account(issuer="https://github.com", subject="1", login="ada", created_at=1.0, signed_in_at=2.0))
    return admin


def everything(api: Api, path: str, **params: Any) -> list[dict[str, Any]]:
    """All items of a list of the API."""
    found, cursor = [], None
    while True:
        page = api.get(path, params=params | ({"cursor": cursor} if cursor else {}) | {"limit": 100}).json()
        found += page["items"]
        if (cursor := page.get("next")) is None:
            return found


def of_runs(api: Api, part: str) -> Iterator[dict[str, Any]]:
    """The items of a list of each run, with the fields that name the run."""
    for run in everything(api, "/runs"):
        context = {"run_id": run["id"]} | {
            name: run[name] for name in ("target", "revision", "device", "purpose", "pull")
        }
        for item in everything(api, f"/runs/{run['id']}/{part}"):
            yield context | item


def samples(api: Api) -> Iterator[dict[str, Any]]:
    for one in of_runs(api, "measurements"):
        path = f"/runs/{one['run_id']}/samples"
        document = api.get(path, params={"contender": one["contender"], "case": one["case"]}).json()
        for phase in ("screening", "confirmation"):
            for trial, rounds in enumerate(document[phase], 1):
                for number, value in enumerate(rounds, 1):
                    names = ("run_id", "target", "revision", "device", "contender", "role", "provider", "case", "unit")
                    yield {name: one[name] for name in names} | {
                        "phase": phase,
                        "trial": trial,
                        "round": number,
                        "value": value,
                    }


def of_target(path: str, **params: Any) -> Callable[[Api], list[dict[str, Any]]]:
    return lambda api: everything(api, f"/targets/{TARGET}/{path}", **params)


def calibrations(_: Api) -> list[dict[str, Any]]:
    with reading() as session:
        rows = session.query(m.Calibration).order_by(m.Calibration.id.desc())
        return [{"id": row.id, "case": row.case, "ratio": row.ratio, "alarmed": row.alarmed} for row in rows]


# The documents of the API of which an export has every field.
LISTS: dict[Exportable, Callable[[Api], Any]] = {
    Exportable.TARGETS: lambda api: everything(api, "/targets", expand="counts"),
    Exportable.REVISIONS: lambda api: [
        {name: value for name, value in one.items() if name != "runs"} for one in of_target("revisions")(api)
    ],
    Exportable.RUNS: lambda api: everything(api, "/runs", expand="counts"),
    Exportable.MEASUREMENTS: lambda api: of_runs(api, "measurements"),
    Exportable.SAMPLES: samples,
    Exportable.VERDICTS: lambda api: of_runs(api, "verdicts"),
    Exportable.REGRESSIONS: lambda api: everything(api, "/regressions", expand="events"),
    Exportable.INCIDENTS: of_target("incidents", closed=True),
    Exportable.CHANGE_POINTS: of_target("change-points"),
    Exportable.BISECTIONS: lambda api: everything(api, "/bisections"),
    Exportable.GAPS: of_target("gaps"),
    Exportable.DRIFTS: of_target("drifts"),
    Exportable.FACTS_CHECKS: of_target("facts"),
    Exportable.INGESTED: lambda api: [
        {name: batch[name] for name in ("tool", "machine", "device", "stack", "sent_by")}
        | {name: SENT["measurement"][name] for name in ("revision", "provider", "case", "samples")}
        for batch in everything(api, f"/targets/{TARGET}/ingested")
    ],
    Exportable.WORKERS: lambda api: everything(api, "/workers"),
    Exportable.CALIBRATIONS: calibrations,
    Exportable.QUARANTINES: lambda api: everything(api, "/quarantines", released=True),
    Exportable.POLICIES: lambda api: everything(api, "/policies"),
    Exportable.PEOPLE: lambda api: everything(api, "/people"),
    Exportable.AUDIT: lambda api: everything(api, "/audit"),
}


def export(api: Api, what: str, form: str = "json", **params: Any) -> Any:
    answer = api.get(f"/export/{what}", params={"format": form} | params)
    assert answer.status_code == 200, answer.text
    return answer


def lines(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.content.splitlines()]


@pytest.mark.parametrize("what", Exportable)
def test_json_lines_have_the_fields_of_the_documents(api: Api, what: Exportable) -> None:
    answer = export(api, what)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == f'attachment; filename="kernelwatch-{what}.ndjson"'
    expected = list(LISTS[what](api))
    assert expected, "nothing to compare"
    assert [{name: row[name] for name in one} for row, one in zip(lines(answer), expected, strict=True)] == expected


@pytest.mark.parametrize("what", Exportable)
def test_csv_and_parquet_have_the_rows_of_json(api: Api, what: Exportable) -> None:
    columns = flat_columns(KINDS[what].document, KINDS[what].without)
    rows = lines(export(api, what))

    answer = export(api, what, "csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    table = list(csv.DictReader(io.StringIO(answer.content.decode(), newline="")))
    assert list(table[0]) == [column.name for column in columns]
    assert [{name: as_read(value) for name, value in row.items()} for row in table] == [
        {column.name: as_read(plain(column.value(row))) for column in columns} for row in rows
    ]

    answer = export(api, what, "parquet")
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    found = parquet.read_table(io.BytesIO(answer.content))
    assert found.column_names == [column.name for column in columns]
    assert [{name: of_parquet(value) for name, value in row.items()} for row in found.to_pylist()] == [
        {column.name: of_parquet(column.value(row)) for column in columns} for row in rows
    ]


def plain(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool() | list() | dict():
            return json.dumps(value)
        case _:
            return str(value)


def as_read(cell: str) -> Any:
    """What a cell says: JSON if it is any."""
    try:
        return json.loads(text_of_cell(cell))
    except ValueError:
        return text_of_cell(cell)


def of_parquet(value: Any) -> Any:
    """A value of JSON or of Parquet, for comparison: times as times, JSON as what it says."""
    match value:
        case datetime():
            return value
        case str():
            try:
                return datetime.fromisoformat(value) if len(value) > 18 and value[4:5] == "-" else json.loads(value)
            except ValueError:
                return value
        case _:
            return value


def test_parquet_has_types(api: Api) -> None:
    schema = parquet.read_schema(io.BytesIO(export(api, "samples", "parquet").content))
    kinds = {name: str(schema.field(name).type) for name in ("run_id", "value", "measured_at", "case")}
    assert kinds == {"run_id": "int64", "value": "double", "measured_at": "timestamp[us, tz=UTC]", "case": "string"}


def test_an_export_without_rows_has_its_columns(api: Api) -> None:
    [names] = export(api, "runs", "csv", target="liger").text.splitlines()
    assert names.startswith("id,target,revision,subject,")
    assert parquet.read_table(io.BytesIO(export(api, "runs", "parquet", target="liger").content)).num_rows == 0


def test_no_spreadsheet_takes_a_text_for_a_formula(api: Api) -> None:
    text = export(api, "revisions", "csv").text
    assert "'=HYPERLINK(" in text
    [row] = [row for row in csv.DictReader(io.StringIO(text, newline="")) if "HYPERLINK" in row["subject"]]
    assert text_of_cell(row["subject"]) == '=HYPERLINK("http://example.org")\n"quoted", naïve'


def test_filters_limit_the_rows(api: Api) -> None:
    runs = lines(export(api, "runs"))
    wanted = runs[5]
    for name in ("device", "revision"):
        found = lines(export(api, "measurements", **{name: wanted[name]}))
        assert {row[name] for row in found} <= {wanted[name]}
    at = wanted["created_at"]
    assert lines(export(api, "runs", since=at)) == [run for run in runs if run["created_at"] >= at]
    assert lines(export(api, "runs", until=at)) == [run for run in runs if run["created_at"] < at]
    assert lines(export(api, "runs", revision=wanted["revision"][:8])) == [
        run for run in runs if run["revision"] == wanted["revision"]
    ]


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/export/keys", 422, "what: write one of 'targets', 'revisions', 'runs'"),
        ("/export/runs?format=xlsx", 422, "format: write one of 'csv', 'json' or 'parquet'"),
        ("/export/runs?limit=5", 422, "There is no parameter 'limit' here"),
        ("/export/runs?target=nothing", 404, "No target nothing. Known: liger, norms."),
        ("/export/workers?target=norms", 422, "An export of workers has no filter 'target'; it takes device."),
        ("/export/gaps?since=2026-11-21T03:02:00Z", 422, "no filter 'since'; it takes target, device."),
        ("/export/runs?since=yesterday", 422, "write a time with its zone"),
    ],
)
def test_a_mistake_says_how_to_fix_it(api: Api, path: str, status: int, why: str) -> None:
    refused = api.get(path)
    assert (refused.status_code, why in refused.json()["detail"]) == (status, True), refused.text


def test_parquet_without_pyarrow_names_the_extra(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refused = api.get("/export/runs?format=parquet")
    assert refused.status_code == 503
    assert "pip install 'kernelwatch[server]'" in refused.json()["detail"]
    assert export(api, "runs", "csv").content


def test_only_administrators_export_what_only_they_list(api: Api) -> None:
    for what in ("policies", "people", "audit"):
        assert Api(app=api.app).get(f"/export/{what}").status_code == 401
        assert api.with_key("read").get(f"/export/{what}").status_code == 403
    assert {row["target"] for row in lines(export(api, "audit", target=TARGET))} == {TARGET}


def test_head_is_answered_without_a_body(api: Api) -> None:
    answer = api.request("HEAD", "/export/samples")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_no_export_reveals_a_private_target(api: Api, form: str) -> None:
    """With the private target there, everybody else gets the bytes of an export of another target."""
    everybody = Api(app=api.app)
    readers = (everybody, everybody.with_key(f"run:{OTHER}"))
    kinds = [what for what in Exportable if not KINDS[what].for_administrators]
    with transaction() as session:
        session.query(m.Target).filter_by(name=TARGET).update({"private": True})
    for what in kinds:
        of_target = {} if what is Exportable.WORKERS else {"target": OTHER}
        for reader in readers:
            assert export(reader, what, form).content == export(reader, what, form, **of_target).content
    assert everybody.get(f"/export/runs?target={TARGET}").status_code == 404
    own = everybody.with_key(f"read:{TARGET}")
    of_own = [what for what in kinds if TARGET in export(own, what, form).text]
    with transaction() as session:
        session.query(m.Target).filter_by(name=TARGET).update({"private": False})
    assert set(kinds) - set(of_own) <= {Exportable.WORKERS}, "its readers get all of it"


def test_an_export_is_of_one_state_of_the_database(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written between two of its parts is in the next export."""
    for limit in ("_PAGE", "_ROWS"):
        monkeypatch.setattr(rows, limit, 2)
    target = world.target(name=TARGET)
    with transaction() as session:
        first, *_ = [world.commit(session, target.id, place).id for place in range(6)]
    admin = Api().with_key("admin")
    before = export(admin, "revisions").content
    parts = exports.Export(Exportable.REVISIONS, ExportFilter(), FileFormat.JSON, credentials=_anybody()).parts()
    content = next(parts)
    with transaction() as session:
        session.get_one(m.Revision, first).subject = "changed meanwhile"
        world.commit(session, target.id, 6)
    assert content + b"".join(parts) == before
    assert b"changed meanwhile" in export(admin, "revisions").content


def _anybody() -> Credentials:
    return Credentials(None, None, None, None, None, False, {})
