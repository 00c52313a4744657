"""A check has annotations at the lines of the kernels that changed, and of the code that became slower.

Triton compiles a real kernel for an H200 that is not there.  The processor's times are scripted, and with them where
the measured function says that it is defined.
"""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from service.settings import settings
from tests import needs
from tests.fakes.github import app_key
from tests.stories import test_story
from tests.stories.test_facts_command import DEF, NORMS, STORE
from tests.stories.test_story import FAST, Story, story
from workers import control
from workers.compile import facts_worker

__all__ = ["story"]
pytest.importorskip("triton", reason=needs.reason("triton"))

REPO = "acme/norms"
WIDE_CASE = "rmsnorm.fwd.4096x16384.bf16"
# An interpreter that measures by a script, and compiles as the real one: `exec` after the first line was put back.
BOTH = """#!{python}
import json, os, sys
script = {measures!r}
if any(argument.endswith("contender/__main__.py") for argument in sys.argv[1:]):
    first = b""
    while not first.endswith(b"\\n"):
        first += os.read(0, 1) or exit()
    ends = os.pipe()
    if os.fork() == 0:
        os.close(ends[0])
        chunk = first
        while chunk:
            os.write(ends[1], chunk)
            chunk = os.read(0, 1 << 16)
        os._exit(0)
    os.close(ends[1])
    os.dup2(ends[0], 0)
    if json.loads(first)["device"].startswith("sm_"):
        os.execv({python!r}, [{python!r}, *sys.argv[1:]])
exec(script, {{"__name__": "__main__"}})
"""


@pytest.fixture
def _a_wide_case_and_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = test_story.RECIPE.replace('["cpu"]', '["cpu", "h200"]').replace('"norms:rmsnorm"', '"norms:forward"')
    monkeypatch.setattr(test_story.Story, "recipe", recipe.replace(test_story.WIDE, WIDE_CASE))
    monkeypatch.setattr(test_story.Story, "names", {**test_story.Story.names, "wide": WIDE_CASE})


@pytest.fixture
def app(
    _a_wide_case_and_an_h200: None,
    story: Story,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Story:
    """A GitHub App that watches one Triton kernel, whose mainline is compiled already."""
    monkeypatch.setenv("KERNELWATCH_GITHUB_APP_ID", "1")
    monkeypatch.setenv("KERNELWATCH_GITHUB_APP_KEY", app_key())
    settings.cache_clear()
    story.github.permissions[REPO, "ada"] = "write"
    measures = (Path(__file__).parents[2] / "fakes" / "scripted_python.py").read_text()
    python = tmp_path / "stack" / "python"
    python.write_text(BOTH.format(python=sys.executable, measures=measures))
    python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    writes(story, "max(4, block // 1024)")
    story.push("enough warps")
    return story


def writes(app: Story, warps: str, kernel: str = NORMS) -> None:
    """Put the kernel into the repository, and what the measured function will say about itself."""
    text = kernel.replace("WARPS(block)", warps)
    (app.repository / "norms.py").write_text(text)
    lines = text.splitlines()
    line = lines.index("def forward(x, weight, eps):") + 1
    where = {"file": "norms.py", "line": line, "first": line, "last": len(lines)}
    (app.repository / "source.json").write_text(json.dumps(where))


def annotations(app: Story, sha: str, device: str) -> list[dict[str, Any]]:
    """Those of the newest check of a device."""
    name = f"kernelwatch / norms / {device}"
    checks = [one for one in app.github.check_runs.values() if (one["head_sha"], one["name"]) == (sha, name)]
    return app.github.annotations[checks[-1]["id"]]


def opened(app: Story, monkeypatch: pytest.MonkeyPatch, **speeds: object) -> str:
    """A pull request that is compiled before it is measured."""
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)
        head = app.pull(7, action="opened", **speeds)
    assert facts_worker.compile_due()
    app.speak()
    return head


def test_a_kernel_that_spills_is_annotated_where_it_is_defined_and_a_slower_case_where_its_function_is(
    app: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.git("checkout", "--quiet", "-b", "pull-7")
    writes(app, "4 if block < 8192 else 1")
    lines = (app.repository / "norms.py").read_text().splitlines()
    head = opened(app, monkeypatch, wide=300.0)

    [one] = annotations(app, head, "h200")
    assert (one["path"], one["start_line"], one["end_line"]) == ("norms.py", lines.index(DEF) + 1, lines.index(DEF) + 1)
    assert one["annotation_level"] == "warning"
    assert one["title"].startswith("spills none → ")
    assert one["title"].endswith(" on sm_90 in _forward")
    assert f"{WIDE_CASE} on sm_90, compiled without a GPU:" in one["message"]
    assert "- configuration: num_warps 16 → 1" in one["message"]
    assert annotations(app, head, "cpu") == [], "it compiles no kernels, and is not measured yet"

    app.settle()
    [slower] = annotations(app, head, "cpu")
    launch = next(number for number, line in enumerate(lines, 1) if "num_warps=" in line)
    assert (slower["path"], slower["start_line"], slower["end_line"]) == ("norms.py", launch, launch), "what changed"
    assert slower["annotation_level"] == "warning", "as the policy says"
    assert f"% slower at {WIDE_CASE} (CPU)" in slower["title"]
    assert f"{WIDE_CASE}: 200" in slower["message"]
    assert annotations(app, head, "h200") == [one], "an edited check has it once"

    [comment] = app.said(7)
    assert f"[[norms.py:{launch}]](https://github.com/{REPO}/blob/{head}/norms.py#L{launch})" in comment
    [run] = [run for run in app.runs(head) if run.device == "cpu"]
    found = app.api("GET", f"/api/v1/runs/{run.id}").json()
    places = {row["case"]: row["source"]["changed"] for row in found["verdicts"] if row["baseline_kind"] == "parent"}
    assert places == {
        FAST: [launch, launch],
        WIDE_CASE: [launch, launch],
    }


@pytest.mark.long
def test_a_changed_kernel_is_annotated_at_its_changed_lines(app: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    app.git("checkout", "--quiet", "-b", "pull-7")
    writes(app, "max(4, block // 1024)", "# a comment moves everything\n" + NORMS.replace("* w).to", "* (w + 1)).to"))
    head = opened(app, monkeypatch)
    stores = {one["start_line"] for one in annotations(app, head, "h200")}
    assert stores == {NORMS.splitlines().index(STORE) + 2}
    assert {one["annotation_level"] for one in annotations(app, head, "h200")} == {"notice"}


@pytest.mark.long
def test_a_second_measurement_replaces_a_check_whose_annotation_does_not_apply(
    app: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.git("checkout", "--quiet", "-b", "pull-7")
    writes(app, "max(4, block // 1024)")
    head = opened(app, monkeypatch, wide=300.0)
    app.settle()
    [slower] = annotations(app, head, "cpu")
    app.comment(7, "/kernelwatch rerun")
    [again] = annotations(app, head, "cpu")
    assert again["message"] != slower["message"], "other times"
    checks = [one for one in app.github.check_runs.values() if (one["head_sha"], one["name"][-3:]) == (head, "cpu")]
    assert [one["status"] for one in checks] == ["completed", "completed"]
