"""Compare samples of the outputs of two revisions of a function on the same inputs.  Torch-free."""

import math
from collections.abc import Mapping
from typing import Any

from .pool import mapping


def differing_outputs(head: object, parent: object) -> str | None:
    """Why the head computes something else than its parent by the `sampled` of both answers; None if it does not.

    The error of an element is |head - parent| / (rms + |parent|), with the root mean square of the parent's output.
    Nothing is compared where the inputs differ: then the revision changed its benchmark.
    """
    mine, theirs = mapping(head), mapping(parent)
    if not theirs or mine.get("inputs") != theirs.get("inputs"):
        return None
    ours, right = mine.get("outputs"), theirs.get("outputs")
    if ours is None and isinstance(right, list):
        return "its outputs vary from call to call, and those of its parent do not"
    if not isinstance(ours, list) or not isinstance(right, list):
        return None
    if len(ours) != len(right):
        return f"returned {len(ours)} outputs, and its parent {len(right)}"
    for number, (output, expected) in enumerate(zip(ours, right, strict=True)):
        if reason := _differing(mapping(output), mapping(expected)):
            return f"output {number} {reason}; name a reference in the recipe if the parent is wrong"
    return None


def _differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    for key in ("shape", "dtype"):
        if mine.get(key) != theirs.get(key):
            return f"has the {key} {str(mine.get(key))[:80]}, and that of its parent {str(theirs.get(key))[:80]}"
    size, limit = _figure(theirs.get("size")), _figure(theirs.get("limit"))
    ours, right = mine.get("values"), theirs.get("values")
    if not isinstance(ours, list) or not isinstance(right, list) or len(ours) != len(right):
        return "has no samples"
    worst = 0.0
    for value, expected in zip(map(_figure, ours), map(_figure, right), strict=True):
        if math.isfinite(value) is not math.isfinite(expected):
            return "has other elements that are not finite than its parent"
        if math.isfinite(value):
            worst = max(worst, abs(value - expected) / max(size + abs(expected), 1e-300))
    return f"differs from that of its parent by {worst:.3g}; {limit:g} is allowed" if worst > limit else None


def _figure(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
