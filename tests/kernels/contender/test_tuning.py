"""Triton's autotuner under observation, with a clock that is not that of a GPU."""

import pytest

from kernels.contender.tuning import Choices, NeedsDevice, Tuning, observe_autotuners
from tests import needs

pytest.importorskip("triton", reason=needs.reason("triton"))
from triton import Config
from triton.runtime.autotuner import Autotuner

CASE = "rmsnorm.fwd.16x64.fp32"
LARGE = "BLOCK=128 num_warps=4 num_stages=3"
MS = {32: 3.0, 64: 1.0, 128: 2.0}  # by BLOCK


def norm_kernel(x, BLOCK): ...


class Kernel:
    """Stands for a compiled kernel; `blocks` has the BLOCK of each launch."""

    fn = staticmethod(norm_kernel)

    def __init__(self):
        self.blocks = []

    def run(self, _x, *, BLOCK, **_options):
        self.blocks.append(BLOCK)


class WithStore(Autotuner):
    """As FlagGems' LibTuner: with a `run` of its own, and a store of choices that is no dictionary."""

    class Store:
        def __init__(self):
            self.chosen = {}

        def __contains__(self, key):
            return key in self.chosen

        def __getitem__(self, key):
            return self.chosen[key]

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.cache = self.Store()

    def run(self, x):
        self.nargs = {"x": x}
        if x not in self.cache:
            times = {config: self._bench(x, config=config)[0] for config in self.configs}
            self.cache.chosen[x] = min(times, key=times.get)
        self.best_config = self.cache[x]
        return self.fn.run(x, **self.best_config.all_kwargs())


def made(kind=Autotuner, configs=None):
    """An autotuner whose key is x, and its kernel."""
    kernel = Kernel()

    def timed(call, quantiles):
        call()
        return [MS[kernel.blocks[-1]]] * len(quantiles)

    configs = configs or [Config({"BLOCK": block}) for block in MS]
    return kind(kernel, ["x", "BLOCK"], configs, ["x"], None, None, do_bench=timed), kernel


def launched(tuner, *xs, choices=None, alone=True, **reuse):
    """What a preparation observes that launches the kernel with each x."""
    tuning = Tuning(alone, CASE, choices or Choices(), reuse)
    with observe_autotuners(tuning, on_gpu=False, compiled=False):
        for x in xs:
            tuner.run(x)
    return tuning


@pytest.mark.parametrize("kind", [Autotuner, WithStore])
def test_what_is_reused_is_launched_beside_others_and_no_candidate_is(kind):
    tuner, kernel = made(kind)

    tuning = launched(tuner, 1, 2, alone=False, norm_kernel=LARGE)

    assert (tuning.reused, tuning.refused, tuning.chosen) == (True, False, {"norm_kernel": LARGE})
    assert kernel.blocks == [128, 128]
    tuner.run(3)  # a check after the timing, with other numbers
    assert kernel.blocks == [128, 128, 128]


@pytest.mark.parametrize("kind", [Autotuner, WithStore])
def test_without_a_choice_to_reuse_the_fastest_is_chosen_and_noted(kind):
    tuner, kernel = made(kind)

    with pytest.raises(NeedsDevice):
        launched(tuner, 1, alone=False)
    tuning = launched(tuner, 1)

    assert (tuning.reused, tuning.chosen) == (False, {"norm_kernel": "BLOCK=64 num_warps=4 num_stages=3"})
    assert {*kernel.blocks} == {32, 64, 128}


TWICE = [Config({"BLOCK": 128}, maxnreg=count) for count in (64, 128)]  # both read alike


@pytest.mark.parametrize(
    ("configs", "reuse"),
    [
        (None, {"norm_kernel": "BLOCK=256 num_warps=4 num_stages=3"}),
        (None, {"sum_kernel": LARGE}),
        (TWICE, {"norm_kernel": LARGE}),
    ],
)
def test_a_choice_that_names_no_candidate_is_not_reused(configs, reuse):
    tuner, kernel = made(configs=configs)

    tuning = launched(tuner, 1, **reuse)

    assert tuning.reused is False
    assert len(kernel.blocks) == len(tuner.configs) + 1


@pytest.mark.parametrize("kind", [Autotuner, WithStore])
def test_what_was_reused_is_no_choice_of_its_own(kind):
    tuner, kernel = made(kind)
    choices = Choices()
    launched(tuner, 1, choices=choices, norm_kernel=LARGE)

    tuning = launched(tuner, 1, choices=choices)

    assert tuning.reused is False
    assert kernel.blocks[-1] == 64
