"""Norms of distributed tensors: rows cut over two processes, against torch's own modules."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels

WORLD = 2
ROOT = Path(kernels.__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each process found."""
    store = tmp_path_factory.mktemp("group") / "store"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(rank), str(store)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    ended = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * WORLD, ended[0][1][-2000:]
    return [json.loads(spoken) for spoken, _ in ended]


@pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
def test_a_module_is_parallelised_as_torchs(results, norm):
    for found in results:
        for name, (error, placements, theirs) in found[norm]["SequenceParallel"].items():
            assert error < 2e-6, name
            assert placements == theirs, name


@pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
def test_cut_columns_and_partial_sums_are_collected_first(results, norm):
    for found in results:
        assert found[norm]["placements"] == {
            "R": [0.0, "R"],
            "S(0)": [0.0, "S(0)"],
            "S(1)": [0.0, "S(1)"],
            "S(2)": [0.0, "R"],
            "P(sum)": [0.0, "R"],
        }


@pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
def test_compiled_it_is_the_same(results, norm):
    for found in results:
        assert found[norm]["compiled"] == [True] * (3 if norm == "LayerNorm" else 2)


@pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
def test_a_weight_that_is_not_distributed_is_refused(results, norm):
    for found in results:
        assert found[norm]["refused"] == "x is a DTensor: distribute the weight over the same mesh"


def main(rank: int, store: str) -> None:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    from kernels.norms.modules import LayerNorm, RMSNorm

    dist.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"file://{store}")
    mesh = init_device_mesh("cpu", (WORLD,))
    pairs = ((RMSNorm, nn.RMSNorm), (LayerNorm, nn.LayerNorm))
    print(json.dumps({ours.__name__: found(ours, theirs, mesh) for ours, theirs in pairs}))
    dist.destroy_process_group()


def found(ours: Any, theirs: Any, mesh: Any) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    def filled(kind: Any) -> Any:
        torch.manual_seed(0)
        module = kind(8, eps=1e-5)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
        return module

    torch.manual_seed(1)
    x, dy = torch.randn(2, 5, 8), torch.randn(2, 5, 8)  # five rows, over two processes

    def step(module: Any, call: Any) -> dict[str, Any]:
        rows = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
        y = call(rows)
        seen = (y * distribute_tensor(dy, mesh, [Shard(1)])).sum()
        names = ("x", *(name for name, _ in module.named_parameters()))
        return {"y": y, **dict(zip(names, torch.autograd.grad(seen, [rows, *module.parameters()]), strict=True))}

    parallel = [parallelize_module(filled(kind), mesh, SequenceParallel()) for kind in (ours, theirs)]
    both = [step(module, module) for module in parallel]
    module = distribute_module(filled(ours), mesh)
    plain = filled(ours)
    right = plain(x, x)
    inputs = {
        "R": distribute_tensor(x, mesh, [Replicate()]),
        **{f"S({dim})": distribute_tensor(x, mesh, [Shard(dim)]) for dim in range(3)},
        "P(sum)": DTensor.from_local(x / WORLD, mesh, [Partial()]),
    }
    placements = {}
    for name, rows in inputs.items():
        outputs = module(rows, distribute_tensor(x, mesh, [Shard(2)]))
        errors = [float((each.full_tensor() - whole).abs().max()) for each, whole in zip(outputs, right, strict=True)]
        placements[name] = [max(errors), placed(outputs[0])]
    compiled = step(module, torch.compile(module, fullgraph=True, backend="aot_eager"))
    eager = step(module, module)
    try:
        plain(inputs["S(1)"])
        refused = ""
    except ValueError as error:
        refused = str(error)
    return {
        "SequenceParallel": {
            name: [float((ours.full_tensor() - theirs.full_tensor()).abs().max()), placed(ours), placed(theirs)]
            for name, ours, theirs in ((name, both[0][name], both[1][name]) for name in both[0])
        },
        "placements": placements,
        "compiled": [
            torch.equal(compiled[name].full_tensor(), each.full_tensor()) for name, each in eager.items() if name != "y"
        ],
        "refused": refused,
    }


def placed(tensor: Any) -> str:
    return ", ".join(map(str, tensor.placements))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
