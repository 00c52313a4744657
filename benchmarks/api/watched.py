"""What the pull requests of `benchmarks.api.comment_latency` change: scripted timings, or norms in torch."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.norms.build import COMMITS
from tests.fakes.processes import scripted_python
from workers.machine import device

_CASE = "rmsnorm.fwd.64x4096.fp32"
_SCRIPTED = f"""
devices = ["cpu"]
suite = "one"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{_CASE}"]
[policy]
smallest_change = 0.05
screening = [3]
rounds = 6
comment = "always"
"""
# Two busy cores would ask for up to 28 trials of a case, and for a second session where controls are off.
_IN_TORCH = """
devices = ["{device}"]
suite = "twelve"
[sota]
default = "inductor"
cpu = "eager"
[providers.norms]
rmsnorm.fwd = "norms.rmsnorm:rms_norm"
rmsnorm.bwd = "norms.rmsnorm:rms_norm_backward"
layernorm.fwd = "norms.layernorm:layer_norm"
[suites]
twelve = {cases}
[policy]
comment = "always"
[policy.devices.cpu]
smallest_change = 0.5
screening = [3]
confirmation = [2]
control_limit = 1
"""
_ON_CPU = ("512x512", "256x1024", "128x2048", "128x4096")
_ON_GPU = ("16384x512", "16384x1024", "8192x2048", "8192x4096")


@dataclass(frozen=True)
class Watched:
    """A target: its recipe, the interpreter of its stack, and its files, at the head of each pull request by number."""

    device: str
    recipe: str
    python: Path
    base: Mapping[str, str]
    head: Callable[[int], Mapping[str, str]]


def scripted(folder: Path) -> Watched:
    """One case whose timings are scripted, by an interpreter written into a new `folder`."""

    def speed(us: float) -> dict[str, str]:
        return {"speed.json": json.dumps({_CASE: us})}

    return Watched("cpu", _SCRIPTED, scripted_python(folder), speed(200.0), lambda pull: speed(200.0 + pull / 100))


def in_torch() -> Watched:
    """Twelve cases of the demo's norms on this device; two change, because heads sum rows from 2048 on in float64."""
    here = device.ask()[0].name
    shapes = _ON_CPU if here == "cpu" else _ON_GPU
    ops = ("rmsnorm.fwd", "rmsnorm.bwd", "layernorm.fwd")
    recipe = _IN_TORCH.format(device=here, cases=json.dumps([f"{op}.{shape}.fp32" for op in ops for shape in shapes]))
    wide = _files("04-wide-rows")

    def head(pull: int) -> dict[str, str]:
        return {path: f"{text}# pull request {pull}\n" for path, text in wide.items()}

    return Watched(here, recipe, Path(sys.executable), _files("01-first") | _files("02-refactor"), head)


def _files(commit: str) -> dict[str, str]:
    folder = COMMITS / commit
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*") if path.suffix != ".pyc"}
