"""A case as people read it in a table: op and direction, shape, dtypes, and the model that it comes from.  Pure."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import quote, urlencode

from kernels.cases import OPS, Direction, FunctionCase, Metric, parse_case
from kernels.suites import LABELS
from service.domain.metrics import WORDS, split_metric

_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_DIRECTIONS = {Direction.FWD: "forward", Direction.BWD: "backward", Direction.FWDBWD: "forward and backward"}
_TIMES = re.compile(r"(?<=[0-9])x(?=[0-9])")
SMALL_ROWS = 256  # a batch of decoding, not of training


@dataclass(frozen=True)
class CaseName:
    """The parts of a case; of a case that another version wrote, only its text and metric are known."""

    text: str
    op: str  # as in the recipe, and so is the direction; empty where unknown
    direction: str
    op_words: str
    direction_words: str
    shape: str
    dtypes: str
    model: str
    metric: Metric
    rows: int | None = None
    columns: int | None = None
    stride: int = 0  # elements between rows, between tokens where there are heads; 0 if they are dense

    @cached_property
    def family(self) -> str:
        """`RMSNorm forward`, `LayerNorm backward, peak memory`."""
        metric = "" if self.metric is Metric.KERNEL else f", {WORDS[self.metric].name}"
        return f"{self.op_words} {self.direction_words}".strip() + metric

    @property
    def small(self) -> bool:
        return self.rows is not None and self.rows <= SMALL_ROWS


@lru_cache(8192)
def case_name(text: str) -> CaseName:
    """The parts of a printed case."""
    bare, metric = split_metric(text)
    try:
        case = parse_case(text)
    except ValueError:  # written by another version
        return CaseName(text, "", "", "", "", bare, "", "", metric)
    if isinstance(case, FunctionCase):
        shape = _TIMES.sub("×", case.label)
        return CaseName(text, case.function, "", case.function, "", shape, "", "", metric)
    dtypes = case.dtype if case.dtype == case.weight_dtype else f"{case.dtype}-{case.weight_dtype}"
    stride = f" stride {case.stride:,}" if case.stride else ""
    return CaseName(
        text,
        case.op,
        case.direction.value,
        op_words(case.op),
        _DIRECTIONS[case.direction],
        f"{case.tokens:,}×{case.heads}×{case.cols:,}{stride}" if case.heads else f"{case.rows:,}×{case.cols:,}{stride}",
        dtypes,
        LABELS.get(bare, "").partition(",")[0],
        metric,
        case.rows,
        case.cols,
        case.stride,
    )


def op_words(name: str) -> str:
    """`RMSNorm + residual`, `LayerNorm without weight`."""
    op = OPS.get(name)
    if op is None:
        return name
    said = _NORMS.get(op.norm, op.norm)
    said += "" if op.weight else " without weight"
    if op.bias is not (op.norm == "layernorm"):
        said += " with bias" if op.bias else " without bias"
    return f"{said} + residual" if op.residual else said


def direction_words(direction: str) -> str:
    return _DIRECTIONS[Direction(direction)] if direction in list(Direction) else direction


@lru_cache(8192)  # a board has some hundred, each twice
def trend_path(target: str, device: str, provider: str, case: str) -> str:
    """The path of the page that shows a case over the mainline."""
    return f"/targets/{quote(target)}/trend?{urlencode({'device': device, 'provider': provider, 'case': case})}"
