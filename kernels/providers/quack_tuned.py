"""Quack with the fastest of its configurations, chosen by timing all of them on the device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction, Op
from .base import Bind, by_name, on_matrices, returned
from .pair import Pair, differentiable
from .quack import Quack

MAX_CANDIDATES = 20  # that are listed


class QuackTuned(Quack):
    """Quack times 75 configurations forward and 400 backward (0.6.5), and keeps the times in its cache folder."""

    name = "quack-tuned"
    tunes = True

    def __init__(self) -> None:
        super().__init__()
        self._tuners: list[tuple[Any, Any]] = []  # each with its times before this case

    def ready(self, case: Case, device: torch.device) -> Bind:
        module = self._quack(case, device)
        op = OPS[case.op]
        if case.direction is Direction.FWD:
            self._observe(module.rmsnorm_fwd_tuned)
            return by_name(on_matrices(case, lambda **given: returned(*forward(module, op, **given)[0])))
        self._observe(module.rmsnorm_bwd_tuned)
        return by_name(on_matrices(case, partial(backward, module, op)))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        module = self._quack(case, device)
        op = OPS[case.op]
        self._observe(module.rmsnorm_fwd_tuned, module.rmsnorm_bwd_tuned)
        with_statistics = partial(forward, module, op, statistics=True)
        return on_matrices(case, differentiable(Pair(op, with_statistics, partial(backward, module, op))))

    def facts(self) -> dict[str, Any]:
        """The chosen configurations, and the times of the candidates if they were timed for this case."""
        chosen = [_config(tuner.best_config) for tuner, _ in self._tuners if hasattr(tuner, "best_config")]
        timed = [choice for tuner, before in self._tuners if _times(tuner) is not before for choice in choices(tuner)]
        return ({"config": "; ".join(chosen)} if chosen else {}) | ({"autotune": timed} if timed else {})

    def _observe(self, *tuners: Any) -> None:
        self._tuners = [(tuner, _times(tuner)) for tuner in tuners]


def choices(tuner: Any) -> list[dict[str, Any]]:
    """Candidates with their median milliseconds, best first, without those that could not be launched."""
    best = sorted((float(times[0]), _config(config)) for config, times in tuner.configs_timings.items())
    known = [{"kernel": tuner.fn.__name__, "config": config, "ms": ms} for ms, config in best if ms < float("inf")]
    return known[:MAX_CANDIDATES]


def forward(
    quack: Any,
    op: Op,
    *,
    x: Tensor,
    eps: float,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    statistics: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs, and with `statistics` those of the op.  The tuned function does not allocate outputs."""
    layer = op.norm == "layernorm"
    y = torch.empty_like(x)
    rows = x.shape[:1]
    rstd = x.new_empty(rows, dtype=torch.float32) if statistics else None
    mean = x.new_empty(rows, dtype=torch.float32) if statistics and layer else None
    added = torch.empty_like(x) if residual is not None else None
    quack.rmsnorm_fwd_tuned(
        x, weight, y, bias=bias, rstd=rstd, mean=mean, residual=residual, residual_out=added,
        eps=eps, is_layernorm=layer, per_head=False,
    )  # fmt: skip
    kept = tuple(value for value in (mean, rstd) if value is not None)
    return ((y,) if added is None else (y, added)), kept


def backward(
    quack: Any,
    op: Op,
    *,
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    eps: float,  # noqa: ARG001
    weight: Tensor | None = None,
    mean: Tensor | None = None,
    dresidual_out: Tensor | None = None,
) -> Any:
    """As `rmsnorm_bwd` and `layernorm_bwd`: the kernel, then the sums of partial gradients of weights."""
    columns = x.shape[1]
    programs = quack.get_sm_count(columns, x.device)
    dx = torch.empty_like(x)
    dweight, dbias = (
        x.new_empty((programs, columns), dtype=torch.float32) if wanted else None for wanted in (op.weight, op.bias)
    )
    quack.rmsnorm_bwd_tuned(
        x, weight, dy, rstd, dx, dw_partial=dweight, db_partial=dbias, dresidual_out=dresidual_out,
        sm_count=programs, mean=mean, is_layernorm=op.norm == "layernorm",
        per_head=False, has_dw_partial=op.weight, has_db_partial=op.bias,
    )  # fmt: skip
    sums = (
        part.sum(0).to(weight.dtype) if part is not None and weight is not None else None for part in (dweight, dbias)
    )
    return returned(dx, *sums)


def _config(config: Any) -> str:
    return str(config).removeprefix("config: ")


def _times(tuner: Any) -> Any:
    return getattr(tuner, "configs_timings", None)
