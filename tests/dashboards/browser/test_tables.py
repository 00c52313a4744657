"""The tables of every page: sorted, searched, folded, copied and linked to, through refreshes and on a phone."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.big.seeder import Places
from tests.dashboards.conftest import reachable
from tests.dashboards.lists import seed_big
from tests.dashboards.seed import watched

QUEUE = "#table-queue"
ROWS = f"{QUEUE} tbody tr"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Places]]:
    """The address of a service with a long queue and hostile names, and where things are in it."""
    sow = watched(tmp_path_factory.mktemp("busy"), seed_big.small)
    with sow as places, reachable() as address:
        yield address, places


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"{ROWS}:visible td:nth-child({number})").all_inner_texts()


def test_a_head_sorts_its_column_and_gives_the_first_order_back(page: Page, busy: tuple[str, Places]) -> None:
    page.goto(f"{busy[0]}/workers")
    page.get_by_role("button", name="Show all").click()
    before = column(page, 1)
    assert len(before) > 25
    head = page.locator(f"{QUEUE} th", has_text="Run")
    button = head.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert column(page, 1) == sorted(before, key=int, reverse=True), "numbers by the largest"
    expect(head).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    assert column(page, 1) == sorted(before, key=int)
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.locator(f"{QUEUE} th", has_text="Device").get_by_role("button").click()
    assert column(page, 4) == sorted(column(page, 4)), "words by the alphabet"
    assert page.locator(f"{QUEUE} [aria-sort]").count() == 1
    button.click()
    button.click()
    button.click()
    assert column(page, 1) == before
    assert page.locator(f"{QUEUE} [aria-sort]").count() == 0


def test_a_head_that_leads_to_its_explanation_still_sorts(page: Page, busy: tuple[str, Places]) -> None:
    page.goto(f"{busy[0]}/workers")
    head = page.locator("#table-workers th", has_text="A/A")
    button, link = head.get_by_role("button"), head.get_by_role("link", name="What is “A/A”?")
    button.click()
    expect(head).to_have_attribute("aria-sort", "descending")
    button.focus()
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#a-a")).to_be_in_viewport()
    expect(page.locator("h1")).to_have_text("Glossary")


def test_order_search_fold_and_focus_survive_ten_refreshes(page: Page, busy: tuple[str, Places]) -> None:
    page.goto(f"{busy[0]}/workers")
    assert len(column(page, 1)) == 12
    field = page.get_by_role("searchbox", name="Search Queue")
    field.fill("H200")
    button = page.locator(f"{QUEUE} th", has_text="Run").get_by_role("button")
    button.click()
    found = column(page, 1)
    assert found == sorted(found, key=int, reverse=True)
    assert set(column(page, 4)) == {"h200"}, "also of the rows that were folded"
    total = page.locator(ROWS).count()
    expect(page.locator(f"{QUEUE} [role=status]")).to_have_text(f"{len(found)} of {total}")
    page.evaluate("""() => {
      document.querySelector("[data-live]").dataset.live = "0.05";
      let refreshes = 0;
      document.addEventListener("kernelwatch:morphed", () => {
        document.body.dataset.refreshes = String(++refreshes);
        document.querySelector("[data-live]").dataset.live = "0.05";
      });
    }""")
    expect(page.locator("body")).to_have_attribute("data-refreshes", re.compile(r"\d\d"), timeout=30_000)
    assert column(page, 1) == found
    assert button.evaluate("one => one === document.activeElement")
    expect(field).to_have_value("H200")
    field.fill("")
    assert len(column(page, 1)) == 12, "folded again"


@pytest.mark.parametrize("name", ["copy", "Markdown"])
def test_what_is_shown_is_copied(browser: Browser, busy: tuple[str, Places], name: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{busy[0]}/workers")
    page.locator("#table-workers").get_by_role("button", name=name).click()
    page.get_by_text("copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").split("\n")
    if name == "copy":
        assert lines[0].split("\t") == [
            "Worker",
            "Device",
            "State",
            "Running",
            "Last seen",
            "Last run",
            "Failed",
            "A/A",
        ]
        assert any("NVIDIA B200 <script>alert(3)</script>" in line for line in lines)
    else:
        assert lines[0] == "| Worker | Device | State | Running | Last seen | Last run | Failed | A/A |"
        assert lines[1] == "| --- | --- | --- | --- | --- | --- | --: | --: |"
        assert any(r"NVIDIA B200 \<script\>alert(3)\</script\>" in line for line in lines)
    assert len(lines) == 9 + (name == "Markdown")
    context.close()


def test_a_formula_is_copied_as_text_and_a_number_as_a_number(browser: Browser, busy: tuple[str, Places]) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{busy[0]}/workers")
    page.evaluate("""() => {
      const cells = document.querySelectorAll("#table-workers tbody tr:first-child td");
      cells[0].textContent = "=HYPERLINK(1)";
      cells[1].textContent = "-3.2 %";
      cells[2].textContent = "@ada | *x*";
    }""")
    box = page.locator("#table-workers")
    box.get_by_role("button", name="copy").click()
    page.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").split("\n")[1].startswith("'=HYPERLINK(1)\t-3.2 %\t'@ada")
    box.get_by_role("button", name="Markdown").click()
    box.locator("[data-format=markdown]", has_text="copied").wait_for()
    assert "@\u200bada \\| \\*x\\*" in page.evaluate("navigator.clipboard.readText()")
    context.close()


def test_a_row_has_a_link_that_shows_it_though_it_is_folded(browser: Browser, busy: tuple[str, Places]) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{busy[0]}/workers")
    last = page.locator(ROWS).last
    expect(last).to_be_hidden()
    page.get_by_role("button", name="Show all").click()
    last.hover()
    last.get_by_role("link", name="Link to this row").click()
    last.get_by_text("copied").wait_for()
    expect(page.locator("[aria-live=polite]")).to_have_text("It is on the clipboard.")
    address = page.evaluate("navigator.clipboard.readText()")
    assert address == page.url
    page.goto("about:blank")
    page.goto(address)
    expect(last).to_be_in_viewport()
    expect(page.locator(f"{ROWS}:visible")).to_have_count(13)
    context.close()


def test_a_phone_shows_a_row_as_two_lines(page: Page, busy: tuple[str, Places]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{busy[0]}/workers")
    row = page.locator("#table-workers tbody tr", has_text="h200-box-0")
    name, state, seen = (row.locator(one).bounding_box() for one in ("[data-cell=name]", "[data-cell=value]", "time"))
    assert name is not None
    assert state is not None
    assert seen is not None
    assert abs(name["y"] - state["y"]) < 4
    assert seen["y"] >= name["y"] + name["height"]
    assert state["x"] + state["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#table-workers").get_by_role("button", name="Worker").click()
    expect(page.locator("#table-workers tbody tr").first).to_contain_text("b200-rack-7")


def test_without_script_every_row_is_shown_and_nothing_pretends_to_work(
    browser: Browser, busy: tuple[str, Places]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{busy[0]}/workers")
    assert page.locator(f"{ROWS}:visible").count() == page.locator(ROWS).count() > 25
    assert page.locator("main button:visible, main input:visible").count() == 0
    expect(page.locator(QUEUE).get_by_role("link", name="JSON")).to_be_visible()
    context.close()
