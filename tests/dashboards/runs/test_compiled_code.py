"""The compiled code of both sides as a story: a commit changes a kernel, and the pages show how.

Everything is the real thing but for GitHub, the clock and the compiler, which are fakes.
"""

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from service.db.engine import reading, transaction
from service.db.models import CodeText, KernelTextRow, RegressionRow, Target
from service.ledger import stored_texts
from service.ledger.intake import registry
from tests.dashboards.asking import words
from tests.fakes.api import Api
from tests.shell import attempt
from tests.stories.test_story import WIDE, Story, story
from tests.stories.test_story_facts import _an_h200_as_well, compiled, compiles_to, compiling

__all__ = ["_an_h200_as_well", "compiling", "story"]

LOOP = "$L__BB0_1:\n\tld.global.v4.b32 {%r1}, [%rd1];\n\tadd.f32 %f1, %f1, %f2;\n\tret;\n"
NARROW = LOOP.replace("v4.b32", "b32")
MARKUP = "\t// <script>alert(1)</script>\n\tmov.u32 %r9, <b>;\n"


def kernels(story: Story, *texts: dict[str, str]) -> None:
    """What the next commit's kernels are, at all cases."""
    (story.repository / "code.json").write_text(json.dumps(texts))


def slower(story: Story) -> int:
    """A mainline commit that loads 4 bytes at a time, and makes a case slower.  Returns the regression."""
    kernels(story, {"name": "_forward", "ptx": LOOP, "ttgir": "tt.func"}, {"name": "_sum", "ptx": LOOP})
    story.push("widen the loads")
    story.settle()
    kernels(story, {"name": "_forward", "ptx": NARROW + MARKUP, "ttgir": "tt.func"}, {"name": "_sum", "ptx": LOOP})
    story.push("narrow the loads", wide=300.0)
    story.settle()
    with reading() as session:
        return session.scalars(select(RegressionRow.id).order_by(RegressionRow.id.desc())).first() or 0


def links(page: str, what: str) -> list[str]:
    return [href.replace("&amp;", "&") for href in re.findall(rf'(?:href|data-from)="([^"]*{what}[^"]*)"', page)]


def stored() -> tuple[int, int]:
    """How many texts, and how many kernels have them."""
    with reading() as session:
        counts = (session.scalar(select(func.count()).select_from(one)) for one in (CodeText, KernelTextRow))
        texts, rows = counts
        return texts or 0, rows or 0


def test_a_regression_shows_the_lines_of_each_kernel_that_changed(story: Story) -> None:
    api, regression = Api(), slower(story)

    page = api.at(f"/regressions/{regression}/code")
    assert page.status_code == 200
    said = words(page)
    assert "PTX 1 of 2 kernels differs" in said
    assert "TTGIR 1 of 1" not in said
    assert "TTGIR equal on both sides" in said

    [ptx, *_] = links(page.text, "/code/ptx")
    shown = api.at(ptx)
    said = words(shown)
    assert "_forward +2 −1 lines" in said
    assert "_sum equal on both sides" in said
    assert "− ld.global.v4.b32 {%r1}, [%rd1];" in said
    assert "+ ld.global.b32 {%r1}, [%rd1];" in said
    assert "<script>alert" not in shown.text
    assert "mov.u32 %r9, &lt;b&gt;;" in shown.text

    before, now = (api.at(link) for link in links(shown.text, "/api/v1/runs/[0-9]+/code/[0-9a-f]{64}")[:2])
    assert before.text == LOOP
    assert now.text.startswith(NARROW)
    assert now.headers["content-type"] == "text/plain; charset=utf-8"
    assert now.headers["x-content-type-options"] == "nosniff"


def test_the_page_of_the_code_begins_with_what_its_cause_rests_on(story: Story) -> None:
    api = Api()
    kernel = {"name": "_forward", "ptx": LOOP, "registers": 40, "spills": 0}
    kernels(story, kernel)
    story.push("few registers")
    story.settle()
    kernels(story, kernel | {"ptx": NARROW, "registers": 255, "spills": 1040})
    story.push("spill them", wide=300.0)
    story.settle()
    with reading() as session:
        regression = session.scalars(select(RegressionRow).order_by(RegressionRow.id.desc())).first()
    assert regression
    said = words(api.at(f"/regressions/{regression.id}/code"))
    assert said.index("Evidence") < said.index("Source") < said.index("Compiled code")
    assert "spills named by the cause 0 1,040" in said
    assert "registers 40 255" in said
    assert "preparation" not in said
    code = words(api.at(links(api.at(f"/regressions/{regression.id}/code").text, "/code/ptx")[0]))
    assert code.index("spills named by the cause 0 1,040") < code.index("+1 −1 lines")


def test_the_page_of_a_case_has_it_too_and_equal_code_is_not_stored(story: Story) -> None:
    api, regression = Api(), slower(story)
    with reading() as session:
        run_id = session.get_one(RegressionRow, regression).run_id
    page = api.at(f"/runs/{run_id}/cases/{WIDE}?provider=norms")
    assert links(page.text, "/code/ptx")
    traces = [json.loads(api.at(link).text) for link in links(page.text, "/api/v1/runs/[0-9]+/code/[0-9a-f]{64}")]
    assert [len(trace["traceEvents"]) for trace in traces] == [1, 1], "of the baseline and of the head"

    sha = story.push("another case alone", fast=99.0)
    story.settle()
    [later] = api.get(f"/runs?revision={sha}").json()["items"]
    listed = api.get(f"/runs/{later['id']}/code?case={WIDE}").json()["items"]
    assert {one["contender"] for one in listed} == {"head:norms", "last_good:norms"}, "its parent has equal code"
    assert "Left the last good revision" in words(api.at(f"/runs/{later['id']}/code/ptx?case={WIDE}&provider=norms"))

    printed = attempt("run", "texts", str(run_id), "--case", WIDE, "--format", "json")
    found = [one for one in json.loads(printed.stdout)["items"] if one["contender"] == "head:norms"]
    [sha256] = [one["sha256"] for one in found if (one["kernel"], one["kind"]) == ("_forward", "ptx")]
    assert attempt("run", "text", str(run_id), sha256).stdout.startswith(NARROW)

    assert api.get("/runs/1/code").json()["items"] == [], "the first run has nothing to differ from"
    gone = api.at(f"/runs/1/code/ptx?case={WIDE}&provider=norms")
    assert gone.status_code == 404
    assert "Equal code is not stored" in words(gone)


def test_the_texts_of_private_targets_are_hidden(story: Story) -> None:
    api, regression = Api(), slower(story)
    address = links(api.at(f"/regressions/{regression}/code").text, "/code/ptx")[0]
    raw = links(api.at(address).text, "/api/v1/runs/[0-9]+/code/[0-9a-f]{64}")[0]
    with transaction() as session:
        session.execute(update(Target).values(private=True))
    for hidden in (f"/regressions/{regression}/code", address, raw):
        assert api.at(hidden).status_code == 404
    reader = api.with_key("read")
    assert {reader.at(one).status_code for one in (f"/regressions/{regression}/code", address, raw)} == {200}


def test_texts_expire_and_go_with_their_target(story: Story) -> None:
    slower(story)
    assert stored()[0] == 3, "PTX before (of two kernels) and after, and TTGIR"
    with transaction() as session:
        session.execute(update(KernelTextRow).values(made_at=1.0))
    assert stored_texts.forget_code() == 3
    assert stored() == (0, 0)

    kernels(story, {"name": "_forward", "ptx": LOOP})
    story.push("back", wide=200.0)
    story.settle()
    assert stored()[0]
    registry.remove("norms")
    assert stored() == (0, 0)


def test_a_facts_check_keeps_what_it_compiled(compiling: Story) -> None:
    before = stored()
    compiles_to(compiling, wide={"registers": 255, "ptx": LOOP, "sass": "LDG.E R1 ;"})
    compiling.push("a kernel")
    compiled(compiling)
    compiles_to(compiling, wide={"registers": 200, "ptx": NARROW, "sass": "LDG.E R7 ;"})
    sha = compiling.push("narrow the loads")
    assert compiled(compiling) == 1
    assert stored() > before

    api = Api()
    [run] = [one for one in api.get(f"/runs?revision={sha}").json()["items"] if one["device"] == "h200"]
    listed = api.get(f"/runs/{run['id']}/code").json()["items"]
    assert {(one["contender"], one["arch"], one["kind"]) for one in listed} == {
        (f"{role}:norms", "sm_90", kind) for role in ("head", "parent") for kind in ("ptx", "sass")
    }
    page = words(api.at(f"/runs/{run['id']}/code/ptx?case={WIDE}&provider=norms"))
    assert "Compiled for sm_90 by the facts check" in page
    assert "+1 −1 lines" in page
    sass = words(api.at(f"/runs/{run['id']}/code/sass?case={WIDE}&provider=norms"))
    assert "differs in nothing that is compared" in sass


@pytest.mark.parametrize("address", ["/api/v1/runs/1/code/" + "0" * 64, "/runs/1/code/ptx?case=x&provider=y"])
def test_a_text_that_is_not_there_is_not_found(story: Story, address: str) -> None:
    assert Api().at(address).status_code == 404


def test_other_kinds_are_refused(state: Path) -> None:
    assert Api().at("/runs/1/code/exe?case=x&provider=y").status_code == 422
