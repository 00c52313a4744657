"""Cases drawn at random, reproducible by a seed: shapes, dtypes and ops that nobody chose.  Pure."""

import math
import re
from random import Random

from kernels.cases import DTYPE_BYTES, OPS, Case, Direction
from kernels.providers.quack import unsupported

OPERATORS = ("rmsnorm", "rmsnorm_residual", "layernorm")
DTYPES = ("bf16", "bf16", "fp16", "fp32")  # half of all cases are bf16
MAX_ROWS, MIN_COLS, MAX_COLS = 1 << 18, 64, 1 << 18
COLS_STEP = 8  # elements: Quack copies other widths element by element, which is no measure of ours
MAX_BYTES = 1 << 30  # of a tensor: three contenders hold several of them, twice
_NAME = re.compile(r"random-(?P<count>[0-9]+)-(?P<seed>[0-9]+)")


def suite_of(count: int, seed: int) -> str:
    """The name of the suite of `count` cases that this seed draws.  Raises ValueError for negative numbers."""
    if count < 1 or seed < 0:
        raise ValueError(f"draw at least one case, with a seed of 0 or more: not {count} with seed {seed}")
    return f"random-{count}-{seed}"


def is_drawn(suite: str) -> bool:
    return _NAME.fullmatch(suite) is not None


def cases_drawn(suite: str, max_bytes: int = MAX_BYTES) -> tuple[Case, ...]:
    """The different cases of a suite with a name of `suite_of`.  Raises ValueError for another name.

    Rows and columns are log-uniform.  A case is drawn again if Quack does not support it on any GPU, or if one of its
    tensors has more than `max_bytes`.
    """
    if not (found := _NAME.fullmatch(suite)):
        raise ValueError(f"{suite!r} is no suite of random cases: write random-COUNT-SEED")
    random = Random(int(found["seed"]))
    drawn: dict[Case, None] = {}
    while len(drawn) < int(found["count"]):
        case = _drawn(random)
        fits = case.rows * case.cols * DTYPE_BYTES[case.dtype] <= max_bytes
        if fits and unsupported(case, OPS[case.op]) is None:
            drawn[case] = None
    return tuple(drawn)


def _drawn(random: Random) -> Case:
    dtype = random.choice(DTYPES)
    return Case(
        op=random.choice(OPERATORS),
        direction=random.choice((Direction.FWD, Direction.BWD)),
        rows=_log_uniform(random, 1, MAX_ROWS),
        cols=_log_uniform(random, MIN_COLS, MAX_COLS) // COLS_STEP * COLS_STEP,
        dtype=dtype,
        weight_dtype=random.choice((dtype, "fp32")),
    )


def _log_uniform(random: Random, least: int, most: int) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))
