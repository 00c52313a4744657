"""Measurements made elsewhere are stored in bulk, whole or not at all, in series of their own."""

import codecs
import gzip
import json
from collections.abc import Iterable

import pytest
from sqlalchemy import func, select

from service.db.engine import reading, transaction
from service.db.models import IngestBatch, IngestedMeasurement, Measurement, Target
from service.ledger.ingest import batches
from service.ledger.intake import registry
from tests import world
from tests.fakes.api import Api

CASE = "rmsnorm.fwd.4096x1024.bf16-fp32"
BATCH = {"tool": "triton.testing 3.6", "machine": "ci-runner-7", "device": "h200", "stack": {"torch": "2.11.0"}}
LINES = "application/x-ndjson"


@pytest.fixture
def api(state: object) -> Api:
    world.target(name="norms")
    return Api().with_key("ingest:norms")


def one(samples: Iterable[float] = (7.0, 7.2, 7.1), **other: object) -> dict[str, object]:
    return {"revision": "1f3a9c2", "provider": "norms", "case": CASE, "samples": list(samples)} | other


def body(*lines: object, batch: object = None) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in ({"batch": batch or BATCH}, *lines))


def send(api: Api, content: bytes, target: str = "norms", **headers: str):
    sent = {"Content-Type": LINES} | {name.replace("_", "-"): value for name, value in headers.items()}
    return api.request("POST", f"/targets/{target}/ingested", content=content, headers=sent)


def rows() -> tuple[int, int]:
    with reading() as session:
        tables = (IngestBatch, IngestedMeasurement)
        return tuple(session.scalar(select(func.count()).select_from(table)) for table in tables)


@pytest.mark.parametrize(
    ("provenance", "why"),
    [
        ({"tool": "t\0"}, "batch.tool"),
        ({"machine": "a\nb"}, "batch.machine"),
        ({"measured_at": "9999-12-31T23:59:59-12:00"}, "batch.measured_at: Value error, it is outside the years 1 to"),
        ({"measured_at": "0001-01-01T00:00:00+14:00"}, "batch.measured_at: Value error, it is outside the years 1 to"),
    ],
)
def test_provenance_that_no_database_keeps_is_refused(api: Api, provenance: dict[str, str], why: str) -> None:
    refused = send(api, body(one(), batch=BATCH | provenance))
    assert (refused.status_code, rows()) == (422, (0, 0))
    assert why in refused.json()["detail"]


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_the_first_and_the_last_time_of_the_calendar_are_read_again(api: Api, at: str) -> None:
    made = send(api, codecs.BOM_UTF8 + body(one(), batch=BATCH | {"measured_at": at}))
    assert (made.status_code, made.json()["measured_at"]) == (201, at)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_batch_is_stored_with_its_provenance_and_read_again(api: Api, compressed: bool) -> None:
    content = body(one(), one([8.0], revision="2.0.1", provider="quack"))
    headers = {"Content_Encoding": "gzip"} if compressed else {}
    made = send(api, gzip.compress(content) if compressed else content, **headers)
    assert made.status_code == 201, made.text
    assert (made.json()["measurements"], made.json()["samples"], made.json()["sent_by"]) == (2, 4, "CI")
    assert made.json()["stack"] == {"torch": "2.11.0"}
    assert api.get("/targets/norms/ingested").json()["items"] == [made.json()]
    series = api.get(f"/targets/norms/ingested/series?case={CASE}&provider=norms&device=h200").json()
    [found] = series["items"]
    assert (found["median"], found["samples"], series["unit"]) == (7.1, [7.0, 7.2, 7.1], "us")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "The batch has no measurements"),
        ([one(), one([])], "Line 3: samples: List should have at least 1 item"),
        ([one([1.7e308, 1.7e308])], "Line 2: samples.0: Input should be less than or equal to 1000000000000000000"),
        ([one(), one([1.0, -2.0])], "Line 3: samples.1: Input should be greater than or equal to 0"),
        ([one(case="rmsnorm.fwd.big")], "Line 2: case: 'rmsnorm.fwd.big' is not a case; write op.direction.ROWSxCOLS"),
        ([one(), one(), one(extra=1)], "Line 4: extra: Extra inputs are not permitted"),
        ([one(revision="a b")], "Line 2: revision"),
        ([one(provider="norms\0")], "Line 2: provider"),
        ([one(case=f"{CASE}\0")], "Line 2: case"),
    ],
)
def test_a_line_with_a_mistake_is_named_and_nothing_is_stored(api: Api, lines: list[object], why: str) -> None:
    refused = send(api, body(*lines))
    assert refused.status_code == 422
    assert why in refused.json()["detail"]
    assert rows() == (0, 0)


FREE = {"case": "copy 64 MiB", "unit": "GB/s", "better": "larger"}


def test_any_name_has_a_unit_of_its_own_or_no_number(api: Api) -> None:
    """Beside the form that only has cases, whose unit and direction are those of the metric."""
    missing = {"revision": "2.0", "provider": "norms", "missing": "oom", **FREE}
    made = send(api, body(one([0.0, 3912.5], **FREE), missing, one(case=f"{CASE}.memory", samples=[64])))
    assert (made.status_code, made.json()["samples"]) == (201, 3), made.text

    def items(case: str) -> list[dict[str, object]]:
        key = {"case": case, "provider": "norms", "device": "h200"}
        return list(api.get("/targets/norms/ingested/series", params=key).json()["items"])

    without, with_number = items("copy 64 MiB")
    assert (without["median"], without["samples"], without["missing"]) == (None, [], "oom")
    assert (with_number["median"], with_number["samples"]) == (1956.25, [0.0, 3912.5])
    assert (with_number["unit"], with_number["better"], with_number["missing"]) == ("GB/s", "larger", None)
    [of_case] = items(f"{CASE}.memory")
    assert (of_case["unit"], of_case["better"]) == ("bytes", "smaller")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (one([], **FREE), "samples: List should have at least 1 item, or missing says why it has none"),
        (one([1.0], missing="oom", **FREE), "missing: it says why there are no samples, and there are some"),
        (one([1.0], better="larger"), "better: it needs a unit; of a case, smaller samples are better"),
        (one([0.0], unit="us", case="copy"), "samples.0: a time or a size is more than 0"),
        (one(unit="x" * 21, case="copy"), "unit: String should have at most 20 characters"),
        (one(unit="", case="copy"), "unit: String should have at least 1 character"),
        (one([], missing="tired"), "missing: Input should be 'null', 'not_a_number'"),
        (one(better="faster", case="copy", unit="us"), "better: Input should be 'smaller' or 'larger'"),
    ],
)
def test_a_unit_and_samples_fit_together(api: Api, line: dict[str, object], why: str) -> None:
    refused = send(api, body(line))
    assert refused.status_code == 422
    assert why in refused.json()["detail"]
    assert rows() == (0, 0)


def test_a_mistake_after_thousands_of_lines_leaves_nothing(api: Api) -> None:
    refused = send(api, body(*[one()] * 4_500, one([0.0])))
    assert "Line 4502" in refused.json()["detail"]
    assert rows() == (0, 0)


@pytest.mark.parametrize(
    ("content", "headers", "status", "why"),
    [
        (b"", {}, 422, 'Line 1 must be {"batch"'),
        (b"{}\n", {}, 422, "batch: Field required"),
        (b"not JSON\n", {}, 422, "Line 1"),
        (body(one(), batch=BATCH | {"device": "H 200"}), {}, 422, "batch.device"),
        (
            body(one()),
            {"Content_Type": "application/json"},
            415,
            "Send JSON lines as Content-Type",
        ),
        (body(one()), {"Content_Encoding": "br"}, 415, "Content-Encoding may be gzip"),
        (body(one()), {"Content_Encoding": "gzip"}, 422, "not a gzip file"),
        (gzip.compress(body(one()))[:-9], {"Content_Encoding": "gzip"}, 422, "ends too early"),
        (gzip.compress(body(one())) * 2, {"Content_Encoding": "gzip"}, 422, "bytes after its end"),
        (body(one(), one(revision="x" * 300_000)), {}, 422, "A line is longer than 262144 bytes"),
    ],
)
def test_what_is_no_batch_is_refused(api: Api, content: bytes, headers: dict[str, str], status: int, why: str) -> None:
    refused = send(api, content, **headers)
    assert (refused.status_code, why in refused.json()["detail"]) == (status, True), refused.text
    assert rows() == (0, 0)


def test_a_bomb_of_zeros_stops_at_the_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BYTES", 1 << 20)
    refused = send(api, gzip.compress(body(*[one()] * 20_000)), Content_Encoding="gzip")
    assert refused.status_code == 413
    assert rows() == (0, 0)


def test_a_small_body_stores_no_more_than_a_hundred_times_its_size(api: Api) -> None:
    lines = body(*[one(samples=[7.0] * 2_000)] * 1_500)
    refused = send(api, gzip.compress(lines), Content_Encoding="gzip")
    assert (refused.status_code, rows()) == (422, (0, 0))
    assert (
        "more than 100 times as large as its gzip file: send it in parts of at most 8 MiB" in refused.json()["detail"]
    )


def test_a_few_empty_lines_are_skipped_and_many_are_refused(api: Api) -> None:
    assert send(api, body(one()) + b"\n" * 1_000).status_code == 201
    refused = send(api, gzip.compress(body(one()) + b"\n" * (40 << 20)), Content_Encoding="gzip")
    assert (refused.status_code, rows()) == (422, (1, 1))
    assert "Line 1003: more than 1000 lines are empty" in refused.json()["detail"]


def test_a_repeat_after_a_lost_response_stores_nothing_twice(api: Api) -> None:
    first, second = (send(api, body(one()), Idempotency_Key="job-17") for _ in range(2))
    assert first.json() == second.json()
    assert rows() == (1, 1)
    other = send(api, body(one([9.0])), Idempotency_Key="job-17")
    assert (other.status_code, "used for another request" in other.text) == (422, True)


def test_only_a_key_for_the_target_sends_and_deletes(api: Api) -> None:
    world.target(name="other")
    assert send(Api(), body(one())).status_code == 401
    assert send(api.with_key("run:norms"), body(one())).status_code == 403
    assert send(api, body(one()), target="other").status_code == 403
    made = send(api, body(one())).json()
    path = f"/ingested/{made['id']}"
    assert api.with_key("ingest:other").request("DELETE", path).status_code == 403
    assert api.request("DELETE", path).status_code == 204
    assert api.request("DELETE", path).status_code == 404
    assert rows() == (0, 0)


def test_nothing_that_is_measured_here_sees_them(api: Api) -> None:
    send(api, body(one(), one(revision="abc")))
    with reading() as session:
        assert session.scalar(select(func.count()).select_from(Measurement)) == 0
    assert api.get(f"/targets/norms/series?case={CASE}&provider=norms&device=h200").json()["points"] == []
    assert api.get("/targets/norms/revisions").json()["items"] == []


def test_a_batch_whose_server_died_is_not_seen_and_deleted_with_the_next(api: Api) -> None:
    with transaction() as session:
        target = session.execute(select(Target)).scalar_one()
        usual = {"device": "h200", "tool": "t", "machine": "m", "stack": {}, "notes": {}, "sent_by": "CI"}
        session.add(IngestBatch(target_id=target.id, received_at=0.0, **usual))
    assert api.get("/targets/norms/ingested").json()["items"] == []
    send(api, body(one()))
    assert rows() == (1, 1)


def test_they_go_with_their_target(api: Api) -> None:
    send(api, body(one()))
    registry.remove("norms")
    assert rows() == (0, 0)
