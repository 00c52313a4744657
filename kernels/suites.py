"""Named lists of cases; docs/suites.md has the sources of their shapes."""

from collections.abc import Iterable
from itertools import product

_BOTH = ("fwd", "bwd")


def _cases(ops: Iterable[str], directions: Iterable[str], shapes: Iterable[str], dtypes: str) -> tuple[str, ...]:
    return tuple(f"{op}.{way}.{shape}.{dtypes}" for op, way, shape in product(ops, directions, shapes))


def _powers(first: int, last: int) -> list[int]:
    return [1 << power for power in range(first.bit_length() - 1, last.bit_length())]


_SHAPES = ("32768x256", "32768x1024", "32768x4096", "8192x8192", "4096x16384", "4096x1024")
_RMSNORM = _cases(["rmsnorm"], _BOTH, _SHAPES, "bf16-fp32")
_LAYERNORM = _cases(["layernorm"], _BOTH, _SHAPES, "bf16-fp32")

_QUACK_SHAPES = (*(f"32768x{cols}" for cols in _powers(256, 65536)), "16384x131072", "8192x262144")
_PR101_SHAPES = [f"{rows}x{cols}" for rows, cols in product(_powers(4096, 65536), _powers(256, 4096))]

# Rows are the tokens of one step on one device, times the heads if each head of a token is normalised.
_RMSNORM_MODELS = {
    "8192x4096": "Llama 3 8B, 8192 tokens",
    "8192x8192": "Llama 3 70B, 8192 tokens",
    "8192x16384": "Llama 3 405B, 8192 tokens",
    "4096x1024": "Qwen3 0.6B, 4096 tokens",
    "4096x2048": "Qwen3 1.7B and 30B-A3B, 4096 tokens",
    "4096x2560": "Qwen3 4B, 4096 tokens",
    "4096x4096": "Qwen3 8B and 235B-A22B, 4096 tokens",
    "4096x5120": "Qwen3 14B and 32B, 4096 tokens",
    "131072x128": "Qwen3 8B, norm of 32 query heads, 4096 tokens",
    "262144x128": "Qwen3 32B, norm of 64 query heads, 4096 tokens",
    "32768x128": "Qwen3 dense, norm of 8 key heads, 4096 tokens",
    "4096x7168": "DeepSeek-V3, 4096 tokens",
    "4096x1536": "DeepSeek-V3, norm of the compressed queries, 4096 tokens",
    "4096x512": "DeepSeek-V3, norm of the compressed keys and values, 4096 tokens",
}
_LAYERNORM_MODELS = {
    "8192x768": "GPT-2, 8 sequences of 1024",
    "8192x1024": "GPT-2 medium, 8 sequences of 1024",
    "8192x1280": "GPT-2 large, 8 sequences of 1024",
    "8192x1600": "GPT-2 XL, 8 sequences of 1024",
    "16384x768": "BERT base, 32 sequences of 512",
    "16384x1024": "BERT large, 32 sequences of 512",
    "12608x768": "ViT-B/16, 64 images of 197 tokens",
    "12544x768": "ViT-B/16 without a class token, 64 images of 196 tokens",
    "12608x1024": "ViT-L/16, 64 images of 197 tokens",
    "16448x1280": "ViT-H/14, 64 images of 257 tokens",
}
# The compressed keys and values share their rows with the 64 columns of the rotary key.
_SPLIT = "rmsnorm.fwd.4096x512s576.bf16"


def _labelled(op: str, models: dict[str, str], dtypes: str) -> dict[str, str]:
    return {f"{op}.{way}.{shape}.{dtypes}": model for shape, model in models.items() for way in _BOTH}


# The models behind the cases.
LABELS: dict[str, str] = {
    **_labelled("rmsnorm", _RMSNORM_MODELS, "bf16"),
    _SPLIT: "DeepSeek-V3, norm of the compressed keys and values in place, 4096 tokens",
    **_labelled("layernorm", _LAYERNORM_MODELS, "bf16-fp32"),
}

_SMALL_SHAPES = [f"{rows}x{cols}" for cols, rows in product((4096, 8192), _powers(1, 256))]

_AWKWARD = (
    *_cases(["rmsnorm"], _BOTH, [f"4096x{cols}" for cols in (1152, 3000, 5120, 12288)], "bf16-fp32"),
    *_cases(["layernorm"], _BOTH, ["4096x1152", "4096x3000"], "bf16-fp32"),
    *_cases(["rmsnorm", "layernorm"], _BOTH, ["4096x1001"], "bf16-fp32"),
    *_cases(["rmsnorm"], _BOTH, ["4096x4099"], "bf16"),
    *_cases(["rmsnorm"], _BOTH, [f"{rows}x4096" for rows in (1, 7, 1023)], "bf16-fp32"),
    *_cases(["rmsnorm"], _BOTH, ["4096x3000"], "fp16"),
    *_cases(["rmsnorm"], ["fwd"], ["4096x4096s12288", "4096x512s576", "4096x3000s3001"], "bf16"),
    *_cases(["rmsnorm"], ["bwd"], ["4096x4096s12288"], "bf16"),
    *_cases(["rmsnorm"], _BOTH, ["4096x1024"], "fp32-bf16"),
)

_METRICS = tuple(
    f"{case}{metric}"
    for case in ("rmsnorm.fwd.2048x4096.bf16", "rmsnorm.fwdbwd.2048x4096.bf16", "layernorm.fwdbwd.2048x1024.bf16-fp32")
    for metric in ("", ".call", ".block", ".compile", ".memory", ".recompiles", ".breaks", ".kernels")
    if metric != ".block" or "fwdbwd" in case
)

# Around one shape of Llama 3 and Qwen3 8B and of Llama 3 70B, the bare norms for comparison; then the gated norms of
# Qwen3-Next (128 columns a head, 32 heads) and Mamba-2 2.7B, and the residual of BERT large.
_REGIONS = (
    *_cases(["rmsnorm", "rmsnorm_residual"], ["fwd"], ["4096x4096", "8192x8192"], "bf16"),
    *_cases(
        [f"rmsnorm{residual}_{codes}" for residual in ("", "_residual") for codes in ("fp8", "int8")],
        ["fwd"],
        ["64x4096", "4096x4096", "8192x8192"],
        "bf16",
    ),
    *_cases(["rmsnorm", "rmsnorm_silu_gate", "rmsnorm_gelu_gate"], ["fwd"], ["131072x128", "4096x5120"], "bf16"),
    *_cases(["rmsnorm_linear"], ["fwd"], ["64x4096", "4096x4096"], "bf16"),
    *_cases(["layernorm_residual", "layernorm_residual_dropout"], ["fwd"], ["16384x1024"], "bf16-fp32"),
    *_cases(["rmsnorm_residual_dropout"], ["fwd"], ["4096x4096"], "bf16"),
)

# Queries and keys of one projection are slices of its rows, each head normalised: all heads of Qwen3 8B make 6144
# columns (32 query heads and 8 for keys, 8 for values, of 128), those of Gemma 3 4B 4096 (8, 4 and 4 of 256).
_HEADS = _cases(
    ["rmsnorm"], _BOTH, ["4096x32x128s6144", "4096x8x128s6144", "4096x8x256s4096", "4096x4x256s4096"], "bf16"
)

SUITES: dict[str, tuple[str, ...]] = {
    "smoke": (
        "rmsnorm.fwd.4096x1024.bf16-fp32",
        "rmsnorm.bwd.4096x1024.bf16-fp32",
        "layernorm.fwd.4096x1024.bf16-fp32",
    ),
    "rmsnorm": _RMSNORM,
    "layernorm": _LAYERNORM,
    "norms": _RMSNORM + _LAYERNORM,
    "quack": _cases(["rmsnorm", "layernorm"], _BOTH, _QUACK_SHAPES, "bf16-fp32"),
    "pr101": _cases(["rmsnorm"], ["bwd"], _PR101_SHAPES, "bf16-fp32"),
    "models": tuple(LABELS),
    "small": _cases(["rmsnorm", "rmsnorm_residual"], ["fwd"], _SMALL_SHAPES, "bf16"),
    "awkward": _AWKWARD,
    "metrics": _METRICS,
    "regions": _REGIONS,
    "heads": _HEADS,
}
