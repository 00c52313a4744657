"""How pages are opened.  Of each two variants every test runs one; `--with long` runs all combinations."""

from itertools import product
from typing import Any

import pytest

_SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


def _some(combinations: "product[Any]", usual: set[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*one, marks=() if one in usual else pytest.mark.long) for one in combinations]


SCHEMES_AND_WIDTHS = pytest.mark.parametrize(
    ("scheme", "width"), _some(product(("light", "dark"), (390, 1440)), {("light", 1440), ("dark", 390)})
)
SCRIPTS_AND_VIEWPORTS = pytest.mark.parametrize(
    ("script", "viewport"),
    [
        pytest.param(script, size, id=f"{name}-{script}", marks=() if script == (name == "wide") else pytest.mark.long)
        for name, size in _SIZES.items()
        for script in (True, False)
    ],
)
