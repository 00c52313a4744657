"""How pages are opened: each theme, width, viewport and script setting in one test; `--with long` adds the rest."""

from typing import Any

import pytest

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def _long(*values: Any, id: str | None = None) -> Any:
    return pytest.param(*values, marks=pytest.mark.long, id=id)


SCHEMES_AND_WIDTHS = pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1440), ("dark", 390), _long("light", 390), _long("dark", 1440)]
)
SCRIPTS_AND_VIEWPORTS = pytest.mark.parametrize(
    ("script", "viewport"),
    [
        pytest.param(True, WIDE, id="wide-True"),
        pytest.param(False, PHONE, id="phone-False"),
        _long(False, WIDE, id="wide-False"),
        _long(True, PHONE, id="phone-True"),
    ],
)
