"""The REST API as a program in CI sees it: over HTTP, on a database with a few days in it."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import event, func, select, text

from service.api import health
from service.app import create_app
from service.db import check, schema
from service.db.engine import disconnect, engine, reading, transaction
from service.db.models import WriteProbe
from service.settings import settings
from tests.clock import Clock
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import CASES, Seeded


def test_targets(get: Get, seeded: Seeded) -> None:
    liger, norms = get("/api/v1/targets").json()["items"]
    assert (norms["name"], norms["kind"], norms["devices"]) == ("norms", "git", ["h200", "cpu"])
    assert liger["poll_error"] == "index.example does not answer: the name is not known"
    whole = get("/api/v1/targets/norms").json()
    assert (whole["open_regressions"], whole["behind_sota"]) == (1, 1)
    assert "[providers.norms]" in whole["recipe"]


def test_a_run_has_its_result_its_verdicts_and_its_measurements(get: Get, seeded: Seeded) -> None:
    whole = get(f"/api/v1/runs/{seeded.runs['slow']}").json()
    assert whole["headline"].startswith("2 of 6 cases up to 21.4 % slower at ")
    assert (whole["gate"]["state"], whole["gate"]["exit_code"]) == ("warn", 0)
    assert whole["counts"]["regression"] == 2
    assert whole["created_at"].endswith("Z")
    [slow] = [v for v in whole["verdicts"] if v["baseline_kind"] == "parent" and v["case"] == CASES[1]]
    assert (slow["outcome"], slow["confirmed"], slow["ratio"]) == ("regression", True, pytest.approx(1.214))
    assert {m["role"] for m in whole["measurements"]} == {"head", "parent", "sota", "control"}
    assert whole["stack"]["triton"] == "3.7.1"


def test_a_run_that_did_not_change_is_not_sent_again(get: Get, seeded: Seeded) -> None:
    for path in (f"/api/v1/runs/{seeded.runs['slow']}", f"/api/v1/runs/{seeded.runs['slow']}/comment"):
        first = get(path)
        again = get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert get(path, headers={"If-None-Match": 'W/"other", W/' + first.headers["etag"]}).status_code == 304
        assert get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_result_of_a_run_as_markdown(get: Get, seeded: Seeded) -> None:
    said = get(f"/api/v1/runs/{seeded.runs['pull']}/comment")
    assert said.headers["content-type"] == "text/markdown; charset=utf-8"
    assert re.match(r"### ✗ \[kernelwatch, H200: 1 of \d+ cases [\d.]+ % slower.*\]\(http\S+\)\n", said.text)
    assert "<!-- kernelwatch:norms:7 -->" in said.text


def test_regressions_series_and_gaps(get: Get, seeded: Seeded) -> None:
    [fixed] = get("/api/v1/targets/norms/regressions", params={"state": "fixed"}).json()["items"]
    assert (fixed["case"], fixed["ratio"], len(fixed["fixed_by"])) == (CASES[1], 1.214, 40)
    asked = {"case": CASES[1], "provider": "norms", "device": "h200"}
    points = get("/api/v1/targets/norms/series", params=asked).json()["points"]
    assert [point["outcome"] for point in points] == ["new", "steady", "regression", "improvement", "invalid"]
    [gap] = get("/api/v1/targets/norms/gaps").json()["items"]
    assert (gap["case"], gap["ratio"], len(gap["since"])) == (CASES[3], 1.189, 40)


def test_workers_and_queue(get: Get, seeded: Seeded) -> None:
    workers = {one["name"]: one for one in get("/api/v1/workers").json()["items"]}
    assert workers["cpu-box"]["sandbox_error"] == "user namespaces are refused here"
    assert not workers["cpu-box"]["online"]
    assert [one["state"] for one in get("/api/v1/queue").json()["items"]] == ["leased", "queued", "held"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/v1/runs/999", 404, "No run 999."),
        ("/api/v1/targets/nothing", 404, "No target nothing."),
        ("/api/v1/nothing", 404, "No page /api/v1/nothing."),
        ("/api/v1/runs/99999999999999999999999", 422, "run_id"),
        ("/api/v1/runs/x", 422, "run_id"),
        ("/api/v1/runs/1?tables=many", 422, "tables"),
        ("/api/v1/targets/norms/runs?cursor=zzz", 422, "is not a cursor"),
        ("/api/v1/targets/norms/runs?limit=0", 422, "limit"),
        ("/api/v1/targets/norms/series?case=x", 422, "provider"),
    ],
)
def test_errors_say_how_to_fix_them(get: Get, seeded: Seeded, path: str, status: int, said: str) -> None:
    answer = get(path)
    assert answer.status_code == status
    assert said in answer.json()["detail"]


def test_only_reading_is_offered(get: Get, seeded: Seeded) -> None:
    assert get("/api/v1/runs/1", method="DELETE").status_code == 405


@given(
    st.sampled_from(["/api/v1/targets/{}", "/api/v1/runs/{}", "/targets/{}", "/runs/{}", "/assets/{}/x"]),
    st.text(max_size=30),
)
@examples(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_address_breaks_it(get: Get, seeded: Seeded, pattern: str, words: str) -> None:
    from urllib.parse import quote

    answer = get(pattern.format(quote(words, safe="")), params={"cursor": words, "series": words, "before": words})
    assert answer.status_code < 500


def test_openapi_describes_it_and_no_page_loads_from_elsewhere(get: Get, seeded: Seeded) -> None:
    paths = get("/openapi.json").json()["paths"]
    assert {"/api/v1/runs/{run_id}", "/api/v1/targets/{name}/series", "/healthz"} <= paths.keys()
    assert not any(path.startswith(("/assets", "/targets")) for path in paths)
    assert get("/redoc").status_code == 404
    assert not re.search(r"(?:src|<link[^>]* href)=.https?:", get("/docs").text), "the documentation is ours"


# -- health


@pytest.fixture
def probed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FRESH_S", 0.0)


@pytest.mark.usefixtures("probed_each_time")
def test_ready_when_the_database_is_there_and_migrated(get: Get, either: str) -> None:
    assert get("/healthz").json() == {"status": "ok"}
    assert get("/readyz").json() == {"status": "ready", "reasons": []}
    with transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    answer = get("/readyz")
    with transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :newest"), {"newest": schema.newest()})
    assert answer.status_code == 503
    assert "is at migration 0000" in answer.json()["reasons"][0]
    assert get("/readyz").status_code == 200


@pytest.mark.usefixtures("probed_each_time")
def test_not_ready_without_a_database(get: Get, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, said in (
        (f"sqlite:///{state / 'other.db'}", "no tables yet; run `kernelwatch db upgrade`"),
        ("postgresql://nobody:secret@127.0.0.1:1/none", "the database does not answer (OperationalError)"),
    ):
        monkeypatch.setenv("KERNELWATCH_DATABASE_URL", url)
        settings.cache_clear()
        disconnect()
        answer = get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
        assert said in answer.json()["reasons"][0]
        assert "secret" not in answer.text
    assert get("/healthz").status_code == 200
    assert not (state / "other.db").exists()


@pytest.mark.usefixtures("probed_each_time")
def test_not_ready_where_nothing_can_be_written(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL the database turns read-only; on SQLite another process holds the lock for writing."""
    get = asking()
    assert get("/readyz").status_code == 200
    if either == "postgres":
        read_only = "SET SESSION default_transaction_read_only = on"
        event.listen(engine(), "connect", lambda raw, _: (raw.execute(read_only), raw.commit()))
        engine().dispose()
        [reason] = get("/readyz").json()["reasons"]
        assert reason == "the database accepts no writes (ReadOnlySqlTransaction); see the log"
    else:
        monkeypatch.setattr(health, "_PATIENCE_S", 0.5)
        with transaction() as session:
            session.execute(text("SELECT 1"))  # takes the lock
            [reason] = get("/readyz").json()["reasons"]
        assert reason.startswith("the database did not accept a write within")
        monkeypatch.setattr(health, "_PATIENCE_S", 20.0)
        assert get("/readyz").status_code == 200


@pytest.mark.usefixtures("probed_each_time")
def test_not_ready_when_the_disk_is_nearly_full(get: Get, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MIN_FREE", 1 << 60)
    assert "the disk of the database has" in get("/readyz").json()["reasons"][0]


def test_many_requests_for_readiness_share_one_write(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FRESH_S", 60.0)
    get, writes = asking(), list[str]()
    event.listen(engine(), "after_cursor_execute", lambda _c, _k, sql, *_: writes.append(sql))
    for _ in range(30):
        assert get("/readyz").status_code == 200
    assert len([one for one in writes if one.startswith("UPDATE")]) == 1
    with reading() as session:
        assert session.scalar(select(func.count()).select_from(WriteProbe)) == 1


def test_the_database_is_probed_every_two_seconds(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, probes = Clock(), list[float]()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: 100 + clock.now()))
    monkeypatch.setattr(check, "unready", lambda: probes.append(clock.now()) or [])
    get = asking()
    for _ in range(9):
        assert get("/readyz").status_code == 200
        clock.sleep(0.5)
    assert probes == [0, 2, 4]


def test_a_database_without_tables_is_said_plainly(get: Get, state: Path) -> None:
    with transaction() as session:
        session.execute(text("DROP TABLE workers"))
    assert get("/api/v1/workers").status_code == 503
    assert "/readyz" in get("/api/v1/workers").json()["detail"]


def test_metrics(get: Get, seeded: Seeded) -> None:
    get("/api/v1/runs/1")
    said = get("/metrics").text
    assert 'kernelwatch_runs{device="h200",state="leased"} 1.0' in said
    assert 'kernelwatch_runs{device="h200",state="done"} 3.0' in said  # of six, those that ended in the last day
    assert 'kernelwatch_queue_age_seconds{device="cpu"}' in said
    assert 'kernelwatch_worker_silence_seconds{device="h200",worker="h200-box"}' in said
    assert 'kernelwatch_outbox_messages{kind="comment",state="waiting"} 1.0' in said
    counted = 'kernelwatch_http_request_seconds_count{method="GET",route="/api/v1/runs/{run_id}",status="200"}'
    assert counted in said


def test_so_many_threads_as_the_database_serves(state: Path) -> None:
    async def tokens() -> float:
        app = create_app()
        async with app.router.lifespan_context(app):
            return anyio.to_thread.current_default_thread_limiter().total_tokens

    assert asyncio.run(tokens()) == 2


def test_a_regression_is_told_with_its_life(get: Get, decided: Seeded) -> None:
    [crept, accepted, blamed, fixed] = get("/api/v1/regressions").json()["items"]
    assert [one["state"] for one in (crept, accepted, blamed, fixed)] == ["open", "acknowledged", "blamed", "fixed"]
    assert (accepted["reason"], crept["found_by"]) == ("exact sums are worth 3 %", "history")
    asked = {"state": ["open", "acknowledged"]}
    assert len(get("/api/v1/regressions", params=asked).json()["items"]) == 2
    whole = get(f"/api/v1/regressions/{blamed['id']}").json()
    assert whole["cause_text"] == "slower because the kernel now spills 12 registers"
    assert [event["action"] for event in whole["events"]] == ["opened", "bisecting", "blamed", "assigned", "note"]
    assert [one["id"] for one in whole["incident"]["regressions"]] == [fixed["id"], blamed["id"]]
    assert [one["culprit"] for one in whole["bisections"]] == [whole["culprit"]]
    [incident] = get("/api/v1/targets/norms/incidents").json()["items"]
    assert (incident["id"], incident["cause_kind"], len(incident["regressions"])) == (blamed["incident_id"], "code", 2)


def test_a_bisection_is_told_with_its_steps(get: Get, decided: Seeded) -> None:
    [found] = get("/api/v1/bisections", params={"target": "norms"}).json()["items"]
    assert (found["state"], found["requested_by"]) == ("found", "kernelwatch")
    whole = get(f"/api/v1/bisections/{found['id']}").json()
    assert len(whole["revisions"]) == 4
    assert whole["steps"][0]["aim"] == "verify"
    assert get("/api/v1/bisections", params={"running": True}).json()["items"] == []


def test_change_points_calibration_and_quarantines(get: Get, decided: Seeded) -> None:
    points = get("/api/v1/targets/norms/change-points").json()["items"]
    assert {point["level"] for point in points} == {"notify", "block"}
    [closed] = get("/api/v1/targets/norms/change-points", params={"state": "closed"}).json()["items"]
    args = closed["reason_args"]
    assert (closed["reason_code"], args["sessions"]) == ("not_repeated", 2)
    assert closed["reason"] == (
        f"2 new sessions of bisection {args['bisection']} did not repeat it: the machine, not the code"
    )
    rates = get("/api/v1/calibration").json()
    [metric] = rates["metrics"]
    assert (metric["worker"], metric["comparisons"], metric["differed"], metric["nominal_rate"]) == (
        "h200-box",
        144,
        8,
        0.05,
    )
    assert rates["cases"][0]["case"] == CASES[0]
    assert rates["cases"][0]["rate"] == pytest.approx(8 / 24)
    [standing] = get("/api/v1/quarantines").json()["items"]
    assert standing["case"] == CASES[0]
    assert len(get("/api/v1/quarantines", params={"released": True}).json()["items"]) == 2


def test_metrics_count_what_stands_and_what_is_quarantined(get: Get, decided: Seeded) -> None:
    said = get("/metrics").text
    assert 'kernelwatch_regressions{device="h200",state="blamed"} 1.0' in said
    assert 'kernelwatch_quarantined_cases{device="h200"} 1.0' in said


def test_verdicts_and_runs_say_what_they_rest_on(get: Get, decided: Seeded) -> None:
    run = get(f"/api/v1/runs/{decided.runs['slow']}").json()
    [slow] = [one for one in run["verdicts"] if one["baseline_kind"] == "parent" and one["case"] == CASES[1]]
    assert (slow["suspected"], slow["q"], slow["smallest_change"], slow["cause_kind"]) == (True, 7.1e-5, 0.02, "code")
    assert len(slow["policy_version"]) == 64
    assert [one["op"] for one in run["summaries"]] == ["rmsnorm", "rmsnorm", "layernorm"]
    assert run["purpose"] == "watch"
