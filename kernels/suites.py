"""Named lists of cases."""

_SHAPES = ("32768x256", "32768x1024", "32768x4096", "8192x8192", "4096x16384", "4096x1024")


def _norm(op: str) -> tuple[str, ...]:
    return tuple(f"{op}.{direction}.{shape}.bf16-fp32" for direction in ("fwd", "bwd") for shape in _SHAPES)


SUITES: dict[str, tuple[str, ...]] = {
    "smoke": (
        "rmsnorm.fwd.4096x1024.bf16-fp32",
        "rmsnorm.bwd.4096x1024.bf16-fp32",
        "layernorm.fwd.4096x1024.bf16-fp32",
    ),
    "rmsnorm": _norm("rmsnorm"),
    "layernorm": _norm("layernorm"),
    "norms": _norm("rmsnorm") + _norm("layernorm"),
}
