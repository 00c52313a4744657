"""The manual of changed recipes as stories: a case less, a provider with another name, and one with a convention."""

import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from service.ledger.intake import deliveries
from tests.shell import kernelwatch
from tests.stories.test_story import FAST, RECIPE, WIDE, Story, story, told
from workers.machine import environments

__all__ = ["story"]

NORMS = """
import torch


def normal(x, eps):
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def llama(x, weight, eps):
    return weight * normal(x, eps).to(x.dtype)


def fused_add(x, residual, weight, eps):
    residual.copy_(x.float() + residual.float())
    x.copy_(normal(residual, eps) * weight.float())
"""


class Measured(Story):
    """A repository whose functions are measured for real, on the processor."""

    first: ClassVar[dict[str, object]] = {}

    def commit(self, message: str = "work", /, **speeds: object) -> str:
        (self.repository / "norms.py").write_text(NORMS)
        return super().commit(message, **speeds)


def recipe_becomes(text: str, folder: Path) -> None:
    """Save another recipe for the target."""
    file = folder / "norms.toml"
    file.write_text(text)
    kernelwatch("target", "edit", "norms", "--recipe", str(file))


def edit(told: Story, message: str) -> str:
    """A commit that changes code, and nothing's speed."""
    (told.repository / "norms.py").write_text(f"# {message}")
    return told.push(message)


def regression(state: str) -> dict[str, object]:
    """The one regression that was ever recorded, which is in this state."""
    [one] = json.loads(kernelwatch("regression", "list", "--all", "--format", "json").stdout)["items"]
    assert one["state"] == state
    return one


def test_a_case_that_the_recipe_drops_closes_its_regression_and_says_why(story: Story, tmp_path: Path) -> None:
    story.push("wide rows in two passes", wide=260.0)
    assert regression("open")["case"] == WIDE

    recipe_becomes(RECIPE.replace(f', "{WIDE}"', ""), tmp_path)
    after = edit(story, "and on")

    assert story.outcomes(after) == {FAST: "steady", WIDE: "removed"}
    regression("removed")
    assert f"the recipe has no {WIDE} of norms on cpu any more" in kernelwatch("regression", "show", "1").stdout
    assert after[:10] in story.api("GET", "/regressions/1").text, "the revision that showed it"
    assert story.api("GET", "/badges/norms/status.json").json()["message"] == "no regressions"
    assert story.status(after).startswith("success: ")


def test_a_provider_with_another_name_carries_on_its_history(story: Story, tmp_path: Path) -> None:
    first = story.git("rev-parse", "main")
    slow = story.push("wide rows in two passes", wide=260.0)

    recipe_becomes(RECIPE.replace("[providers.norms]", '[providers.rms]\nformerly = "norms"'), tmp_path)
    renamed = edit(story, "call it rms")

    assert story.outcomes(renamed) == {FAST: "steady", WIDE: "steady"}, "neither new nor removed"
    one = regression("open")
    assert (one["provider"], one["culprit"]) == ("rms", slow)
    series = {"device": "cpu", "provider": "rms", "case": WIDE}
    points = story.api("GET", "/api/v1/targets/norms/series", params=series).json()["points"]
    assert [point["revision"] for point in points] == [first, slow, renamed]

    fixed = story.push("one pass again", wide=200.0)

    assert regression("fixed")["fixed_by"] == fixed


@pytest.mark.torch
@pytest.mark.parametrize(
    ("op", "function", "key", "why"),
    [
        ("rmsnorm", "llama", 'rounding = "before-weight"', "y is wrong by "),
        ("rmsnorm_residual", "fused_add", "inplace = true", "returned nothing instead of (y, residual_out)"),
    ],
)
def test_a_function_with_another_convention_is_told_which_key_to_set(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, function: str, key: str, why: str
) -> None:
    pytest.importorskip("torch")
    environments.adopt_stack("host", Path(sys.executable), [])
    case = f"{op}.fwd.96x256.bf16"
    recipe = f"""
devices = ["cpu"]
suite = "story"
sota = "eager"
[suites]
story = ["{case}"]
[policy]
screening = [2]
rounds = 4
[providers.norms]
{op}.fwd = "norms:{function}"
"""
    monkeypatch.setattr(Measured, "recipe", recipe)
    with told(Measured, tmp_path, monkeypatch) as story:
        first = story.git("rev-parse", "main")
        assert story.outcomes(first) == {case: "invalid"}
        assert story.status(first) == "failure: Its only case gives a wrong result"
        [reason] = [one["reason"] for one in verdicts(story, first) if one["baseline_kind"] == "parent"]
        assert reason.startswith(why)
        assert key in reason

        recipe_becomes(recipe + key, tmp_path)
        deliveries.run_revision("norms", first)
        story.settle()

        assert story.outcomes(first) == {case: "new"}, "measured, and right"
        assert {one["baseline_kind"] for one in verdicts(story, first)} == {"parent", "sota"}


def verdicts(told: Story, sha: str) -> list[dict[str, str]]:
    """What the newest run of a commit decided, as the API gives it."""
    shown: list[dict[str, str]] = told.api("GET", f"/api/v1/runs/{told.run_of(sha).id}").json()["verdicts"]
    return shown
