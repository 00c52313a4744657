"""Every page of the router in a real browser: both themes, a wide window and a phone, with and without script.

The database is small and hostile: each text that a stranger can write is markup, a formula or one word without end.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Page
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards.pages import PAGES
from service.db import models as m
from service.db.engine import transaction
from service.domain.codefacts import texts
from service.domain.weekly.weeks import Week
from service.ledger import stored_texts
from service.ledger.studies import sessions
from tests.big.seed import seed
from tests.big.seeder import Places
from tests.big.story import SMALL
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, OPEN_DETAILS, barriers, excess_width
from tests.dashboards.seed import watched
from tests.service.ledger.studies.literal import hostile_file, session_file

HOSTILE = "=1+1<img src=x onerror=alert(1)><script>alert(2)</script>{{ 7*7 }}`|**[x](javascript:alert(3))" + "x" * 160
# Texts that come from repositories, forges, workers and people.
TEXTS: dict[type[m.Base], tuple[str, ...]] = {
    m.Revision: ("subject", "author"),
    m.Run: ("stage",),
    m.VerdictRow: ("reason",),
    m.RegressionRow: ("cause_text",),
    m.Incident: ("cause_text",),
    m.Worker: ("description",),
    m.Quarantine: ("reason",),
    m.Target: ("poll_error", "forge_error"),
}
ELSEWHERE = (HOSTILE[:120], "x" * 120)
FOR_PROGRAMS = (".csv", ".json", ".svg")
CASES = "/regressions/cases"  # of one line of the list
# Parts of a page, fetched when they are opened.
NEEDS_NO_HEADING = ("/targets/{name}/trend/neighbours", "/targets/{name}/board/{part}")
NEEDS_A_PERSON = (
    "/{verb}",
    "/policies",
    "/policies/{digest}",
    "/keys",
    "/keys/create",
    "/people",
    "/audit",
)  # who signed in: tests/dashboards/acting
# Rows of the one component of tables that have no link to themselves, and ids that are there twice.
UNLINKED_ROWS = """[...document.querySelectorAll("[data-table] tbody tr:not(.group)")]
  .filter((row) => !row.id || row.querySelector(".row-link").getAttribute("href") !== `#${row.id}`
    || document.querySelectorAll(`[id="${CSS.escape(row.id)}"]`).length > 1)
  .map((row) => row.outerHTML.slice(0, 200))"""
# Columns of tables, with a name, in which no row has anything.
EMPTY_COLUMNS = """[...document.querySelectorAll("main table")].flatMap((table) => {
  const heads = [...table.querySelectorAll("thead th")], rows = [...table.querySelectorAll("tbody tr")]
    .map((row) => [...row.cells]).filter((cells) => cells.length === heads.length);
  return rows.length ? heads.filter((head, n) => head.textContent.trim()
    && rows.every((cells) => !cells[n].textContent.trim() && !cells[n].querySelector("svg, img, input")))
    .map((head) => head.textContent.trim()) : [];
})"""
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


def sow(session: Session, _now: float) -> Places:
    places = seed(session, SMALL)
    for model, columns in TEXTS.items():
        session.execute(m.Base.metadata.tables[model.__tablename__].update().values(dict.fromkeys(columns, HOSTILE)))
    compile_both_sides(session, session.get_one(m.RegressionRow, places.regression))
    for file in (session_file(), session_file(device="b200"), hostile_file(HOSTILE)):
        sessions.store(session, file)
    send_from_elsewhere(session)
    return places


def send_from_elsewhere(session: Session) -> None:
    """Series of another tool whose names are markup: one that became slower, and one without numbers."""
    target = session.scalars(select(m.Target).where(m.Target.name == "norms")).one()
    batch = m.IngestBatch(
        target_id=target.id, device="h200", tool=HOSTILE[:120], machine=HOSTILE[:120], measured_at=1_790_000_000.0
    )
    batch.stack, batch.notes, batch.sent_by, batch.received_at, batch.complete = {}, {}, "CI", 1_790_000_000.0, True
    session.add(batch)
    session.flush()
    of = {"batch_id": batch.id, "target_id": target.id, "device": "h200", "provider": HOSTILE[:80], "samples": "[]"}
    for n in range(30):
        value = 7.0 + n % 3 * 0.01 + (n > 15)
        row = m.IngestedMeasurement(case=ELSEWHERE[0], revision=f"{n:040x}", median=value, unit="us", **of)
        session.add(row)
    session.add(
        m.IngestedMeasurement(case=ELSEWHERE[1], revision="2.0", unit="GB/s", better="larger", missing="oom", **of)
    )


def compile_both_sides(session: Session, row: m.RegressionRow) -> None:
    """Store long texts of two kernels of a regression, of which one is markup."""
    lines = [f"\tadd.f32 %f{n}, %f{n + 1}, %f{n % 7};" for n in range(1500)]
    sides = {"parent": lines, "head": [*lines[:700], HOSTILE, *lines[720:]]}
    case = texts.plain_case(row.case)
    made = [
        texts.KernelText(f"{role}:{row.provider}", case, number, name, "ptx", "\n".join(some if number else lines))
        for role, some in sides.items()
        for number, name in enumerate(("_forward", HOSTILE))
    ]
    stored_texts.keep_code(session, row.target_id, made, run_id=row.run_id)


def code_of(at: Places) -> list[str]:
    with transaction() as session:
        row = session.get_one(m.RegressionRow, at.regression)
        of_case = urlencode({"case": row.case, "provider": row.provider})
        return [f"/runs/{row.run_id}/code/ptx?{of_case}"]


def addresses(at: Places) -> dict[str, list[str]]:
    """The addresses of each route, by its path."""
    series = urlencode({"device": "h200", "provider": "norms", "case": at.case})
    sides = urlencode({"base": at.shas[0], "head": at.shas[1], "device": "h200", "show": "all"})
    hostile = quote(at.hostile_target, safe="")
    with transaction() as session:
        pulls = session.scalars(select(m.Run.pull).where(m.Run.state.in_(("held", "superseded")), m.Run.pull > 0)).all()
        incident = session.scalar(select(m.Incident.id).order_by(m.Incident.id.desc()).limit(1))
        opened = select(m.RegressionRow.run_id).where(m.RegressionRow.id == at.regression).scalar_subquery()
        sha = session.scalars(select(m.Revision.sha).join(m.Run).where(m.Run.id == opened)).one()
    runs = (at.newest, at.worst, at.failed, at.running, at.pull, at.hostile)
    return {
        "/": ["/"],
        "/search": ["/search", "/search?q=norms", f"/search?{urlencode({'q': HOSTILE[:200]})}"],
        "/targets/{name}": ["/targets/norms", f"/targets/{hostile}"],
        "/targets/new": ["/targets/new", "/targets/new?start=norms"],
        "/targets/{name}/recipe": ["/targets/norms/recipe", f"/targets/{hostile}/recipe"],
        "/targets/{name}/trend": [f"/targets/norms/trend?{series}"],
        "/targets/{name}/trend/revisions": [f"/targets/norms/trend/revisions?{series}"],
        "/targets/{name}/trend/neighbours": [f"/targets/norms/trend/neighbours?{series}"],
        "/targets/{name}/facts": [f"/targets/norms/facts?{series}"],
        "/targets/{name}/imported": ["/targets/norms/imported", f"/targets/{hostile}/imported"],
        "/targets/{name}/imported/compare": [f"/targets/norms/imported/compare?base={0:040x}&head={20:040x}"],
        "/targets/{name}/imported/series": [
            f"/targets/norms/imported/series?{urlencode({'device': 'h200', 'provider': HOSTILE[:80], 'case': case})}"
            for case in ELSEWHERE
        ],
        "/targets/{name}/compare": [f"/targets/norms/compare?{sides}", "/targets/norms/compare?base=a&head=b"],
        "/board": ["/board"],
        "/targets/{name}/board": ["/targets/norms/board?device=h200"],
        "/targets/{name}/board/{part}": [f"/targets/norms/board/{part}?device=h200" for part in ("gaps", "small")],
        "/targets/{name}/pulls/{number}": [f"/targets/norms/pulls/{number}" for number in (at.pull_number, *pulls[:2])],
        "/runs/{run_id}": [f"/runs/{run}" for run in runs],
        "/runs/{run_id}/cases/{case:path}": [f"/runs/{at.worst}/cases/{at.case}"],
        "/runs/{run_id}/code/{kind}": code_of(at),
        "/runs/{run_id}/comment": [f"/runs/{at.pull}/comment"],
        "/runs/{run_id}/telemetry": [f"/runs/{at.worst}/telemetry"],
        "/runs/{run_id}/unsupported": [f"/runs/{at.worst}/unsupported"],
        "/regressions": ["/regressions"],
        CASES: [f"{CASES}?{urlencode({'target': 'norms', 'revision': sha})}"],
        "/regressions/{regression_id}": [f"/regressions/{at.regression}"],
        "/regressions/{regression_id}/code": [f"/regressions/{at.regression}/code"],
        "/incidents/{incident_id}": [f"/incidents/{incident}"],
        "/bisections": ["/bisections"],
        "/bisections/{bisection_id}": [f"/bisections/{at.bisection}"],
        "/bisections/{bisection_id}/stop": [f"/bisections/{at.bisection}/stop"],
        "/targets/{name}/policy": ["/targets/norms/policy"],
        "/docs": ["/docs"],
        "/docs/{name}": [f"/docs/{name}" for name in ("glossary", "github", "cli", "kernels")],
        "/problems/{name}": ["/problems/not-found"],
        "/workers": ["/workers"],
        "/calibration": ["/calibration"],
        "/statistics": ["/statistics"],
        "/studies": ["/studies"],
        "/studies/{name}": ["/studies/s3", "/studies/s3?session=2", "/studies/s3?device=a100", "/studies/s1"],
        "/weekly": ["/weekly"],
        "/weekly/{week}": [f"/weekly/{Week.at(1_790_000_000.0)}"],
    }


def routes() -> list[str]:
    read = [route for page in PAGES for route in page.router.routes if "GET" in getattr(route, "methods", ())]
    every = [getattr(route, "path", "") for route in read]
    return [path for path in every if not path.endswith(FOR_PROGRAMS + NEEDS_A_PERSON)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The address of the service, and those of its pages."""
    with watched(tmp_path_factory.mktemp("hostile"), sow) as places, reachable() as address:
        yield address, addresses(places)


def walked(page: Page, hostile: tuple[str, dict[str, list[str]]], check: Callable[[str], dict[str, Any]]) -> None:
    """Open every page and report all that is wrong at once."""
    address, pages = hostile
    page.on("dialog", lambda dialog: pytest.fail(f"{page.url}: {dialog.message}"))
    wrong: dict[str, Any] = {}
    for route, paths in pages.items():
        for path in paths:
            answer = page.goto(address + path)
            assert answer is not None
            found = check(route) | {
                "status": answer.status if answer.status != 200 else None,
                "too wide, px": excess_width(page),
                "headings": page.locator("h1:visible").count() != (route not in NEEDS_NO_HEADING),
                "elements of a stranger": page.locator("img[src=x], main script").count(),
            }
            if any(found.values()):
                wrong[path] = {name: value for name, value in found.items() if value}
    assert wrong == {}


def test_no_page_is_forgotten(hostile: tuple[str, dict[str, list[str]]]) -> None:
    assert sorted(hostile[1]) == sorted(routes())


@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", WIDE), pytest.param("dark", PHONE, marks=pytest.mark.long)],
    ids=["light-wide", "dark-phone"],
)
def test_every_page_fits_and_can_be_read(
    opened: Any, hostile: tuple[str, dict[str, list[str]]], scheme: str, size: dict[str, int]
) -> None:
    page = opened(viewport=size, color_scheme=scheme)

    def check(_route: str) -> dict[str, Any]:
        page.evaluate(OPEN_DETAILS)
        return {"contrast": page.evaluate(CONTRAST), "axe": barriers(page)}

    walked(page, hostile, check)


@pytest.mark.parametrize(
    ("scheme", "size"),
    [pytest.param("dark", WIDE, marks=pytest.mark.long), ("light", PHONE)],
    ids=["dark-wide", "light-phone"],
)
def test_every_page_is_whole_without_script(
    opened: Any, hostile: tuple[str, dict[str, list[str]]], scheme: str, size: dict[str, int]
) -> None:
    page = opened(viewport=size, color_scheme=scheme, java_script_enabled=False)

    def check(_route: str) -> dict[str, Any]:
        return {
            "empty columns": page.evaluate(EMPTY_COLUMNS),
            "rows without a link": page.evaluate(UNLINKED_ROWS),
            "rows as text": page.locator("main").inner_text().count("<tr"),
            "text": len(page.locator("main").inner_text()) < 40,
            "controls that need a script": page.locator(".scripted:visible, [data-theme-switch]:visible").count(),
        }

    walked(page, hostile, check)


def test_the_figures_of_a_run_and_a_trend_are_in_the_document(
    opened: Any, hostile: tuple[str, dict[str, list[str]]]
) -> None:
    """So a slow line shows them with the text: no script has to arrive first."""
    address, pages = hostile
    page = opened(java_script_enabled=False)
    for path in (pages["/runs/{run_id}"][1], pages["/targets/{name}/trend"][0]):
        page.goto(address + path)
        boxes = [box for one in page.locator("main svg:visible").all() if (box := one.bounding_box())]
        assert max(box["width"] for box in boxes) >= 600, path
        assert page.locator("main svg:visible path").count() > 5, path


def test_every_page_of_an_empty_service_says_what_to_do(opened: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    with watched(tmp_path_factory.mktemp("empty"), lambda _session, _now: None), reachable() as address:
        for size in (PHONE, WIDE):
            page = opened(viewport=size)
            for path in (one for one in routes() if "{" not in one and one != CASES):
                page.goto(address + path)
                assert page.locator("h1").count() == 1, path
                assert excess_width(page) == 0, path
                assert page.evaluate(CONTRAST) == [], path
                assert barriers(page) == {}, path
            for path in ("/runs/1", "/targets/none", "/regressions/1", "/bisections/1", "/weekly/2026-W99"):
                answer = page.request.get(address + path, headers={"Accept": "text/html"})
                assert answer.status in (404, 422), path
                assert "Back to the overview" in answer.text(), path
