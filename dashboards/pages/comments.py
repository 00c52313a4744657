"""Render a comment as a forge shows it: Markdown to HTML, with no tags but those that kernelwatch writes."""

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

_OURS = re.compile(r"</?(?:details|summary|sub)>")
_MARKER = re.compile(r"<!--.*?-->\s*", re.DOTALL)


def as_html(comment: str) -> Markup:
    """Render the comment as HTML."""
    return Markup(_reader.render(_MARKER.sub("", comment)))  # noqa: S704  # every tag in it is ours or escaped


def _ours_only(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """Keep the few tags that our comments use, and show other HTML as text."""
    raw = tokens[place].content
    kept, end = [], 0
    for found in _OURS.finditer(raw):
        kept += [str(escape(raw[end : found.start()])), found[0]]
        end = found.end()
    return "".join([*kept, str(escape(raw[end:]))])


def _code(_: RendererHTML, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """A block that scrolls within itself can be reached with the keyboard."""
    return f'<pre tabindex="0"><code>{escape(tokens[place].content)}</code></pre>\n'


_reader = MarkdownIt("commonmark", {"html": True}).enable("table").disable("image")
_reader.add_render_rule("html_block", _ours_only)
_reader.add_render_rule("html_inline", _ours_only)
_reader.add_render_rule("fence", _code)
_reader.add_render_rule("code_block", _code)
