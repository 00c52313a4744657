"""Targets in the browser: add one, change its recipe, pause, rename and remove it; as each role, twice, too late."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import event

from service.db.engine import engine, reading, transaction
from service.db.models import Target
from service.domain.states import RunState
from service.ledger.targets import find, target_named
from service.settings import settings
from tests import world
from tests.dashboards.acting.site import HOSTILE, Site, client, fields
from tests.dashboards.browser.variants import PHONE, SCRIPTS_AND_VIEWPORTS
from tests.dashboards.inspection import CONTRAST, barriers, excess_width
from tests.dashboards.seed import RECIPE
from tests.fakes.repository import Repository

WRONG = RECIPE.replace("smallest_change = 0.02", "smallest_chang = 0.02")
LINE = WRONG.split("\n").index("smallest_chang = 0.02") + 1
MORE = RECIPE.replace("0.02", "0.05").replace('"rmsnorm.bwd.4096x1024.bf16-fp32"', '"layernorm.fwd.64x1024.bf16-fp32"')
VERBS = ("pause", "resume", "rename", "backfill", "remove")
_names = (f"watched-{n}" for n in count())


@pytest.fixture
def repository(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    made = Repository(tmp_path / "repository")
    made.commit("first", {"norms.py": ""})
    yield made
    monkeypatch.undo()
    settings.cache_clear()


def request(name: str, repository: Repository, **more: str) -> dict[str, str]:
    usual = {"name": name, "location": str(repository.folder), "backfill": "1", "recipe": RECIPE, "do": "save"}
    return usual | {"private": "no", "trusted": "no"} | more


def seen(text: str) -> str:
    return text.partition('name="seen" value="')[2].partition('"')[0]


def watched(repository: Repository | None = None, **columns: object) -> str:
    name = next(_names)
    location = {"location": str(repository.folder)} if repository is not None else {}
    world.target(RECIPE, name=name, **location | columns)
    return name


def stored(name: str) -> Target | None:
    with reading() as session:
        return find(session, name)


def recipe_of(name: str) -> str:
    with reading() as session:
        found = target_named(session, name).recipe
        assert found is not None
        return found.text


def fill(page: Page, name: str, repository: Repository, recipe: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Location").fill(str(repository.folder))
    page.get_by_label("Recipe").fill(recipe)


@contextmanager
def before_transaction(place: int, act: Callable[[], object]) -> Iterator[None]:
    """Act once, before the transaction of this place begins, counted from 0."""
    places = count()

    def step(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith("BEGIN") and next(places) == place:  # before SQLite's lock is taken
            act()

    event.listen(engine(), "before_cursor_execute", step)
    yield
    event.remove(engine(), "before_cursor_execute", step)


# -- add


@SCRIPTS_AND_VIEWPORTS
def test_a_target_is_checked_corrected_and_added(
    browser: Browser, site: Site, repository: Repository, script: bool, viewport: dict[str, int]
) -> None:
    name = next(_names)
    with site.as_person(browser, "alma", java_script_enabled=script, viewport=viewport) as page:
        page.goto(site.address)
        page.get_by_role("link", name="Add a target").click()
        fill(page, name, repository, WRONG)
        page.get_by_role("button", name="Check").click()
        editor = page.get_by_label("Recipe")
        expect(editor).to_have_attribute("aria-invalid", "true")
        assert "mistakes" in str(editor.get_attribute("aria-describedby"))
        expect(page.locator(".mistakes li")).to_contain_text([f"line {LINE} smallest_chang = 0.02"])
        expect(page.locator(".numbers .wrong")).to_have_text(str(LINE))
        expect(editor).to_have_value(WRONG)
        if script:
            assert (excess_width(page), page.evaluate(CONTRAST), barriers(page)) == (0, [], {})

        editor.fill(RECIPE)
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_role("heading", name="h200: 2 cases of suite norms")).to_be_visible()
        assert stored(name) is None, "a check saves nothing"
        if script:
            assert (excess_width(page), page.evaluate(CONTRAST), barriers(page)) == (0, [], {})
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Target {name} is added: 2 runs queued.")
    assert recipe_of(name) == RECIPE, "line breaks are kept"
    assert site.audited(f"target {name}") == ["person alma target.add"]


@pytest.mark.parametrize(("who", "status"), [(None, 401), ("rita", 403), ("tina", 403), ("wendy", 403), ("alma", 200)])
def test_only_administrators_add_targets(site: Site, repository: Repository, who: str | None, status: int) -> None:
    name = next(_names)
    with client(site, who) as person:
        shown = person.get("/targets/new")
        assert (shown.status_code, "<textarea" in shown.text) == (200, status == 200)
        for do in ("check", "save"):
            sent = person.post("/targets/new", data=fields(person, **request(name, repository, do=do)))
            assert sent.status_code == status, do
    assert (stored(name) is not None) == (status == 200)


def test_many_clicks_add_one_target(site: Site, repository: Repository) -> None:
    name = next(_names)
    with client(site, "alma") as alma, ThreadPoolExecutor(4) as pool:
        form = fields(alma, **request(name, repository))
        sent = list(pool.map(lambda _: alma.post("/targets/new", data=form), range(4)))
        assert [one.status_code for one in sent] == [200] * 4
        assert {one.url.path for one in sent} == {f"/targets/{name}"}
        other = alma.post("/targets/new", data=form | {"recipe": MORE})
    assert (other.status_code, f"There is a target {name} already" in other.text) == (409, True)
    assert recipe_of(name) == RECIPE
    assert site.audited(f"target {name}") == ["person alma target.add"]


@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        ({"name": "Norms!"}, 422, "cannot be a target&#39;s name"),
        ({"name": "new"}, 422, "is a page of the dashboard"),
        ({"location": "/etc"}, 403, "KERNELWATCH_ALLOWED_ROOTS"),
        ({"backfill": "many"}, 422, "a number from 0 to 1000"),
        ({"recipe": "devices = ["}, 422, "line 1"),
        ({"recipe": 'adapters = ["a.py"]' + RECIPE}, 422, "a.py"),
        ({"recipe": "", "location": ""}, 422, "“Location” is missing"),
        ({"forge": HOSTILE}, 422, "Not added"),
    ],
)
@pytest.mark.parametrize("do", ["check", "save"])
def test_a_mistake_adds_nothing_and_loses_no_text(
    site: Site, repository: Repository, wrong: dict[str, str], status: int, said: str, do: str
) -> None:
    name = next(_names)
    with client(site, "alma") as alma:
        origin = {"Origin": site.address}
        form = fields(alma, **request(name, repository, branch="a-branch", do=do) | wrong)
        sent = alma.post("/targets/new", data=form, headers=origin)
    assert (sent.status_code, said in sent.text) == (status, True)
    assert 'value="a-branch"' in sent.text
    assert "<img src=x" not in sent.text
    assert stored(wrong.get("name", name)) is None


def test_examples_are_starting_points(site: Site) -> None:
    with client(site, "alma") as alma:
        assert "start=norms" in alma.get("/targets/new").text
        assert "[providers.norms-triton]" in alma.get("/targets/new?start=norms").text


# -- the recipe


@SCRIPTS_AND_VIEWPORTS
def test_a_recipe_is_changed_after_a_look_at_what_it_changes(
    browser: Browser, site: Site, repository: Repository, script: bool, viewport: dict[str, int]
) -> None:
    name = watched(repository)
    with site.as_person(browser, "alma", java_script_enabled=script, viewport=viewport) as page:
        page.goto(f"{site.address}/targets/{name}/recipe")
        page.get_by_label("Recipe").fill(MORE)
        page.get_by_role("button", name="Check").click()
        changes = page.locator("section", has=page.get_by_role("heading", name="What it changes"))
        expect(changes).to_contain_text("+ layernorm.fwd.64x1024.bf16-fp32")
        expect(changes).to_contain_text("− rmsnorm.bwd.4096x1024.bf16-fp32")
        expect(changes.locator("dd").filter(has_text="0.02 → 0.05").first).to_be_visible()
        expect(page.locator(".diff .now")).to_contain_text(["layernorm", "0.05"])
        assert recipe_of(name) == RECIPE
        if script:
            assert (excess_width(page), page.evaluate(CONTRAST), barriers(page)) == (0, [], {})
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text(f"The recipe of {name} is saved.")
    assert recipe_of(name) == MORE
    assert site.audited(f"target {name}") == ["person alma target.edit"]


@pytest.mark.parametrize("who", [None, "rita", "wendy", "alma"])
def test_everybody_reads_a_recipe_and_administrators_change_it(
    site: Site, repository: Repository, who: str | None
) -> None:
    name = watched(repository)
    with client(site, who) as person:
        shown = person.get(f"/targets/{name}/recipe")
        assert (shown.status_code, "smallest_change" in shown.text) == (200, True)
        assert ("<textarea" in shown.text) == (who == "alma")
        form = fields(person, recipe=MORE, do="save", seen=seen(shown.text) or "0")
        sent = person.post(f"/targets/{name}/recipe", data=form)
    assert sent.status_code == {None: 401, "alma": 200}.get(who, 403)
    assert recipe_of(name) == (MORE if who == "alma" else RECIPE)


def test_a_stale_recipe_page_says_who_changed_what(site: Site, repository: Repository) -> None:
    name = watched(repository)
    with client(site, "alma") as alma:
        path, origin = f"/targets/{name}/recipe", {"Origin": site.address}
        stale = fields(alma, do="save", seen=seen(alma.get(path).text))
        saved = alma.post(path, data=stale | {"recipe": MORE}, headers=origin)
        again = alma.post(path, data=stale | {"recipe": MORE}, headers=origin)
        mine = RECIPE.replace("0.02", "0.03")
        late = alma.post(path, data=stale | {"recipe": mine}, headers=origin)
        assert (saved.status_code, again.status_code, late.status_code) == (200, 200, 409)
        assert "saved version" in late.text
        assert "<b>alma</b>" in late.text
        assert "smallest_change = 0.03</textarea>" in late.text.replace("\n</textarea>", "</textarea>")
        assert recipe_of(name) == MORE
        assert alma.post(path, data=stale | {"recipe": mine, "seen": seen(late.text)}).status_code == 200
    assert recipe_of(name) == mine


def test_of_two_recipes_at_once_one_is_saved(site: Site, repository: Repository) -> None:
    name = watched(repository)
    path, texts = f"/targets/{name}/recipe", [RECIPE.replace("0.02", f"0.0{n}") for n in range(3, 9)]
    with client(site, "alma") as alma, ThreadPoolExecutor(6) as pool:
        form = fields(alma, do="save", seen=seen(alma.get(path).text))
        sent = list(pool.map(lambda text: alma.post(path, data=form | {"recipe": text}).status_code, texts))
    assert sorted(sent) == [200, 409, 409, 409, 409, 409]
    assert recipe_of(name) == texts[sent.index(200)]
    assert len(site.audited(f"target {name}")) == 1


def test_a_recipe_of_the_branch_is_named_as_such(site: Site, repository: Repository) -> None:
    name = watched(recipe_from_branch=True)
    with client(site, "rita") as rita:
        assert "kernelwatch.toml" in rita.get(f"/targets/{name}/recipe").text


# -- pause, rename, remove


@pytest.mark.parametrize("who", [None, "rita", "tina", "wendy", "alma"])
def test_each_role_sees_the_changes_that_it_may_make(browser: Browser, site: Site, who: str | None) -> None:
    name = watched(forge="octo/norms")
    with site.as_person(browser, who) as page:
        page.goto(f"{site.address}/targets/{name}")
        section = page.locator(".change")
        expect(section.get_by_role("button", name="Pause")).to_have_count(int(who == "alma"))
        expect(section.get_by_role("link", name="Remove")).to_have_count(int(who == "alma"))
        expect(section.locator("summary", has_text="older revisions")).to_have_count(int(who in ("alma", "wendy")))
        if who is None:
            page.get_by_role("heading", name="Change this target").click()
            expect(page.locator(".note")).to_contain_text("Sign in to do this here")
    with client(site, who) as person:
        sent = person.post(f"/targets/{name}/change/pause", data=fields(person))
    assert sent.status_code == {None: 401, "alma": 200}.get(who, 403)
    found = stored(name)
    assert found is not None
    assert (found.paused_at is not None) == (who == "alma")


@pytest.mark.parametrize("script", [True, False])
def test_a_target_is_paused_resumed_renamed_and_removed(browser: Browser, site: Site, script: bool) -> None:
    name, new = watched(), next(_names)
    with transaction() as session:
        target_id = target_named(session, name).id
        world.run(session, world.commit(session, target_id, 1), state=RunState.DONE, finished_at=1.0)
    with site.as_person(browser, "alma", java_script_enabled=script, viewport=PHONE) as page:
        page.goto(f"{site.address}/targets/{name}")
        for verb, said in (("Pause", "is paused"), ("Resume", "takes new revisions again")):
            page.locator(".change").get_by_role("button", name=verb).click()
            expect(page.get_by_role("status")).to_contain_text(said)
        page.locator(".change summary", has_text="Rename").click()
        page.get_by_label("New name").fill(new)
        page.locator(".change").get_by_role("button", name="Rename").click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Target {name} is now {new}.")
        page.locator(".change").get_by_role("link", name="Remove").click()
        expect(page.locator("main")).to_contain_text("1 revision, 1 run, 0 measurements and 0 regressions")
        if script:
            assert (excess_width(page), page.evaluate(CONTRAST), barriers(page)) == (0, [], {})
        page.get_by_label(f"Type {new} to confirm").fill(name)
        page.get_by_role("button", name=f"Remove {new}").click()
        expect(page.get_by_role("alert")).to_contain_text(f"Type {new}, the name of the target")
        page.get_by_label(f"Type {new} to confirm").fill(new)
        page.get_by_role("button", name=f"Remove {new}").click()
        expect(page.get_by_role("status")).to_have_text(f"✓ Target {new} is removed.")
    assert stored(new) is None
    assert site.audited(f"target {new}") == ["person alma target.remove"]


@pytest.mark.parametrize(
    ("verb", "typed"), [("pause", {}), ("resume", {}), ("rename", {"name": "{0}-b"}), ("remove", {"typed": "{0}"})]
)
def test_many_clicks_change_a_target_once(site: Site, verb: str, typed: dict[str, str]) -> None:
    name = watched(paused_at=1.0 if verb == "resume" else None)
    values = {key: text.format(name) for key, text in typed.items()}
    with client(site, "alma") as alma, ThreadPoolExecutor(4) as pool:
        form = fields(alma, **values)
        sent = list(pool.map(lambda _: alma.post(f"/targets/{name}/change/{verb}", data=form), range(4)))
    assert [one.status_code for one in sent] == [200] * 4
    assert site.audited(f"target {name}") == [f"person alma target.{verb}"]


@pytest.mark.parametrize(("verb", "typed"), [("rename", {"name": "{0}-b"}), ("remove", {"typed": "{0}"})])
def test_a_form_gets_the_answer_of_the_first_wherever_that_was_carried_out(
    site: Site, verb: str, typed: dict[str, str]
) -> None:
    """Before each of the transactions of a second form in turn, the first is carried out from beginning to end."""
    with client(site, "alma") as alma:
        for place in count():
            name = watched()
            form = fields(alma, **{key: text.format(name) for key, text in typed.items()})
            send = partial(alma.post, f"/targets/{name}/change/{verb}", data=form)
            first: list[httpx.Response] = []
            with before_transaction(place, lambda send=send, first=first: first.append(send())):
                second = send()
            if not first:
                break
            assert (second.status_code, second.url.path) == (200, first[0].url.path), place
            assert site.audited(f"target {name}") == [f"person alma target.{verb}"]
    assert place > 3, "a form takes several transactions"


def test_older_revisions_are_queued_by_who_may_write(site: Site, repository: Repository) -> None:
    name = next(_names)
    shas = [repository.commit(f"commit {n}", {"norms.py": f"# {n}"}) for n in range(3)]
    with client(site, "alma") as alma:
        added = alma.post("/targets/new", data=fields(alma, **request(name, repository, backfill="0")))
        assert "0 runs queued" in added.text
        form = fields(alma, base=shas[0], head=shas[2])
        queued = alma.post(f"/targets/{name}/change/backfill", data=form)
        again = alma.post(f"/targets/{name}/change/backfill", data=form)
    assert (queued.status_code, f"4 runs of {name} queued." in queued.text) == (200, True)
    assert (again.status_code, "Nothing new" in again.text) == (200, True)


@pytest.mark.parametrize("who", [None, "rita", "theo", "wendy"])
def test_a_private_target_does_not_exist_for_others(site: Site, who: str | None) -> None:
    paths = ["/targets/{0}/recipe", *(f"/targets/{{0}}/change/{verb}" for verb in VERBS)]
    with client(site, who) as person:
        for path in paths:
            hidden, absent = person.get(path.format("secret")), person.get(path.format("absent"))
            assert (hidden.status_code, absent.status_code) == (404, 404), path
            assert hidden.text.replace("secret", "N") == absent.text.replace("absent", "N"), path
            sent = person.post(path.format("secret"), data=fields(person, recipe=MORE, typed="secret", name="mine"))
            assert sent.status_code == 404, path
    assert stored("secret") is not None
