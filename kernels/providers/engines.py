"""The norms of inference engines: FlashInfer 0.7, which SGLang calls too, and vLLM 0.33, as their Python calls them.

They have forward passes only.  With a residual they write both outputs into their inputs.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cases import DTYPE_BYTES, OPS, Case, Direction, Metric
from .base import Bind, Broken, Provider, Unsupported, by_name, on_matrices
from .inplace import in_place

DTYPES = ("bf16", "fp16")
ACCESS_BYTES = 16


class Engine(Provider):
    """RMSNorm with a weight in the dtype of the rows, with or without a residual."""

    title: str  # in sentences
    module: str  # whose import makes the functions available

    def warm(self) -> None:
        if torch.cuda.is_available():
            try:
                self._imported()
            except (Unsupported, Broken):
                return  # raised again when a case needs it

    def supports(self, case: Case, device: torch.device) -> str | None:
        op = OPS[case.op]
        if device.type != "cuda":
            return f"{self.title} needs a GPU"
        if case.direction is not Direction.FWD:
            return f"{self.title} has no backward pass"
        if op.region:
            return f"this provider does not use {self.title} for norms with {op.region.text}"
        if op.residual and case.metric is Metric.MEMORY:
            return (
                f"{self.title} overwrites its inputs; memory is counted in addition to inputs, of which it gets copies"
            )
        if op.residual and case.heads:
            return f"{self.title} adds a residual to rows with one stride only"
        if case.stride * DTYPE_BYTES[case.dtype] % ACCESS_BYTES:
            return f"{self.title} needs rows with gaps to begin at multiples of {ACCESS_BYTES} bytes"
        return self._wrong_norm(case)

    def _wrong_norm(self, case: Case) -> str | None:
        op = OPS[case.op]
        if op.norm != "rmsnorm" or op.bias or not op.weight:
            return f"of {self.title}, this provider uses RMSNorm with a weight and without a bias"
        if case.dtype not in DTYPES or case.weight_dtype != case.dtype:
            return f"{self.title} takes rows of {' or '.join(DTYPES)}, and weights in their dtype"
        return None

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        self._imported()
        op = OPS[case.op]
        if op.residual:
            return in_place(by_name(self.add_rms_norm))
        # Their RMSNorms take [tokens, heads, columns] without a copy, as models call them for queries and keys.
        return by_name(self.rms_norm if op.norm == "rmsnorm" else on_matrices(case, self.layer_norm))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return super().differentiable(case, device)

    def rms_norm(self, *, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise NotImplementedError

    def add_rms_norm(self, *, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        """Write x + residual into the residual, and its norm into x."""
        raise NotImplementedError

    def layer_norm(self, *, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        raise NotImplementedError

    def _imported(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as missing:
            raise Unsupported(f"{self.title} is not installed in this environment ({missing})") from None
        except Exception as error:
            raise Broken(f"cannot import {self.module}: {type(error).__name__}: {error}") from error


class FlashInfer(Engine):
    """Also LayerNorm of bf16 rows with a weight and a bias in fp32."""

    name, title, module = "flashinfer", "FlashInfer", "flashinfer.norm"
    pinned = ("flashinfer-python", "nvidia-cutlass-dsl")

    def _wrong_norm(self, case: Case) -> str | None:
        if OPS[case.op].norm != "layernorm":
            return super()._wrong_norm(case)
        if case.op != "layernorm" or (case.dtype, case.weight_dtype) != ("bf16", "fp32"):
            return "FlashInfer's LayerNorm has bf16 rows, a weight and a bias in fp32, and no residual"
        return None

    def rms_norm(self, *, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y: Tensor = self._imported().rmsnorm(x, weight, eps)
        return y

    def add_rms_norm(self, *, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        self._imported().fused_add_rmsnorm(x, residual, weight, eps)

    def layer_norm(self, *, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y: Tensor = self._imported().layernorm(x, weight, bias, eps)
        return y


class VLLM(Engine):
    name, title, module = "vllm", "vLLM", "vllm._C_stable_libtorch"
    pinned = ("vllm",)

    def _wrong_norm(self, case: Case) -> str | None:
        if OPS[case.op].residual and case.stride:
            return "vLLM adds a residual without gaps between its rows only"
        return super()._wrong_norm(case)

    def rms_norm(self, *, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        torch.ops._C.rms_norm(y, x, weight, eps)
        return y

    def add_rms_norm(self, *, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        torch.ops._C.fused_add_rms_norm(x, residual, weight, eps)
