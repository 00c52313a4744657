"""The sample: what was measured on an H200, loaded next to what is here, without consequences, and removed again."""

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, func, select

from service.db.check import check
from service.db.engine import clock, engine, reading, transaction
from service.db.models import Base, Measurement, OutboxMessage, Run, Target, VerdictRow, unpack
from service.domain.states import OPEN_STATES
from service.domain.weekly.weeks import Week
from service.errors import Conflict
from service.ledger.calibration import error_rates
from service.ledger.health import fleet, overview
from service.ledger.intake import samples
from tests import world
from tests.dashboards.asking import Get, asking, words
from tests.shell import attempt
from tests.workers.periodic import run_control

STORED = Path(__file__).parents[4] / "docs/measurements/2026-11-28-h200-histories/second/liger.db.xz"
RUNS, MEASUREMENTS = 10, 480


def rows() -> dict[str, int]:
    """Numbers of rows by table, without the audit log and what all targets share."""
    left_out = ("audit_entries", "stacks", "policies", "write_probes")
    with reading() as session:
        tables = [one for one in Base.metadata.sorted_tables if one.name not in left_out]
        return {one.name: session.scalar(select(func.count()).select_from(one)) or 0 for one in tables}


def test_it_is_small() -> None:
    assert samples.FILE.stat().st_size < 1_000_000


def test_it_is_loaded_once_and_removed(either: str) -> None:
    world.target("[providers]", name="mine")
    before = rows()

    first = samples.load()
    assert first == samples.Loaded(("sample-liger",), RUNS, MEASUREMENTS, new=True)
    loaded = rows()
    assert samples.load() == samples.Loaded(first.names, RUNS, MEASUREMENTS, new=False)
    assert rows() == loaded
    with engine().connect() as connection:
        assert check(connection).problems() == []

    assert samples.remove() == first.names
    assert rows() == before
    assert samples.remove() == ()


def test_each_table_is_written_at_once(either: str) -> None:
    """A worker renews its lease with a write, which waits for this one."""
    executed = list[object]()
    event.listen(engine(), "before_execute", lambda *given: executed.append(given[1]))
    samples.load()
    assert sum(rows().values()) > 1000
    assert len(executed) < 120


def test_the_numbers_are_those_that_were_measured(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "stored.db"
    copy.write_bytes(lzma.decompress(STORED.read_bytes()))
    with closing(sqlite3.connect(copy)) as stored:
        times = stored.execute("SELECT contender, median, samples FROM measurements ORDER BY id").fetchall()
        ratios = stored.execute("SELECT ratio, low, high FROM verdicts ORDER BY id").fetchall()
    samples.load()
    with reading() as session:
        found = session.execute(
            select(Measurement.contender, Measurement.median, Measurement.samples).order_by(Measurement.id)
        ).all()
        assert [tuple(one[1:]) for one in found] == [tuple(one[1:]) for one in times]
        assert unpack(next(one.samples for one in found if one.samples))
        assert [tuple(one) for one in session.execute(
            select(VerdictRow.ratio, VerdictRow.low, VerdictRow.high).order_by(VerdictRow.id)
        )] == ratios  # fmt: skip


def test_the_service_does_nothing_for_it(state: Path) -> None:
    samples.load()
    before = rows()
    run_control()
    assert rows() == before
    with reading() as session:
        assert session.scalar(select(func.count()).select_from(OutboxMessage)) == 0
        assert session.scalar(select(func.count()).where(Run.state.in_(OPEN_STATES))) == 0
        for target in session.scalars(select(Target)):
            assert (target.paused_at is not None, target.forge, target.trusted) == (True, None, False)


def test_a_name_that_is_taken_is_not_touched(state: Path) -> None:
    world.target("[providers]", name="sample-liger")
    with pytest.raises(Conflict, match="kernelwatch target rename"):
        samples.load()
    assert rows()["runs"] == 0
    assert samples.remove() == ()


def test_the_command_and_the_pages(state: Path) -> None:
    for page in ("/", "/board"):
        assert "kernelwatch sample load" in words(asking()(page))
    answer = attempt("sample", "load")
    assert answer.exit_code == 0
    assert "Loaded: 10 runs with 480 measurements of an NVIDIA H200." in answer.output
    assert "/targets/sample-liger" in answer.output
    assert "Already there: 10 runs" in attempt("sample", "load").output
    get = asking()
    for page in ("/", "/board"):
        assert "kernelwatch sample load" not in words(get(page))
    assert "sample-liger" in words(get("/board"))
    needs, _, targets = get("/").text.partition("<h2>Targets")
    assert "sample-liger" in targets
    assert "sample-" not in needs, "nobody has to act on it"
    said = words(get("/targets/sample-liger"))
    assert "540575bc2b" in said
    assert "This is the sample" in said
    mainline = get("/targets/sample-liger?before=46").text.rpartition("Mainline")[2]
    at = mainline.partition("6a2c49130e")[2].partition("</tr>")[0]
    assert "5 slower" in at, "the one true regression of this history: slower than a parent with wrong results"
    with transaction() as session:
        ids = session.scalars(select(Run.id)).all()
        device = session.scalar(select(Run.device).limit(1))
    assert "This is the sample" in words(get(f"/targets/sample-liger/board?device={device}"))
    assert {get(f"/runs/{run_id}").status_code for run_id in ids} == {200}
    assert attempt("sample", "remove").output == "Removed sample-liger.\n"
    assert attempt("sample", "remove").output == "There is no sample.\n"
    assert "sample-" not in get("/board").text


def test_it_is_counted_apart_on_every_page(state: Path) -> None:
    """A page that says that nothing needs attention does not count its regressions elsewhere."""
    samples.load()
    get = asking()
    assert "The sample is loaded, and no target is watched yet" in words(get("/"))
    assert "2 regressions of the sample" in words(get("/"))
    assert "control polls" not in words(get("/"))
    listed = words(get("/regressions"))
    assert "No open regressions" in listed
    assert "2 of the sample" in listed
    assert "unassigned" not in listed.partition("Find")[0]
    assert "No fixed regressions 3 of the sample" in words(get("/regressions?state=fixed"))

    world.target("[providers]", name="mine")
    assert "1 item needs attention first: Control is silent · 2 regressions of the sample" in words(get("/"))
    with reading() as session:
        measured = Week.at(session.scalars(select(Run.finished_at).limit(1)).one() or 0.0)
    weekly = words(get(f"/weekly/{measured}"))
    assert "Nothing was measured" in weekly
    assert "sample-liger sample counts apart: 5 regressions opened and 3 fixed" in weekly
    assert get(f"/api/v1/weekly?week={measured}").json()["counts"]["opened"] == 0
    for page in ("/", "/regressions"):
        assert '<span class="badge" title="real measurements to look at; they are counted apart">sample</span>' in (
            get(page).text
        )


def test_no_number_of_the_fleet_is_one_of_the_sample(state: Path) -> None:
    """Gauges, rates of errors and the case counts of the lists are those without it."""
    world.target("[providers]", name="mine")
    get = asking()
    empty = fleet_numbers(get)
    samples.load()
    assert fleet_numbers(get) == empty
    assert "behind SOTA" not in words(get("/regressions"))


def fleet_numbers(get: Get) -> dict[str, object]:
    gauges = ("kernelwatch_runs{", "kernelwatch_verdicts", "kernelwatch_regressions", "kernelwatch_quarantined")
    with reading() as session:
        now = clock(session)
        return {
            "gauges": [line for line in get("/metrics").text.splitlines() if line.startswith(gauges)],
            "error rates": error_rates.error_rates(session, since=0.0),
            "calibration": error_rates.rates(session),
            "nights": overview.by_night(session, now),
            "quarantined": fleet.quarantined(session, 0.0),
        }
