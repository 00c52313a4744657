"""Views that are printed again whenever they change."""

import time
from collections.abc import Callable
from enum import StrEnum

from rich.console import Group
from rich.live import Live

from service.commands.output.console import out
from service.commands.output.formats import Format, show
from service.commands.output.layout import lines
from service.commands.output.views import View

EVERY_S = 2.0


def keep_watching(look: Callable[[], View], form: StrEnum) -> int:
    """Print a view until nothing will change any more, and return its exit code.

    A terminal shows the current table in place; elsewhere, and in other formats, each change is printed below the last.
    """
    return _in_place(look) if out.is_terminal and form == Format.TABLE else _below(look, form)


def _in_place(look: Callable[[], View]) -> int:
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            view = look()
            live.update(Group(*lines(view.parts, out.size.width)), refresh=True)
            if view.over:
                return view.code
            time.sleep(EVERY_S)


def _below(look: Callable[[], View], form: StrEnum) -> int:
    last: View | None = None
    while True:
        view = look()
        if last is None or view.document != last.document:
            show(view, form)
            last = view
        if view.over:
            return view.code
        time.sleep(EVERY_S)
