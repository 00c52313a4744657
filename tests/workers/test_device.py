"""Which device a machine has, and that one process has it at a time."""

import pytest

from service.errors import Conflict
from service.settings import settings
from workers.machine import device
from workers.machine.device import DeviceHere

H200 = DeviceHere("h200", "NVIDIA H200, GPU-5ca1ab1e", "GPU-5ca1ab1e", 0, 0)


@pytest.fixture
def one_gpu(monkeypatch):
    """A machine with one H200, whose driver answers for it by its index and by its UUID."""
    monkeypatch.setattr(device, "_gpu", lambda which: H200 if which in (0, H200.uuid) else None)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path))
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("KERNELWATCH_DEVICE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
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
    taken = pytest.raises(Conflict, match=r"Another worker uses cpu on this machine \(pid \d+\)")
    with device.exclusive("cpu"), taken, device.exclusive("cpu"):
        pass
    with device.exclusive("cpu"), device.exclusive("h200"):
        pass


def test_a_worker_with_a_state_folder_of_its_own_finds_the_device_taken(tmp_path, monkeypatch):
    with device.exclusive("cpu"):
        monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "another"))
        settings.cache_clear()
        with pytest.raises(Conflict, match="Another worker uses cpu"), device.exclusive("cpu"):
            pass


def test_a_gpu_has_one_lock_however_it_is_named(one_gpu, monkeypatch):
    with device.exclusive("h200"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5ca1ab1e")
        with pytest.raises(Conflict, match="Another worker uses h200"), device.exclusive("h200"):
            pass


def test_by_default_locks_are_the_same_for_all_states(monkeypatch):
    monkeypatch.delenv("KERNELWATCH_LOCKS")
    settings.cache_clear()
    assert not settings().locks.is_relative_to(settings().state)


@pytest.mark.parametrize(("visible", "name"), [("0", "h200"), ("GPU-5ca1ab1e", "h200"), ("", "cpu"), ("-1", "cpu")])
def test_the_gpu_is_the_first_that_cuda_sees(one_gpu, monkeypatch, visible, name):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device.ask().name == name


def test_a_worker_for_a_gpu_says_that_all_are_hidden(one_gpu, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_DEVICE", "h200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    settings.cache_clear()
    with pytest.raises(Conflict, match="CUDA_VISIBLE_DEVICES hides them all"):
        device.ask()
