"""The graph pass of S2 on graphs that `make_fx` traced: it tags the fused norms, their results, and nothing else."""

import operator
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.fx import Graph, GraphModule, Node  # noqa: E402

from benchmarks.kernels.published.arms import fused_norm  # noqa: E402
from benchmarks.kernels.published.arms.graphs import traced, with_compiled_norms  # noqa: E402
from benchmarks.kernels.published.arms.tagging import FUSED_NORMS, tag_fused_norms  # noqa: E402
from kernels.providers.modes import TAG  # noqa: E402

compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FORWARD, BACKWARD = FUSED_NORMS
X, WEIGHT, DY = torch.randn(8, 16), torch.rand(16), torch.randn(8, 16)


def graph_of(function: Callable[..., object]) -> GraphModule:
    """The graph of a function of x, weight and dy; x and weight require gradients."""
    fused_norm.enable_on_cpu()
    return traced(function, (X.clone().requires_grad_(), WEIGHT.clone().requires_grad_(), DY))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return fused_norm.rms_norm(x, weight, 1e-6)


def forward(x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    return norm(x * 2, weight) + dy


def both(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    y = norm(x, weight)
    return (y, *torch.autograd.grad(y, (x, weight), dy))


def tagged(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if TAG in node.meta.get("custom", {})]


def targets(nodes: list[Node]) -> list[object]:
    return [node.target for node in nodes]


def test_the_fused_norm_is_tagged() -> None:
    graph = graph_of(forward)
    assert tag_fused_norms(graph) == 1
    assert targets(tagged(graph))[0] == FORWARD


def test_the_nodes_that_take_its_results_are_tagged() -> None:
    graph = graph_of(both)
    tag_fused_norms(graph)
    taken = [node for node in graph.graph.nodes if node.target is operator.getitem]
    assert len(taken) == 4  # y and rstd, dx and dweight
    assert set(taken) <= set(tagged(graph))


def test_other_nodes_are_not_tagged() -> None:
    graph = graph_of(forward)
    tag_fused_norms(graph)
    others = {torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor}
    assert others <= set(targets(list(graph.graph.nodes)))
    assert not others & set(targets(tagged(graph)))
    assert {node.op for node in tagged(graph)} == {"call_function"}


def test_a_graph_with_other_norms_stays_as_it_is() -> None:
    graph = graph_of(lambda x, weight, dy: torch.nn.functional.layer_norm(x, (16,), weight) + dy)
    assert tag_fused_norms(graph) == 0
    assert tagged(graph) == []


def test_several_norms_are_tagged() -> None:
    graph = graph_of(lambda x, weight, dy: norm(norm(x, weight) * dy, weight))
    assert tag_fused_norms(graph) == 2
    assert targets(tagged(graph)).count(FORWARD) == 2


def test_forward_and_backward_are_tagged() -> None:
    graph = graph_of(both)
    assert tag_fused_norms(graph) == 2
    assert {FORWARD, BACKWARD} <= set(targets(tagged(graph)))


def test_an_empty_graph_has_no_norms() -> None:
    empty = GraphModule(torch.nn.Module(), Graph())
    assert tag_fused_norms(empty, {"max_autotune": True}) == 0
    assert list(empty.graph.nodes) == []


def test_without_a_configuration_inductors_defaults_hold() -> None:
    graph = graph_of(forward)
    tag_fused_norms(graph)
    assert {str(node.meta["custom"][TAG]) for node in tagged(graph)} == {"{'inductor_configs': {}}"}


@compiles
def test_the_configuration_reaches_inductor() -> None:
    graph = graph_of(both)
    for node in graph.graph.nodes:
        node.meta["custom"] = {"ours": node.name}
    tag_fused_norms(graph, {"max_autotune": True})
    for node in tagged(graph):
        assert node.meta["custom"] == {"ours": node.name, TAG: {"inductor_configs": {"max_autotune": True}}}

    with pytest.raises(ValueError, match="Invalid inductor config key 'no_such_setting'"):
        with_compiled_norms(graph_of(both), {"no_such_setting": True})


@compiles
def test_norms_that_are_compiled_alone_compute_the_same() -> None:
    expected = graph_of(both)(X, WEIGHT, DY)
    graph, norms = with_compiled_norms(graph_of(both), {"coordinate_descent_tuning": True})
    found = graph(X, WEIGHT, DY)

    assert norms == 2
    left = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert not any("rms_norm" in name for name in left)  # both are in the compiled regions
    for right, seen in zip(expected, found, strict=True):
        torch.testing.assert_close(seen, right)
