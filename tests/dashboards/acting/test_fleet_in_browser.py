"""Runs and workers in a real browser: approve, cancel, retry, drain and resume, as each role, twice and too late."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from playwright.sync_api import Browser, Page, expect

from service.db.engine import clock, reading, transaction
from service.db.models import Run, Worker
from service.domain.states import RunState
from service.ledger.runs import queue
from tests import world
from tests.dashboards.acting.site import HOSTILE, Site, client, fields
from tests.dashboards.browser.variants import SCRIPTS_AND_VIEWPORTS
from tests.dashboards.inspection import CONTRAST, barriers

_places = count(1000)


def waits(state: RunState = RunState.HELD, target: str = "norms", **columns: object) -> tuple[int, str]:
    """A run of a pull request from a fork, and its commit."""
    with transaction() as session:
        place = next(_places)
        revision = world.commit(session, SITES[0].targets[target], place, subject=f"{HOSTILE} at {place}")
        columns = {"trusted": False, "pull": place, "created_at": clock(session), "device": f"cpu{place}"} | columns
        return world.run(session, revision, state=state, **columns).id, revision.sha


SITES: list[Site] = []


@pytest.fixture(autouse=True)
def _remember(site: Site) -> None:
    SITES[:] = [site]


def worker(name: str) -> int:
    with transaction() as session:
        queue.register(session, name, "cpu", f"2 cores {HOSTILE}", None, None)
    with reading() as session:
        return next(one.id for one in session.query(Worker) if one.name == name)


def state_of(run_id: int) -> RunState:
    with reading() as session:
        return session.get_one(Run, run_id).state


def confirm(page: Page, name: str) -> None:
    page.locator("form.form").get_by_role("button", name=name).click()


@pytest.mark.parametrize("who", [None, "rita", "tina", "wendy", "alma"])
def test_each_role_sees_the_actions_that_it_may_do(browser: Browser, site: Site, who: str | None) -> None:
    run_id, sha = waits()
    name = f"box-{who}/cpu-0"
    number = worker(name)
    with site.as_person(browser, who) as page:
        page.goto(f"{site.address}/workers")
        row = page.locator(f"#held-{run_id}")
        may_run, may_drain = who in ("wendy", "alma"), who == "alma"
        expect(row.get_by_role("button", name=f"Approve {sha[:10]}")).to_have_count(int(may_run))
        expect(page.locator(f"tr[id='worker-{name}']").get_by_role("button", name="Drain")).to_have_count(
            int(may_drain)
        )
        page.goto(f"{site.address}/runs/{run_id}")
        expect(page.get_by_role("button", name="Approve")).to_have_count(int(may_run))
        for path in (f"/runs/{run_id}/approve", f"/workers/{number}/drain"):
            page.goto(f"{site.address}{path}")
            allowed = may_run if "runs" in path else may_drain
            expect(page.locator("form.form")).to_have_count(int(allowed))
            if who is None:
                expect(page.locator(".note")).to_contain_text("Sign in to do this here")
    assert state_of(run_id) is RunState.HELD


@SCRIPTS_AND_VIEWPORTS
def test_the_pull_request_of_a_fork_is_approved_and_taken(
    browser: Browser, site: Site, script: bool, viewport: dict[str, int]
) -> None:
    run_id, sha = waits()
    with site.as_person(browser, "wendy", java_script_enabled=script, viewport=viewport) as page:
        page.goto(f"{site.address}/workers")
        page.locator(f"#held-{run_id}").get_by_role("button", name=f"Approve {sha[:10]}").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Run the code of commit {sha} of norms?")
        assert state_of(run_id) is RunState.HELD, "nothing happens before the answer"
        confirm(page, "Approve")
        expect(page.get_by_role("status")).to_have_text(f"✓ Commit {sha[:10]} of norms is approved.")
        if script:
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    with transaction() as session:
        run = session.get_one(Run, run_id)
        lease = queue.next_run(session, run.device, "a worker", 60.0)
        assert lease is not None
        assert lease.run_id == run_id
    assert site.audited(f"run {run_id}") == ["person wendy run.approve"]


def test_a_run_is_cancelled_and_retried(browser: Browser, site: Site) -> None:
    run_id, _ = waits(RunState.QUEUED)
    with site.as_person(browser, "wendy") as page:
        page.goto(f"{site.address}/runs/{run_id}")
        page.get_by_role("button", name="Cancel run").click()
        confirm(page, "Cancel run")
        expect(page.get_by_role("status")).to_have_text(f"✓ Run {run_id}: cancelled.")
        assert state_of(run_id) is RunState.CANCELLED
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Run {run_id}: held for approval.")
    assert state_of(run_id) is RunState.HELD, "nobody has approved the code"
    assert site.audited(f"run {run_id}") == ["person wendy run.cancel", "person wendy run.retry"]


def test_a_worker_is_drained_and_resumed(browser: Browser, site: Site) -> None:
    name = "serviced/cpu-0"
    worker(name)
    with site.as_person(browser, "alma", color_scheme="dark") as page:
        page.goto(f"{site.address}/workers")
        row = page.locator(f"tr[id='worker-{name}']")
        row.get_by_role("button", name="Drain").click()
        confirm(page, "Drain")
        expect(page.get_by_role("status")).to_have_text("✓ Worker serviced/cpu-0 takes no run.")
        expect(row).to_contain_text("drained")
        expect(row).to_contain_text("drained by alma")
        assert barriers(page) == {}
        assert page.evaluate(CONTRAST) == []
        row.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_have_text("✓ Worker serviced/cpu-0 takes runs again.")
    assert site.audited("worker serviced/cpu-0") == ["person alma worker.pause", "person alma worker.resume"]


def test_a_stale_page_neither_approves_another_commit_nor_undoes_what_others_did(browser: Browser, site: Site) -> None:
    run_id, _ = waits()
    failed, _ = waits(RunState.FAILED, attempt=3, trusted=True)
    with site.as_person(browser, "wendy") as page:
        page.goto(f"{site.address}/runs/{run_id}/approve")
        page.locator("main input[name=sha]").evaluate("field => field.value = 'f'.repeat(40)")
        confirm(page, "Approve")
        confirm(page, "Approve")
        expect(page.get_by_role("alert")).to_contain_text("and not the commit that the form was sent for")
        assert state_of(run_id) is RunState.HELD
        page.goto(f"{site.address}/runs/{failed}")
        with transaction() as session:
            session.get_one(Run, failed).attempt = 4
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("alert")).to_contain_text("was tried again after you opened the page")
        page.goto(f"{site.address}/runs/{run_id}/cancel")
        with transaction() as session:
            session.get_one(Run, run_id).state = RunState.DONE
        confirm(page, "Cancel run")
        confirm(page, "Cancel run")
        expect(page.get_by_role("alert")).to_contain_text("has ended already: it is done")


@pytest.mark.parametrize("verb", ["approve", "cancel", "retry"])
def test_a_double_click_does_it_once(site: Site, verb: str) -> None:
    state = {"approve": RunState.HELD, "cancel": RunState.QUEUED, "retry": RunState.FAILED}[verb]
    run_id, sha = waits(state)
    with client(site, "wendy") as person:
        sent = fields(person, seen="0", sha=sha, confirmed="yes")
        headers = {"Origin": site.address}
        with ThreadPoolExecutor(2) as pool:
            both = list(
                pool.map(lambda _: person.post(f"/runs/{run_id}/{verb}", data=sent, headers=headers).status_code, "ab")
            )
    assert both == [200, 200]
    assert site.audited(f"run {run_id}") == [f"person wendy run.{verb}"]


def test_a_private_run_is_in_no_list_and_has_no_form(browser: Browser, site: Site) -> None:
    run_id, sha = waits(target="secret")
    queued, _ = waits(RunState.QUEUED, target="secret")
    for who, sees in ((None, False), ("wendy", False), ("tina", True)):
        with site.as_person(browser, who) as page:
            page.goto(f"{site.address}/workers")
            expect(page.locator(f"#held-{run_id}")).to_have_count(int(sees))
            assert (sha[:10] in page.content()) is sees
            assert (f'id="run-{queued}"' in page.content()) is sees
            answer = page.goto(f"{site.address}/runs/{run_id}/approve")
            assert answer is not None
            assert answer.status == (200 if sees else 404)
