"""The addresses of rows of tables."""

import re

from markupsafe import Markup

from dashboards.links import with_row_links, without_empty_columns


def links(body: str) -> list[tuple[str, str]]:
    """The id of each row, and where its link leads."""
    found = with_row_links(body, "cases")
    return re.findall(r'<tr id="([^"]*)".*?class="row-link" href="([^"]*)"', found, re.DOTALL)


def test_a_row_keeps_its_id_and_gets_its_link_in_the_cell_of_its_name() -> None:
    row = '<thead><tr><th>Case</th></tr></thead><tr id="run-7"><td>1</td><td data-cell="name">a<br>b</td></tr>'
    found = with_row_links(Markup(row), "cases")
    assert 'a<a class="row-link" href="#run-7" data-copy="#run-7" aria-label="Link to this row"></a><br>b' in found
    assert found.startswith("<thead><tr><th>Case</th></tr></thead>")


def test_other_rows_are_named_by_what_they_link_to_else_by_their_text() -> None:
    row = "<tr><td>{}</td></tr>"
    body = row.format('3 h <a href="/runs/7">run</a>') + row.format("A &amp; B") + row.format("A &amp; B")
    expected = ["cases-runs-7", "cases-a-b", "cases-a-b-2"]
    assert links(body) == [(one, f"#{one}") for one in expected]


def test_names_are_bounded_and_groups_are_left_alone() -> None:
    assert len(links(f"<tr><td>{'x' * 999}</td></tr>")[0][0]) <= 120
    group = '<tr class="group"><th>norms</th></tr>'
    assert with_row_links(group, "cases") == group


def test_a_column_in_which_no_row_has_anything_is_left_out() -> None:
    head = "<thead><tr><th>Case</th><th>Cause</th><th>State</th></tr></thead>"
    rows = "<tr><td>a</td><td class='x'> </td><td>open</td></tr><tr><td>b</td><td></td><td></td></tr>"
    assert without_empty_columns(Markup(head + rows)) == (
        "<thead><tr><th>Case</th><th>State</th></tr></thead>"
        "<tr><td>a</td><td>open</td></tr><tr><td>b</td><td></td></tr>"
    )
    for kept in (
        head,
        head + rows.replace("> </td>", ">code</td>"),
        head + '<tr><th colspan="3">norms</th></tr>' + rows,
    ):
        assert without_empty_columns(kept) == kept
