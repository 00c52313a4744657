"""The first items of a list of the API, over several of its pages."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kernelwatch.client import Page, Pages

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
