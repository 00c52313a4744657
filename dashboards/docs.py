"""The documentation as pages: the files of docs/, which a forge shows too."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from dashboards.links import GLOSSARY, ServiceLinks
from service.errors import NotFound

_FOLDER = Path(__file__).parents[1] / "docs"
# A picture in two colour schemes: the only HTML of the files that is kept.
_PICTURE = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)"></picture>'
)


@dataclass(frozen=True)
class DocsPage:
    """A file of docs/ as HTML."""

    title: str
    body: Markup


def names() -> set[str]:
    """The files that are pages, without their suffix."""
    return {path.stem for path in _FOLDER.glob("*.md")}


def pictures() -> Mapping[str, Path]:
    """The pictures of the pages, by their names."""
    return {path.name: path for path in (_FOLDER / "pictures").iterdir()}


def docs_page(name: str, links: ServiceLinks) -> DocsPage:
    """Render a page.  What it links to outside of the pages is text alone.

    Raises:
        NotFound: If there is no such page.
    """
    if name not in names():
        raise NotFound("page of the documentation", name)
    tokens = _reader.parse((_FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    title, *_ = _with_ids(tokens)
    if name == GLOSSARY:
        _mark_terms(tokens)
    for block in tokens:
        if picture := _PICTURE.fullmatch(block.content):
            files = {key: links.docs(picture[key]) for key in ("dark", "light")}
            block.children = [Token("picture", "picture", 0, attrs={"alt": picture["alt"], **files})]
        for token in block.children or ():
            if token.type == "link_open":
                token.attrs = _attributes(str(token.attrGet("href")), links)
            elif token.type == "image":
                token.attrSet("src", links.docs(str(token.attrGet("src"))))
    return DocsPage(title, Markup(_reader.renderer.render(tokens, _reader.options, {})))  # noqa: S704  # no HTML of files


def _with_ids(tokens: Sequence[Token]) -> list[str]:
    """Give each heading the id that a forge gives it; their texts."""
    given, texts = dict[str, int](), []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(one.content for one in inline.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            given[slug] = given.get(slug, -1) + 1
            token.attrSet("id", f"{slug}-{given[slug]}" if given[slug] else slug)
            texts.append(text)
    return texts


def _mark_terms(tokens: Sequence[Token]) -> None:
    """Give each term of the glossary an id: terms are what is in bold."""
    for token, text in (pair for block in tokens for pair in pairwise(block.children or ())):
        if token.type == "strong_open":
            token.attrSet("id", re.sub(r"[^a-z0-9]+", "-", text.content.lower()).strip("-"))


def _attributes(address: str, links: ServiceLinks) -> dict[str, str | int | float]:
    """Those of a link; none where its file is no page."""
    if "://" in address:
        return {"href": address, "rel": "noreferrer"}
    path, mark, anchor = address.partition("#")
    name = path.removesuffix(".md")
    page = links.docs(name) if name != path and name in names() else ""
    return {"href": f"{page}{mark}{anchor}"} if page or not path else {}


def scrolled_code(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """A block that scrolls within itself can be reached with the keyboard."""
    return f'<pre tabindex="0"><code>{escape(tokens[place].content)}</code></pre>\n'


def _picture(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    values = tokens[place].attrs
    dark = Markup('<source media="(prefers-color-scheme: dark)" srcset="{}">').format(values["dark"])
    light = Markup('<img alt="{}" src="{}" loading="lazy">').format(values["alt"], values["light"])
    return f"<picture>{dark}{light}</picture>"


def _as_text(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    text = tokens[place].content
    return "" if text.startswith("<!--") else str(escape(text))


_reader = MarkdownIt("commonmark", {"html": True}).enable("table")
for kind, rule in {
    "fence": scrolled_code,
    "code_block": scrolled_code,
    "html_block": _as_text,
    "html_inline": _as_text,
    "picture": _picture,
    "table_open": lambda *_: '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n',
    "table_close": lambda *_: "</table></div>\n",
}.items():
    _reader.add_render_rule(kind, rule)
