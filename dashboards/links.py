"""Where the pages and the rows of their tables link to.  A static export has the same pages with other addresses."""

import re
from collections.abc import Callable
from itertools import count
from urllib.parse import quote, urlencode

from markupsafe import Markup

from service.domain.case_names import trend_path

GLOSSARY = "glossary"
# What pages call a term, and its anchor in docs/glossary.md.
TERMS = {
    "× SOTA": "sota",
    "A/A": "a-a",
    "slow before": "slow-before",
    "time at stake": "time-at-stake",
    "ceiling": "ceiling",
    "geomean": "geomean",
    "gate": "gate",
}


class ServiceLinks:
    """The addresses of a running service.  An empty address is no link: a template then writes the text alone."""

    live = True  # scripts can ask for more
    home_word = "Health"

    def home(self) -> str:
        return "/"

    def target(self, name: str) -> str:
        return f"/targets/{quote(name)}"

    def run(self, run_id: int) -> str:
        return f"/runs/{run_id}"

    def regression(self, regression_id: int) -> str:
        return f"/regressions/{regression_id}"

    def incident(self, incident_id: int) -> str:
        return f"/incidents/{incident_id}"

    def bisection(self, bisection_id: int) -> str:
        return f"/bisections/{bisection_id}"

    def worker(self, name: str) -> str:
        return f"/workers#worker-{quote(name)}"

    def revision(self, target: str, ordinal: int | None, run_id: int | None) -> str:
        """Its newest run; without one its row among those of the mainline."""
        if run_id is not None:
            return self.run(run_id)
        if ordinal is None:
            return self.target(target)
        return f"{self.target(target)}?before={ordinal + 1}#revision-{ordinal}"

    def pull(self, target: str, number: int) -> str:
        return f"/targets/{quote(target)}/pulls/{number}"

    def docs(self, name: str) -> str:
        """A page or a picture of docs/, by its path without `.md`."""
        return "/docs" if name == "README" else f"/docs/{name}"

    def term(self, word: str) -> str:
        """The entry of the glossary about a word of `TERMS`."""
        return f"{self.docs(GLOSSARY)}#{TERMS[word]}"

    def board(self, target: str, device: str) -> str:
        return f"/targets/{quote(target)}/board?{urlencode({'device': device})}"

    def trend(self, target: str, device: str, provider: str, case: str) -> str:
        return trend_path(target, device, provider, case)


SERVICE = ServiceLinks()


_ROW = re.compile(r"<tr([^>]*)>(.*?)</tr>", re.DOTALL)
_ID = re.compile(r'\bid="([^"]*)"')
_THING = re.compile(r'href="([^"#][^"]*)"')
_TAG = re.compile(r"<[^>]*>|&[a-z0-9#]+;")
_END = re.compile(r"<br>|</t[dh]>")
_MAX_KEY = 100  # characters of a key that is made here


_CELL = re.compile(r"<(t[hd])\b[^>]*>(.*?)</\1>", re.DOTALL)


def without_empty_columns(body: str) -> str:
    """Leave out the columns of a table's markup in which no row has anything.

    A table whose rows do not all have as many cells as its head, such as one with groups, stays as it is.
    """
    head, end, rows = str(body).partition("</thead>")  # markup would escape what is joined
    names = _CELL.findall(head)
    lines = [[text for _, text in _CELL.findall(row[2])] for row in _ROW.finditer(rows)]
    if not end or not lines or "<table" in rows or any(len(line) != len(names) for line in lines):
        return body
    empty = {n for n in range(len(names)) if not any(line[n].strip() for line in lines)}

    def shortened(row: re.Match[str]) -> str:
        cells = (cell[0] for n, cell in enumerate(_CELL.finditer(row[2])) if n not in empty)
        return f"<tr{row[1]}>{''.join(cells)}</tr>"

    return Markup(_ROW.sub(shortened, head + end + rows)) if empty else body  # noqa: S704


def with_row_links(body: str, prefix: str) -> Markup:
    """Give each row of a table's markup a link to itself, and an id that `prefix` begins if it has none.

    The id is made from the address of the first thing that the row links to, else from its text: it stays the same when
    other rows come and go.  Rows of the head and of groups stay as they are.
    """
    head, end, rows = str(body).partition("</thead>")  # markup would escape what is added to it
    if not end:
        head, rows = "", body
    taken = set(_ID.findall(rows))
    return Markup(head + end + _ROW.sub(_linked(prefix, taken), rows))  # noqa: S704


def _linked(prefix: str, taken: set[str]) -> Callable[[re.Match[str]], str]:
    def linked(row: re.Match[str]) -> str:
        attributes, cells = row[1], row[2]
        if 'class="group' in attributes or "row-link" in cells:
            return row[0]
        known = _ID.search(attributes)
        key = known[1] if known else _new_key(prefix, cells, taken)
        own = "" if known else f' id="{key}"'
        at = _END.search(cells, max(0, cells.find('data-cell="name"')))
        link = f'<a class="row-link" href="#{key}" data-copy="#{key}" aria-label="Link to this row"></a>'
        place = at.start() if at else len(cells)
        return f"<tr{own}{attributes}>{cells[:place]}{link}{cells[place:]}</tr>"

    return linked


def _new_key(prefix: str, cells: str, taken: set[str]) -> str:
    thing = _THING.search(cells)
    words = re.findall("[a-z0-9]+", (thing[1] if thing else _TAG.sub(" ", cells)).lower())
    key = f"{prefix}-{'-'.join(words)[:_MAX_KEY]}"
    free = next(each for n in count(1) if (each := key if n == 1 else f"{key}-{n}") not in taken)
    taken.add(free)
    return free
