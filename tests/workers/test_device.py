"""Which device a machine has, and that one process has it at a time."""

import pytest

from service.errors import BadInput, Conflict
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
    [here] = device.ask()
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
    with device.exclusive(*(one.key for one in device.ask())):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5ca1ab1e")
        [again] = device.ask()
        with pytest.raises(Conflict, match="Another worker uses GPU-5ca1ab1e"), device.exclusive(again.key):
            pass


def test_by_default_locks_are_the_same_for_all_states(monkeypatch):
    monkeypatch.delenv("KERNELWATCH_LOCKS")
    settings.cache_clear()
    assert not settings().locks.is_relative_to(settings().state)


@pytest.mark.parametrize(("visible", "name"), [("0", "h200"), ("GPU-5ca1ab1e", "h200"), ("", "cpu"), ("-1", "cpu")])
def test_the_gpu_is_the_first_that_cuda_sees(one_gpu, monkeypatch, visible, name):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    [here] = device.ask()
    assert here.name == name


def test_a_worker_for_a_gpu_says_that_all_are_hidden(one_gpu, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_DEVICE", "h200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    settings.cache_clear()
    with pytest.raises(Conflict, match="CUDA_VISIBLE_DEVICES hides them all"):
        device.ask()


def gpu(number: int, product: str = "NVIDIA H200") -> DeviceHere:
    return DeviceHere("h200", f"{product}, GPU-{number}", f"GPU-{number}", number, number, 140 << 30)


@pytest.fixture
def several(monkeypatch):
    """A machine with GPUs 0 to 3; the last is of another model."""
    here = [gpu(0), gpu(1), gpu(2), gpu(3, "NVIDIA H200 NVL")]
    known = dict(enumerate(here)) | {one.uuid: one for one in here}
    monkeypatch.setattr(device, "_gpu", known.get)

    def chosen(gpus: str) -> list[int]:
        monkeypatch.setenv("KERNELWATCH_GPUS", gpus)
        settings.cache_clear()
        return [one.index for one in device.ask()]

    return chosen


@pytest.mark.parametrize(
    ("visible", "gpus", "indices"),
    [
        (None, "0-2", [0, 1, 2]),
        (None, "2, 0", [2, 0]),
        (None, "1", [1]),
        (None, "", [0]),
        ("2,1", "0-1", [2, 1]),
        ("GPU-1,GPU-2", "1", [2]),
    ],
)
def test_gpus_are_counted_among_those_that_cuda_sees(several, monkeypatch, visible, gpus, indices):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert several(gpus) == indices


@pytest.mark.parametrize(
    ("gpus", "error", "said"),
    [
        ("0-4", Conflict, "names GPU 4, which is not here. `nvidia-smi` lists the GPUs"),
        (
            "0-3",
            Conflict,
            "NVIDIA H200, GPU-0 and NVIDIA H200 NVL, GPU-3, which are two models. Start a worker for each",
        ),
        ("0,1,0-1", BadInput, "names a GPU twice. Name each once"),
        ("2-1", BadInput, "Write numbers of GPUs, like 0-3 or 0,2"),
        ("all", BadInput, "Write numbers of GPUs, like 0-3 or 0,2"),
        ("0,", BadInput, "Write numbers of GPUs, like 0-3 or 0,2"),
    ],
)
def test_gpus_that_cannot_share_runs_are_refused_with_the_reason(several, gpus, error, said):
    with pytest.raises(error, match=said):
        several(gpus)


def test_the_worker_of_the_processor_takes_no_gpus(several, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_DEVICE", "cpu")
    several("0-1")
    assert [one.name for one in device.ask()] == ["cpu"]


def test_a_worker_of_several_gpus_locks_all_of_them():
    with device.exclusive("GPU-0", "GPU-1"):
        with pytest.raises(Conflict, match="Another worker uses GPU-1"), device.exclusive("GPU-2", "GPU-1"):
            pass
        with device.exclusive("GPU-2"):
            pass


def test_a_gpu_that_the_driver_does_not_know_any_more_is_lost(monkeypatch):
    answers = {"GPU-0": gpu(0)}
    monkeypatch.setattr(device, "_read", answers.get)
    assert [device.is_lost(one) for one in (gpu(0), gpu(1), DeviceHere("cpu", "a processor"))] == [False, True, False]
