"""Host time of a call: what each side calls, and that all of them compute the same; on a CPU, which times nothing."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.kernels import host_time  # noqa: E402


@pytest.mark.filterwarnings("ignore")  # torch compiles
def test_ours_and_eager_have_every_call_and_a_table_shows_them():
    sides = dict(host_time.calls(4, 256, torch.device("cpu")))

    for what, calls in sides.items():
        named = {"eager"} if what.endswith("op") else {"ours"} if "module with" in what else {"ours", "eager"}
        assert named <= set(calls), what  # the op of ours needs a GPU
    gradients = sides["LayerNorm, forward and backward"]["ours"]()
    assert [tuple(each.shape) for each in gradients] == [(4, 256), (4, 256), (256,), (256,)]  # y, dx, dweight, dbias
    table = host_time.table({what: {side: [2.0, 4.0, 3.0] for side in calls} for what, calls in sides.items()})
    assert "| RMSNorm, function | 3.0 (2.0 to 4.0) | 3.0 (2.0 to 4.0) |" in table


def test_a_side_with_another_result_is_not_timed(capsys):
    x = torch.ones(4)
    assert [*host_time.right({"ours": lambda: x, "eager": lambda: x, "quack": lambda: 2 * x})] == ["ours", "eager"]
    assert "quack is left out: it differs from ours by 1.000" in capsys.readouterr().out
