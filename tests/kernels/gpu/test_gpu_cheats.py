"""Cheats on a real GPU that use a graph, a stream or an event."""

import re
import statistics
from pathlib import Path

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender, Pace, run_trial
from kernels.cases import Case, Role

pytestmark = [pytest.mark.gpu, pytest.mark.alone]  # others on the GPU would change its times
CHEATS = Path(__file__).parents[1] / "contender" / "cheats"
PACE = Pace(rounds=4, start_limit_s=120)

ON_GPU = [
    "honest",
    "skips_what_it_wrote",
    "works_beside",
    "left_out_of_the_graph",
    "other_bits_in_the_graph",
    "differs",
]
BY_ROWS = [
    "honest",
    "keeps_by_pointer",
    "keeps_by_content",
    "writes_into_inputs",
    "returns_an_input",
    "reuses_a_buffer",
]


@pytest.fixture(scope="module")
def cheating(open_contender):
    """A contender whose functions are those of one of the modules in `cheats`."""

    def make(label, module, *directions):
        calls = {f"rmsnorm.{short}": f"{module}:{long}" for short, long in directions}
        spec = protocol.targets_own("cheat", calls)
        return Contender(label, Role.HEAD, spec, lambda: open_contender(PYTHONPATH=str(CHEATS)))

    return make


FORWARD, BACKWARD = ("fwd", "forward"), ("bwd", "backward")


@pytest.fixture(scope="module", params=[True, False], ids=["thorough", "later"])
def played(request, cheating):
    """Cells by the name of the cheat, in a first launch and in a later one."""
    cells = {"thorough": request.param}
    for module, names, first in (("on_gpu", ON_GPU, 4096), ("by_rows", BY_ROWS, 200)):
        cases = {name: Case.parse(f"rmsnorm.fwd.{first + number}x4096.fp32") for number, name in enumerate(names)}
        head = cheating("head", module, FORWARD)
        found = run_trial([head], list(cases.values()), PACE, device="cuda", seed=3, thorough=request.param).cells
        cells |= {f"{module}.{name}": found["head", case] for name, case in cases.items()}
    return cells


@pytest.mark.parametrize("name", ["on_gpu.honest", "by_rows.honest"])
def test_the_honest_pass(played, name):
    assert (played[name].state, played[name].reason) == ("measured", None)
    assert played["thorough"] is False or played[name].facts["repeatable"] is True


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("by_rows.keeps_by_pointer", "y is wrong|y has|shares memory|CUDA graph"),
        ("by_rows.writes_into_inputs", "changed its input x|y is wrong"),
        ("by_rows.returns_an_input", "its input x|y is wrong"),
        ("by_rows.reuses_a_buffer", "y shares memory with the y that an earlier call returned"),
        ("on_gpu.left_out_of_the_graph", "y has"),
    ],
)
def test_invalid_in_every_trial(played, name, complaint):
    assert played[name].state == "invalid", played[name].reason
    assert re.search(complaint, played[name].reason)


def test_to_decide_by_the_content_it_would_have_to_wait_for_the_device(played):
    assert played["by_rows.keeps_by_content"].state == "failed"
    assert "cannot be captured in a CUDA graph: " in played["by_rows.keeps_by_content"].reason


def test_work_on_an_independent_stream_is_not_in_the_graph(played):
    assert played["on_gpu.works_beside"].state in ("invalid", "failed"), played["on_gpu.works_beside"].reason


@pytest.mark.parametrize("played", [True], ids=["thorough"], indirect=True)
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("on_gpu.skips_what_it_wrote", "does less on numbers it has seen before: "),
        ("on_gpu.other_bits_in_the_graph", "its CUDA graph computes something else than its calls: other bits"),
    ],
)
def test_invalid_in_the_first_trial(played, name, complaint):
    assert played[name].state == "invalid", played[name].reason
    assert complaint in played[name].reason


def test_varying_bits_are_a_fact_and_not_an_error(played):
    cell = played["on_gpu.differs"]

    assert (cell.state, cell.reason) == ("measured", None)
    assert played["thorough"] is False or cell.facts["repeatable"] is False


def test_a_timer_of_its_own_gains_nothing(cheating):
    case = Case.parse("rmsnorm.fwd.4095x4096.fp32")
    contenders = [cheating("timer", "timer", FORWARD), cheating("plain", "by_rows", FORWARD)]
    cells = run_trial(contenders, [case], PACE, device="cuda", seed=3).cells

    assert [cells[label, case].reason for label in ("timer", "plain")] == [None, None]
    timer, plain = (statistics.median(cells[label, case].samples) for label in ("timer", "plain"))
    assert 0.9 < timer / plain < 1.1


def test_a_manipulated_clock_disagrees_with_the_driver(cheating, contender):
    case = Case.parse("rmsnorm.bwd.4096x4096.fp32")
    honest = contender("sota", protocol.built_in("eager"), Role.SOTA)
    cells = run_trial([cheating("timer", "timer", BACKWARD), honest], [case], PACE, device="cuda", seed=3).cells

    assert (cells["sota", case].state, cells["sota", case].reason) == ("measured", None)
    assert cells["timer", case].state == "invalid"
    assert "its clock disagrees with the driver's: " in cells["timer", case].reason
