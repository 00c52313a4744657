"""What an isolation prints: which component moved how many cases, and a table with both directions."""

import csv
import io
from dataclasses import replace

import pytest

from kernels.cases import Case
from service.commands.output.formats import as_csv, as_markdown
from service.commands.views.facts import isolated
from service.domain.isolation.components import Component, DistributionChange
from service.domain.isolation.evaluation import IsolatedCase, Isolation, StackSide, causes, evaluate, steps
from service.domain.policy.policy import Policy
from service.domain.states import CellState
from service.reports.schema.isolation import headline
from tests.fakes.stack_arms import CASE, COMPONENTS, Times, arms, session

TRITON = Component("triton", ("triton",), (DistributionChange("triton", "3.6.0", "3.7.1"),))
TORCH = Component(
    "torch",
    ("torch", "nvidia-cublas"),
    (DistributionChange("torch", "2.11.0", "2.13.0"), DistributionChange("nvidia-cublas", "13.0", "13.1")),
)
SLOW, STILL = arms(1.38, (1.38, 1.0), (1.0, 1.38)), arms(1.0, (1.0, 1.0), (1.0, 1.0))
MORE = ("to", "from+triton", "to-torch")  # arms with the new Triton
FAILED, INVALID = CellState.FAILED, CellState.INVALID


def isolation(*cases: dict[str, Times], missing: dict[str, str] | None = None) -> Isolation:
    taken = [session(one) for one in cases]
    judged = evaluate(taken, COMPONENTS, Policy(), steps(4, 4))
    old, new = StackSide("old", "3.12.3", {"triton": "3.6.0"}), StackSide("new", "3.12.3", {"triton": "3.7.1"})
    found = causes(taken, judged)
    return Isolation(
        "norms", "ab" * 20, "h200", "smoke", old, new, (TRITON, TORCH), judged, 0.95, found, missing or {}, (), 4, 61
    )


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([SLOW, SLOW, STILL], "Triton 3.6.0 → 3.7.1 made 2 of 3 cases slower, by 38 % at most; torch moved none."),
        (
            [SLOW, arms(0.8, (0.8, 1.0), (1.0, 0.8)), STILL],
            "Triton 3.6.0 → 3.7.1 made 1 of 3 cases slower, by 38 % and made 1 faster, by 20 %; torch moved none.",
        ),
        ([arms(1.1, (1.0, 1.1), (1.1, 1.0))],
         "Torch 2.11.0 → 2.13.0 with 1 more package made 1 of 1 case slower, by 10 %; Triton moved none."),
        ([STILL, STILL], "Nothing moved: 2 cases equal with old and new."),
        (
            [arms(1.3, (1.0, 1.3), (1.0, 1.3)), STILL],
            "No single component moved a case; 1 case moved by an effect of several components together.",
        ),
        (
            [arms(1.3, (1.0, 1.0), (1.0, 1.3))],
            "Triton 3.6.0 → 3.7.1 moved 1 of 1 case in one of the two stacks only; torch moved none.",
        ),
        (
            [arms(1.3, (FAILED, FAILED), (1.0, 1.3))],
            "No single component moved a case; 1 case moved by an effect of several components together, "
            "or of Triton; Triton could not be swapped.",
        ),
        ([arms(INVALID, (INVALID, 1.0), (1.0, INVALID))],
         "Triton 3.6.0 → 3.7.1 made 1 of 1 case fail; torch moved none."),
        (
            [arms(1.0, (1.0, 1.0), (1.0, 1.0), control=1.03)],
            "No component was shown to move a case between old and new; 1 case undecided.",
        ),
    ],
)  # fmt: skip
def test_the_first_sentence(cases: list[dict[str, Times]], expected: str) -> None:
    assert headline(isolation(*cases)) == expected


def test_metrics_are_counted_apart() -> None:
    slow, memory = session(SLOW), session(SLOW)
    arms_of_memory = {name: replace(one, case=Case.parse(f"{CASE}.memory")) for name, one in memory.arms.items()}
    taken = [slow, IsolatedCase("norms", f"{CASE}.memory", arms_of_memory)]
    judged = evaluate(taken, COMPONENTS, Policy(), steps(4, 4))
    said = headline(replace(isolation(SLOW), cases=judged))
    made = "Triton 3.6.0 → 3.7.1 made 1 of 2 cases slower, by 38 % and made 1 take more memory, by 38 %"
    assert said == f"{made}; torch moved none."


def test_counts_have_differences() -> None:
    one = session(SLOW)
    counted = {
        name: replace(each, case=Case.parse(f"{CASE}.kernels"), screened=((3.0 + 2 * (name in MORE),),) * 4)
        for name, each in one.arms.items()
    }
    judged = evaluate([IsolatedCase("norms", f"{CASE}.kernels", counted)], COMPONENTS, Policy(), steps(4, 4))
    view = isolated(replace(isolation(SLOW), cases=judged, causes={}))
    said = as_markdown(view)
    assert "Triton 3.6.0 → 3.7.1 made 1 of 1 case have more kernels, by 2; torch moved none." in said
    assert "| +2 | +2 / +2 | 0 / 0 | 0 | more kernels: Triton |" in said


def test_every_case_has_a_line_with_both_directions() -> None:
    view = isolated(isolation(SLOW, missing={"to-torch": "cannot import torch"}))
    said = as_markdown(view)
    assert view.code == 1
    assert "| case | total | Triton | torch | left | verdict |" in said
    line = next(line for line in said.splitlines() if CASE in line)
    assert "+38" in line
    assert line.endswith("| slower: Triton |")
    assert "Triton at " in said
    assert "no recorded fact of the code differs" in said
    assert "Not measured: to-torch: cannot import torch." in said


def test_csv_has_a_line_for_each_case_and_component() -> None:
    view = isolated(isolation(SLOW, STILL))
    rows = list(csv.DictReader(io.StringIO(as_csv(*view.rows))))
    assert [(row["component"], row["verdict"]) for row in rows] == [
        ("triton", "slower"),
        ("torch", "not-moved"),
        ("triton", "not-moved"),
        ("torch", "not-moved"),
    ]
    assert float(rows[0]["forward.ratio"]) == pytest.approx(1.38, rel=0.01)
    assert float(rows[0]["forward.low"]) < float(rows[0]["forward.ratio"]) < float(rows[0]["forward.high"])
