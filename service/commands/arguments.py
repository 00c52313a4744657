"""What several commands share: arguments, the person who gives them, recipe files, and pages of lists."""

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from service.domain.access import SERVICE
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client import Page, Pages

RunNumber = Annotated[int, typer.Argument(metavar="RUN", help="The number of a run.")]


Item = TypeVar("Item")
MAX = 200  # items of one page of the API
EVERYTHING = 100_000


def first(found: "Pages[Item]", limit: int = EVERYTHING) -> "Page[Item]":
    """At most `limit` items as one page; its cursor is that of the next item."""
    page = found.page(limit=min(limit, MAX))
    items = list(page.items)
    while page.next is not None and len(items) < limit:
        page = found.page(page.next, min(limit - len(items), MAX))
        items += page.items
    return page.model_copy(update={"items": items})


def this_person() -> str:
    """Return the user of this system, or its number if it has no name, as in a container with any user id.

    In the service's own container the user has the service's name, so a person there is named differently.
    """
    try:
        name = getpass.getuser()
        return f"a person, as {name}" if name == SERVICE.name else name
    except (KeyError, OSError):  # Python 3.13 raises the second
        return f"user {os.getuid()}"


def read_recipe(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of a recipe and its adapters by file name."""
    from service.domain.policy import recipes

    try:
        text = path.read_text()
        return text, {name: (path.parent / name).read_text() for name in recipes.parse(text).adapters}
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}.") from None
