"""What every launch asks first: do the tensors fit together, how wide may an access be, how many programs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
VECTOR_BYTES = 16  # the widest access of a thread
INTERPRETED_SMS = 3  # a handful in the interpreter, so that tests go through loops


def check(x: Tensor, rows: Mapping[str, Tensor | None], columns: Mapping[str, Tensor | None]) -> None:
    """Raises ValueError: `rows` must be like x, `columns` have one value a column, and both lie where x does."""
    if x.ndim != 2 or x.dtype not in DTYPES or x.shape[1] == 0 or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(
            f"x must be [rows, columns] in {', '.join(str(d).removeprefix('torch.') for d in DTYPES)} with dense rows, "
            f"not {tuple(x.shape)} in {x.dtype} with strides {x.stride()}; call .contiguous() for dense rows"
        )
    for name, tensor in rows.items():
        if tensor is not None and (
            tensor.shape != x.shape or tensor.dtype != x.dtype or tensor.stride(1) != 1 < x.shape[1]
        ):
            raise ValueError(
                f"{name} must be like x, {tuple(x.shape)} in {x.dtype} with dense rows, not {_told(tensor)}"
            )
    for name, tensor in columns.items():
        if tensor is not None and (
            tensor.shape != x.shape[1:] or tensor.dtype not in DTYPES or not tensor.is_contiguous()
        ):
            raise ValueError(f"{name} must be dense, one value for each of {x.shape[1]} columns, not {_told(tensor)}")
    for name, tensor in {**rows, **columns}.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device} and x on {x.device}")


def vector(*tensors: Tensor | None) -> int:
    """Elements: rows begin at multiples of so many, and the kernel is told; Triton itself only sees multiples of 16."""
    present = [tensor for tensor in tensors if tensor is not None]
    unit = VECTOR_BYTES // present[0].element_size()
    while any(tensor.stride(0) % unit for tensor in present):
        unit //= 2
    return unit


def programs_of(x: Tensor, tiles: int, plan: Any) -> tuple[int, bool]:
    """(teams, whether each goes through several tiles)."""
    if not plan.programs:
        return tiles, False
    most = max(1, plan.programs * processors(x.device) // (plan.team * plan.ctas))
    return min(tiles, most), True


def processors(device: torch.device) -> int:
    """SMs of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED_SMS


def _told(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {tensor.dtype} with strides {tensor.stride()}"
