"""The rules of Plotly's style as a file: `python -m tests.dashboards.explore.plotly_rules` writes it.

Plotly adds them to the page by script, which the policy of our pages refuses.
"""

import re
from pathlib import Path

VENDOR = Path(__file__).parents[3] / "dashboards" / "static" / "vendor"
BUNDLE, FILE = VENDOR / "plotly-basic.min.js", VENDOR / "plotly.css"
_QUOTE = '"'
_RULE = r"""(?P<name>"[XY][^"]*"|[XY]):(?P<rule>"[^"]*"|'[^']*')"""


def rules(bundle: str) -> str:
    """The rules of a bundle as a style sheet, the last first: the script inserts each before those that are there."""
    [table] = re.findall(r"""{("X,X div":[^{}]*)}""", bundle)
    lines = [f"{_selector(one['name'].strip(_QUOTE))} {{ {one['rule'][1:-1]} }}" for one in re.finditer(_RULE, table)]
    return "\n".join(["/* The rules that plotly-basic.min.js adds by script. */", *reversed(lines), ""])


def _selector(name: str) -> str:
    return name.replace("X", ".js-plotly-plot .plotly").replace("Y", ".plotly-notifier")


if __name__ == "__main__":
    FILE.write_text(rules(BUNDLE.read_text()))
