"""Which device a machine has, and that one process has it at a time."""

import pytest

from service.errors import Conflict
from service.settings import settings
from workers import device


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("product", "capability", "name"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100"),
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA B200", (10, 0), "b200"),
        ("NVIDIA GB200", (10, 0), "gb200"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "rtx-4090-sm89"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), "rtx-6000-ada-generation-sm89"),
        ("Tesla V100-SXM2-16GB", (7, 0), "v100-sxm2-16gb-sm70"),
    ],
)
def test_a_gpu_is_named_shortly_or_by_what_it_is(product, capability, name):
    assert device.named(product, capability) == name


def test_a_machine_asked_for_its_processor_says_which(monkeypatch):
    monkeypatch.setenv("KERNELWATCH_DEVICE", "cpu")
    here = device.ask()
    assert (here.name, here.uuid, here.nodes) == ("cpu", None, ())
    assert "cores" in here.description


def test_only_one_worker_has_a_device():
    taken = pytest.raises(Conflict, match=r"Another worker has cpu here already \(pid \d+\)")
    with device.exclusive("cpu"), taken, device.exclusive("cpu"):
        pass
    with device.exclusive("cpu"), device.exclusive("h200"):
        pass
