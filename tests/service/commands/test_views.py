"""What commands print of a document: as a table of any width, as CSV, and as Markdown."""

import csv
import io

import pytest
from rich.console import Console

from kernelwatch.client import Page
from kernelwatch.client.models import RunItem
from service.commands.output.formats import as_csv, as_json, as_markdown
from service.commands.output.layout import lines
from service.commands.output.views import Column, Table, View, text
from service.commands.views import reports, runs
from tests.fakes.documents import CASE, measurement, run, verdict

WIDE = "rmsnorm_noweight_residual.fwdbwd.32768x16384.bf16-fp32.compile"
SPILLS = "slower because the kernel now spills 50 registers at N=16384; 5 of 5 fresh trials agree"


def shown(view: View, width: int = 10_000) -> str:
    return "\n".join(line.plain for line in lines(view.parts, width))


# -- the result of a run


def test_a_report_says_what_matters_first() -> None:
    cases = [verdict(case=f"rmsnorm.fwd.{rows}x1024.bf16") for rows in range(1, 401)]
    slow = verdict("regression", 1.102, summary=SPILLS)
    said = shown(reports.report(run(*cases, slow, headline="1 regression at aaaaaaaaaa on h200")), 80).splitlines()
    assert said[0] == "1 regression at aaaaaaaaaa on h200"
    assert len(said) < 12, "400 steady cases are not what a person reads first"
    assert any(CASE in line and "regression" in line and "1.102" in line for line in said)
    assert "401 cases: 400 steady, 1 regression. Use --all to list every case." in " ".join(said)
    assert said[-1] == "http://127.0.0.1:8712/runs/7"


def test_all_cases_are_listed_if_that_is_asked_for() -> None:
    found = run(
        verdict("steady"), verdict("regression", 1.2, WIDE), verdict("inconclusive", 1.03, "rmsnorm.fwd.1x8.fp32")
    )
    said = shown(reports.report(found, every=True))
    assert said.index(WIDE) < said.index("rmsnorm.fwd.1x8.fp32") < said.index(CASE), "the most severe first"
    assert "Use --all" not in said


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_report_fits_the_terminal(width: int) -> None:
    found = run(
        verdict("regression", 1.102, WIDE, summary=SPILLS),
        verdict("failed", None, summary="the kernel wrote outside of its output"),
        measurements=(measurement(case=WIDE), measurement("parent", 31.0, WIDE)),
        notes=["Measured again, because the controls of the first session failed."],
    )
    said = shown(reports.report(found, every=True), width).splitlines()
    assert max(map(len, said)) <= width
    assert "spills 50 registers" in " ".join(" ".join(said).split()), "a reason has lines of its own"


def test_a_column_that_does_not_fit_is_named() -> None:
    found = run(verdict("regression", 1.102, WIDE), measurements=(measurement(case=WIDE),))
    wide, narrow = shown(reports.report(found)), shown(reports.report(found), 100)
    assert "35.0 µs" in wide
    assert "35.0 µs" not in narrow
    assert "Left out to fit: " in narrow
    assert "head" in narrow.split("Left out to fit: ")[1]


def test_a_report_shows_the_ceiling_and_sota_where_they_are_known() -> None:
    sota = verdict("steady", 1.21, baseline_kind="sota", baseline="quack", behind_sota=True)
    found = run(verdict("regression", 1.1), sota, measurements=(measurement(copy_share=0.9),), behind_sota=1)
    said = shown(reports.report(found))
    assert "90 % of a copy" in said
    assert "1.21 behind" in said
    assert "1 case: 1 regression; 1 behind quack." in said
    assert "of ceiling" not in shown(reports.report(run(verdict("regression", 1.1)))), "nothing is known"


def test_strange_text_is_shown_without_being_obeyed() -> None:
    strange = "[bold]not bold[/bold] \x1b[2J gone\nand on"
    found = run(verdict("failed", None, summary=strange), notes=["\x1b[31mred\x1b[0m"])
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    for line in lines(reports.report(found).parts, 200):
        console.print(line)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]not bold[/bold]" in said
    assert "\x1b[2J" not in said
    assert "\x1b[31mred" not in said
    assert "gone and on" in said, "it cannot break its line"


# -- formats


def test_csv_is_flat_and_has_names_for_inner_fields() -> None:
    found = run(verdict("regression", 1.102, reason='it says "slower", twice'), measurements=(measurement(),))
    written = as_csv(*reports.report(found).rows)
    assert written.count("\r\n") == 2
    [row] = csv.DictReader(io.StringIO(written, newline=""))
    assert (row["case"], row["outcome"], row["ratio"], row["run_id"]) == (CASE, "regression", "1.102", "7")
    assert (row["head_median"], row["baseline_median"], row["quarantined"]) == ("35.0", "", "false")
    assert row["reason"] == 'it says "slower", twice'


def test_csv_of_nothing_has_its_names() -> None:
    empty = runs.COLUMNS.page(Page[RunItem](items=[], next=None), 50)
    assert as_csv(*empty.rows).startswith("id,target,revision,")
    assert as_csv(*empty.rows).count("\r\n") == 1


def test_csv_of_one_document_is_one_row() -> None:
    written = as_csv(*runs.progress(run(verdict())).rows)
    [row] = csv.DictReader(io.StringIO(written, newline=""))
    assert (row["id"], row["gate.state"], row["counts"]) == ("7", "pass", '{"steady": 1}')


def test_json_is_the_document_as_the_api_gives_it() -> None:
    found = run(verdict())
    assert as_json(reports.report(found).document) == found.model_dump_json(indent=2)


def test_markdown_escapes_what_others_wrote() -> None:
    column = Column[RunItem]("subject", lambda one: one.subject)
    item = run(verdict(), subject="a | b <img> @ada")
    view = View(item, [text("One *run*."), Table(RunItem, [item], [column], "Runs")])
    assert as_markdown(view).splitlines() == [
        "One \\*run\\*.",
        "",
        "**Runs**",
        "",
        "| subject |",
        "| --- |",
        "| a \\| b &lt;img&gt; @\u200bada |",
    ]
