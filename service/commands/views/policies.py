"""Versions of policies as commands print them."""

import json
from typing import Any

from kernelwatch.client import Page
from kernelwatch.client.models import PolicyDocument, PolicyItem
from service.commands.output.views import Column, Table, View, text
from service.commands.output.wording import minute, more

COLUMNS = (
    Column[PolicyItem]("version", lambda one: one.digest[:10], lambda _: "bold"),
    Column[PolicyItem]("first used", lambda one: minute(one.created_at)),
)


def listed(page: Page[PolicyItem], limit: int) -> View:
    """Versions, the newest first."""
    notes = more(limit, page.next) if page.items else ["No policy has made a verdict yet."]
    return View(page, (Table(PolicyItem, page.items, COLUMNS), *map(text, notes)))


def whole(found: PolicyDocument) -> View:
    """A version with its values, a line for each."""
    title = text((f"policy {found.digest[:10]}", "bold"), f", first used {minute(found.created_at)}")
    return View(found, [title, *(text(f"  {name} = {_value(value)}") for name, value in found.values.items())])


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
