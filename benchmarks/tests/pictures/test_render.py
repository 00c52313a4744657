"""The pictures of comments are those of the Markdown that is sent."""

import shutil
from pathlib import Path

from benchmarks.pictures import render
from service.reports import markdown
from service.reports.payloads import annotations
from tests import needs
from tests.dashboards.conftest import BROWSERS
from tests.service.reports.test_annotations import COMPILED
from tests.service.reports.test_renderings import SLOW, STEADY, a_report

BODY = markdown.comment(a_report(SLOW, STEADY))


def test_a_comment_is_rendered_as_github_does() -> None:
    shown = render.comment(BODY)
    assert "kernelwatch, H200: 1 of 2 cases 10.2 % slower</a>" in shown
    assert shown.count("<table>") == 2
    assert "<details><summary>" in shown


def test_an_annotation_follows_its_line() -> None:
    text = "\n".join(f"line {number}" for number in range(1, 60))
    shown = render.annotated(text, annotations(a_report(), [COMPILED]))
    before, after = shown.split("warning: spills none → 12 on sm_90 in _forward")
    assert "line 12</div>" in before
    assert "line 13</div>" not in before
    assert "line 15</div></div></div>" in after


@needs.skip_unless(any(map(shutil.which, BROWSERS)), "chromium")
def test_each_page_has_a_light_and_a_dark_picture(tmp_path: Path) -> None:
    light, dark = render.take({"one": render.comment(BODY)}, tmp_path)
    assert (light.name, dark.name) == ("one.png", "one-dark.png")
    assert light.read_bytes()[:8] == dark.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert light.read_bytes() != dark.read_bytes()
