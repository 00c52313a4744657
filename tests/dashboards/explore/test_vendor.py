"""Scripts of others are served as they were published, with their licences, and Plotly finds its rules in a file."""

import hashlib
import re

from dashboards.assets import asset
from tests.dashboards.explore.plotly_rules import BUNDLE, FILE, VENDOR, rules


def test_scripts_of_others_are_those_of_their_packages() -> None:
    rows = re.findall(r"^\| (\S+\.js) \|.*\| (\w{64}) \|$", (VENDOR / "README.md").read_text(), re.MULTILINE)
    assert dict(rows) == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir() if path.suffix == ".js"
    }
    for name, _ in rows:
        assert (VENDOR / f"{re.split('[-.]', name)[0]}.LICENSE").exists(), name


def test_the_rules_of_plotly_are_those_of_its_script() -> None:
    assert FILE.read_text() == rules(BUNDLE.read_text())
    assert ".js-plotly-plot .plotly .main-svg {" in FILE.read_text()


def test_plotly_needs_no_code_from_text() -> None:
    """The policy of pages has no 'unsafe-eval'."""
    assert re.search(r"\bnew Function\b|[^.\w]eval\(", BUNDLE.read_text()) is None


def test_a_page_names_a_script_without_compressing_it() -> None:
    asset.cache_clear()
    assert "packed" not in vars(asset(BUNDLE.name))
    assert len(asset(BUNDLE.name).packed) < 420_000
