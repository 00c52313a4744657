"""Which plan a call gets: one of a file of tuned plans, which `tuning` searches for, or the default.

A plan is stored per op, direction, columns and dtypes.  It is for all numbers of rows, so that the bits of a row do not
depend on how many there are; with default plans they may, unless `set_batch_invariant` was called or the environment
variable KERNELWATCH_BATCH_INVARIANT was 1 at the import.  A file holds the plans of several devices and software
stacks; it is used only if the environment variable KERNELWATCH_TUNED names it or `use` was called.
"""

import functools
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cases import DTYPE_BYTES, OPS, Case, Direction, norm_name
from . import plans
from .plans import BackwardPlan, ForwardPlan, Sum

if TYPE_CHECKING:
    import torch

FORMAT = 3  # 1 had clusters; in 2, one plan was for several ops
VARIABLE = "KERNELWATCH_TUNED"
INVARIANT_VARIABLE = "KERNELWATCH_BATCH_INVARIANT"
COMMAND = f"python -m {__package__}.tuning"
HELP = f"delete it, or write it anew with `{COMMAND}`"


class Unreadable(ValueError):
    """The file of tuned plans is missing or wrong.  The message says what is wrong and how to fix it."""


@dataclass(frozen=True)
class Place:
    """The device and software stack on which a plan was the fastest.  On others, another one may be."""

    device: str
    capability: str
    torch: str
    triton: str
    driver: str

    def __str__(self) -> str:
        return f"{self.device} ({self.capability}) with torch {self.torch}, Triton {self.triton}, driver {self.driver}"


@dataclass(frozen=True)
class Found:
    plan: ForwardPlan
    ratio: float  # its time / that of the default plan, timed in turns


Store = dict[Place, dict[str, Found]]


_used: Path | None = None
batch_invariant = os.environ.get(INVARIANT_VARIABLE) == "1"  # a row of y, and of dx, has the same bits in every batch
choices = 0  # how often plans began to be chosen otherwise: launches that are kept hold the plans of their time


def use(path: str | os.PathLike[str] | None) -> None:
    """Take plans from this file from now on.  None: from the file in the environment variable, if any."""
    global _used
    _used = None if path is None else Path(path)
    _here.cache_clear()
    _choose_anew()


def set_batch_invariant(wanted: bool) -> None:
    """Give a row of y, and of dx, the same bits in every batch from now on, or let a few rows be faster.

    A CUDA graph keeps what it was captured with.
    """
    global batch_invariant
    batch_invariant = wanted
    _choose_anew()


def _choose_anew() -> None:
    """Forget the launches that are kept.  The number is for a thread that is about to keep one."""
    from .calls.again import BACKWARD, FORWARD

    global choices
    choices += 1
    FORWARD.clear()
    BACKWARD.clear()


def chosen_plan(
    direction: Direction,
    x: "torch.Tensor",
    weight: "torch.Tensor | None",
    *,
    norm: str,
    bias: bool = False,
    residual: bool = False,
    rows: int | None = None,
    processors: int = 0,
    one_stride: bool = True,
) -> Any:
    """A tuned plan if a file of them is in use, for all numbers of rows; else the default.

    The default depends neither on Triton nor, with many rows, on the device.  norm: "rmsnorm" or "layernorm".
    bias, residual, rows, processors: as in plans.NormLaunch.  one_stride: the rows have no heads, which a team does not
    take.  Raises Unreadable.
    """
    if found := tuned(direction, x, weight, norm=norm, bias=bias, residual=residual):
        return found
    size = x.element_size()
    weight_size = size if weight is None else weight.element_size()
    return plans.default(
        direction, x.shape[-1], center=norm == "layernorm", size=size, weight_size=weight_size,
        bias=bias, residual=residual, rows=rows, processors=processors,
        batch_invariant=batch_invariant or not one_stride,
    )  # fmt: skip


def tuned(
    direction: Direction, x: "torch.Tensor", weight: "torch.Tensor | None", *, norm: str, bias: bool, residual: bool
) -> ForwardPlan | None:
    """The tuned plan for rows like those of x, [rows, columns], on its device and this stack; None without one.

    Raises Unreadable.
    """
    path = _used or os.environ.get(VARIABLE)
    if not path:
        return None
    op = norm_name(norm, weight=weight is not None, bias=bias, residual=residual)
    dtypes = [_short(each.dtype) for each in (x, x if weight is None else weight)]
    found = _here(Path(path), x.device).get(key(op, direction, x.shape[-1], *dtypes))
    return found.plan if found else None


@functools.cache
def _here(path: Path, device: "torch.device") -> Mapping[str, Found]:
    if not path.exists():
        raise Unreadable(f"there are no tuned plans in {path}: write them with `{COMMAND}`")
    store, here = read(path), place(device)
    if here is None:
        return {}
    if here not in store:
        known = "; ".join(map(str, store)) or "nothing"
        warnings.warn(f"{path} has plans for {known}, and not for {here}: the default plans are used", stacklevel=3)
    return store.get(here, {})


def key(op: str, direction: Direction, cols: int, dtype: str, weight_dtype: str) -> str:
    """`rmsnorm.fwd.4096.bf16-fp32`: dtypes of rows and of weights, or one if they are the same."""
    mixed = "" if weight_dtype == dtype else f"-{weight_dtype}"
    return f"{op}.{direction}.{cols}.{dtype}{mixed}"


def key_of(case: Case) -> str:
    return key(case.op, case.direction, case.cols, case.dtype, case.weight_dtype)


def default_of(case: Case, processors: int = 0) -> ForwardPlan:
    """The default plan of a case on a device with this many SMs; without any, the plan for many rows."""
    op = OPS[case.op]
    return plans.default(
        case.direction, case.cols, center=op.norm == "layernorm", size=DTYPE_BYTES[case.dtype],
        weight_size=DTYPE_BYTES[case.weight_dtype], bias=op.bias, residual=op.residual,
        rows=case.rows if processors else None, processors=processors, batch_invariant=batch_invariant,
    )  # fmt: skip


def _short(dtype: "torch.dtype") -> str:
    from ..checks.inputs import DTYPES

    return next(short for short, known in DTYPES.items() if known is dtype)


def place(device: "torch.device") -> Place | None:
    """None if the device is not a GPU."""
    import torch
    import triton

    if device.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device)
    return Place(about.name, f"{about.major}.{about.minor}", torch.__version__, triton.__version__, _driver_version())


def _driver_version() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return "unknown"


def default_path() -> Path:
    """Where the tuner writes if no file is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kernelwatch" / "norms.json"


def read(path: Path) -> Store:
    """Raises Unreadable if the file is wrong."""
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']}, and this is {FORMAT}")
        return {
            Place(**entry["place"]): {
                name: Found(_plan(name, each["plan"]), float(each["ratio"])) for name, each in entry["plans"].items()
            }
            for entry in stored["entries"]
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"{path} is not a file of tuned plans ({type(error).__name__}: {error}): {HELP}") from error


def write(path: Path, store: Store) -> None:
    """Atomically: readers see the file before or after."""
    entries = [
        {"place": asdict(at), "plans": {name: asdict(found) for name, found in sorted(plans_there.items())}}
        for at, plans_there in store.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        unfinished.write_text(json.dumps({"format": FORMAT, "entries": entries}, indent=1))
        os.replace(unfinished, path)


def _plan(name: str, stored: Mapping[str, Any]) -> ForwardPlan:
    """Raises ValueError or TypeError for a plan that no kernel could be launched with."""
    _, direction, cols, _ = name.split(".")
    plan: ForwardPlan
    if direction == Direction.BWD:
        plan = BackwardPlan(**{**stored, "sum": Sum(stored["sum"])})
    else:
        plan = ForwardPlan(**stored)
    if wrong := plans.problem(plan, int(cols)):
        raise ValueError(f"{name}: {plan} is not valid for {cols} columns: {wrong}")
    return plan
