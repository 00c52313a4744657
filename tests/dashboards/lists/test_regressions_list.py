"""The lists of regressions and of bisections: what their lines say, filters, folds, files, and who sees them."""

import csv
import io
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from sqlalchemy import select, update

from service.db.engine import clock, transaction
from service.db.models import Bisection, RegressionRow, Series
from service.domain.states import OPEN_REGRESSIONS, RegressionState, SearchState
from service.ledger.bisections.steps import SearchProgress, StepMark
from service.ledger.regressions import grouped, listing
from service.ledger.regressions.grouped import Attention, GroupOrder, RegressionFilter
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.lists import seed_big
from tests.dashboards.seed import Seeded, watched


@pytest.fixture
def get(decided: Seeded) -> Get:
    return asking()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """A service with incidents on several devices in every state, and hostile names."""
    with watched(tmp_path_factory.mktemp("big"), seed_big.small):
        yield asking()


def open_count() -> int:
    with transaction() as session:
        return len(session.scalars(select(RegressionRow.id).where(RegressionRow.state.in_(OPEN_REGRESSIONS))).all())


def test_the_heading_counts_what_is_open_by_cause(big: Get) -> None:
    said = words(big("/regressions"))
    [found] = re.findall(r"(\d+) open regressions, (\d+) causes; \d+ unassigned", said)
    assert int(found[0]) == open_count()
    assert said.count("Cases of") == int(found[1]), "each cause is one line"


def test_a_line_has_its_size_its_cause_its_commit_and_who_has_it(get: Get) -> None:
    said = words(get("/regressions"))
    line = next(part for part in said.split("Cases of") if "ada" in part)
    assert re.search(r"8\.7 % slower \w{10} .* ada (overdue for|due in) .* Open", line)
    assert re.search("slower because the kernel now spills 12 registers.*; worst|because the kernel.*; rmsnorm", line)


def test_the_most_severe_comes_first_and_accepted_ones_last(big: Get) -> None:
    with transaction() as session:
        now = clock(session)
        found = grouped.grouped(session, RegressionFilter(states=OPEN_REGRESSIONS), now).groups.items
        times = grouped.grouped(session, RegressionFilter(states=OPEN_REGRESSIONS), now, GroupOrder.TIME).groups.items
        assert [one.severity for one in found] == sorted((one.severity for one in found), reverse=True)
        assert [one.stake_us or 0 for one in times] == sorted((one.stake_us or 0 for one in times), reverse=True)
        assert not found[-1].count


@pytest.mark.parametrize(
    "which",
    [
        RegressionFilter(states=OPEN_REGRESSIONS),
        RegressionFilter(states=(RegressionState.BLAMED,)),
        RegressionFilter(states=OPEN_REGRESSIONS, device="h200"),
        RegressionFilter(states=OPEN_REGRESSIONS, assignee="ada"),
        RegressionFilter(states=OPEN_REGRESSIONS, attention=Attention.UNASSIGNED),
        RegressionFilter(states=OPEN_REGRESSIONS, attention=Attention.OVERDUE, device="h200"),
        RegressionFilter(states=OPEN_REGRESSIONS, text="layernorm"),
        RegressionFilter(states=OPEN_REGRESSIONS, text="100%_"),
        RegressionFilter(states=(RegressionState.FIXED,)),
        RegressionFilter(states=(RegressionState.DISMISSED,), device="h200"),
    ],
)
def test_groups_count_what_the_conditions_select(big: Get, which: RegressionFilter) -> None:
    """The groups are filtered in Python, files and unfolded lines by the database: both find the same."""
    with transaction() as session:
        now = clock(session)
        found = grouped.grouped(session, which, now, limit=100)
        listed = listing.listed(session, limit=5000, where=which.conditions(now)).items
        assert found.found == len(listed) == sum(one.states.total() for one in found.groups.items)
        state = which.states[0] if len(which.states) == 1 else None
        chosen = found.counts["state"]
        assert (chosen[state] if state else sum(chosen[one] for one in OPEN_REGRESSIONS)) == len(listed)


def test_a_closed_state_is_counted_among_the_newest_as_it_is_listed(big: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "MAX_CLOSED", 2)
    with transaction() as session:
        now = clock(session)
        of = select(RegressionRow).join(RegressionRow.series).where(RegressionRow.state.in_(OPEN_REGRESSIONS))
        [old] = session.scalars(of.where(Series.case.startswith("layernorm")).limit(1))
        newer = session.scalars(of.where(Series.case.startswith("rmsnorm")).limit(3)).all()
        for days_ago, row in enumerate((*newer, old)):
            row.state, row.fixed_at = RegressionState.FIXED, now - days_ago * 86_400
        session.flush()
        for text, listed, counted in (("rmsnorm", 2, 3), ("layernorm", 0, 0)):
            found = grouped.grouped(session, RegressionFilter(states=(RegressionState.FIXED,), text=text), now)
            assert (found.found, found.counts["state"][RegressionState.FIXED]) == (listed, counted), text
        session.rollback()


@pytest.mark.parametrize(
    ("query", "said"), [("", False), ("&sort=newest", False), ("&q=rmsnorm", True), ("&device=h200", True)]
)
def test_filters_of_a_closed_state_say_that_they_leave_out_what_is_older(big: Get, query: str, said: bool) -> None:
    assert ("of the newest 500," in words(big(f"/regressions?state=fixed{query}"))) is said


def test_each_filter_leads_to_as_many_as_it_says(big: Get) -> None:
    page = big("/regressions").text
    rail = page[page.index('id="filters"') :]
    links = re.findall(r'<a href="(/regressions[^"]*)"[^>]*><span title="[^"]*">[^<]*</span> <span>(\d+)</span>', rail)
    assert len(links) > 10
    for href, count in links:
        heading = re.search(r"<h1>(\d+|No)", big(href.replace("&amp;", "&")).text)
        assert heading is not None
        assert heading[1].replace("No", "0") == count, href


@pytest.mark.parametrize(("text", "found"), [("rmsnorm.fwd", True), ("rmsnorm_fwd", False), ("rms%fwd", False)])
def test_what_is_searched_for_is_no_pattern(big: Get, text: str, found: bool) -> None:
    heading = re.search(r"<h1>(\d+|No)", big(f"/regressions?{urlencode({'q': text})}").text)
    assert heading is not None
    assert (heading[1] != "No") is found


def test_pages_hold_every_cause_once(big: Get) -> None:
    with transaction() as session:
        now, which, seen, cursor = clock(session), RegressionFilter(states=OPEN_REGRESSIONS), [], None
        while True:
            page = grouped.grouped(session, which, now, cursor=cursor, limit=2)
            seen += [(one.target_id, one.revision_id, one.run_id) for one in page.groups.items]
            cursor = page.groups.next
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == page.of_groups


def test_a_line_unfolds_its_cases(big: Get) -> None:
    page = big("/regressions").text
    for address in re.findall(r'data-from="([^"]+)"', page):
        cases = big(address.replace("&amp;", "&"))
        assert cases.status_code == 200
        assert 'href="/regressions/' in cases.text
        assert "/compare?base=" in cases.text or "Since" in words(cases)


def test_a_line_that_is_gone_says_where_to_look(get: Get) -> None:
    assert "They may have been fixed since" in words(get("/regressions/cases?target=norms&run=999999"))
    assert get("/regressions/cases?target=norms").status_code == 422
    assert get("/regressions/cases?run=1").status_code == 422


def test_the_file_has_a_line_for_each_case_and_no_formula(big: Get) -> None:
    with transaction() as session:
        row = session.scalars(select(RegressionRow).where(RegressionRow.state == RegressionState.BLAMED)).first()
        assert row is not None
        row.assignee = "=HYPERLINK(1)"
    answer = big("/regressions.csv")
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(found) == open_count()
    assert [one["assignee"] for one in found if "HYPER" in one["assignee"]] == ["'=HYPERLINK(1)"]
    assert {one["device"] for one in csv.DictReader(io.StringIO(big("/regressions.csv?device=h200").text))} == {"h200"}


def test_what_a_reader_types_is_only_text(get: Get) -> None:
    page = get("/regressions", params={"q": '"><script>alert(1)</script>', "assignee": "<b>", "device": "'%"})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "None fit these filters" in words(page)
    assert get("/regressions?target=none").status_code == 404
    assert get("/regressions?cursor=x").status_code == 422


def test_bisections_say_how_far_they_are(big: Get) -> None:
    said = words(big("/bisections"))
    assert "0 bisections running, 1 ended" in said
    assert re.search(r"culprit \w{10} 4 steps", said)
    with transaction() as session:
        session.execute(update(Bisection).values(state=SearchState.SEARCHING, culprit=None, reason=None))
    said = words(big("/bisections?target=norms"))
    assert "1 bisection running, 0 ended of norms" in said
    assert re.search(r"no result yet .* 4 steps, at most 20 left \d+ suspects?", said)
    assert "None is stopped" in words(big("/bisections?state=stopped"))
    assert "4 steps" in words(big("/bisections?state=searching"))


@pytest.mark.parametrize(
    ("marks", "suspects"),
    [
        ({}, 8),
        ({8: StepMark.SLOWER}, 8),
        ({8: StepMark.SLOWER, 4: StepMark.GOOD}, 4),
        ({8: StepMark.SLOWER, 4: StepMark.SLOWER, 2: StepMark.GOOD}, 2),
        ({8: StepMark.SLOWER, 4: StepMark.FAILED, 5: StepMark.PENDING}, 8),
        ({4: StepMark.SLOWER, 6: StepMark.GOOD}, 4),
    ],
)
def test_suspects_are_between_the_last_good_and_the_first_slow_revision(
    marks: dict[int, StepMark], suspects: int
) -> None:
    row = Bisection(line=[str(n) for n in range(9)], max_runs=24)
    found = SearchProgress(row, len(marks), marks)
    assert (found.suspects, found.left) == (suspects, 24 - len(marks))
