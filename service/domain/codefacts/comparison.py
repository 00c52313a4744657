"""Which facts of two sides are the same and which differ, in words.  Pure, and the one table of their labels.

Facts come from strangers' processes: a value of the wrong type counts as missing.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from kernels.cases import Case
from service.domain.codefacts.compiled import whole
from service.domain.codefacts.releases import releases
from service.domain.codefacts.tuned import interchangeable
from service.domain.roofline import number
from service.domain.text import apart

LABELS = {
    "kernels": "number of kernels",
    "registers": "registers",
    "spills": "spills",
    "shared": "bytes of shared memory",
    "stack": "bytes of stack",
    "occupancy": "occupancy",
    "candidates": "configurations to choose from",
    "instructions": "instructions",
    "config": "configuration",
    "graphs": "graphs",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
}
_COMPARED = ("kernels", "registers", "spills", "shared", "config", "graphs", "graph_breaks", "recompiles")
_OF_CONFIGURATION = ("registers", "spills", "shared", "config")  # of the first trial alone
_NAMED_WHERE_SAME = ("spills", "registers", "shared", "kernels")


# An error grew by this factor, and by this part of what one rounding of the output adds.
MIN_GROWTH, MIN_GROWN = 1.25, 0.25
MANTISSA_BITS = {"bf16": 8, "fp16": 11, "fp32": 24}  # with the hidden one


class Repeatability(StrEnum):
    """Whether the head lost or gained repeatability: the same bits for the same inputs."""

    LOST = "lost"
    GAINED = "gained"


def repeatability(head: Mapping[str, Any], parent: Mapping[str, Any]) -> Repeatability | None:
    """None where it stayed, or where the calls of a side were too few to know."""
    match parent.get("repeatable"), head.get("repeatable"):
        case True, False:
            return Repeatability.LOST
        case False, True:
            return Repeatability.GAINED
    return None


def grown_errors(head: Mapping[str, Any], parent: Mapping[str, Any], case: str) -> dict[str, tuple[float, float]]:
    """The outputs whose measured error grew, although both sides are exact enough: before, and now.

    An error is relative, as `kernels.checks.error_bounds` defines it.  Sums in another order differ by less than a part
    of what rounding the output does.
    """
    sides = [errors if isinstance(errors := facts.get("errors"), Mapping) else {} for facts in (parent, head)]
    found = {}
    for name in sides[1]:
        before, now = (number(side.get(name)) for side in sides)
        if before and now and now >= MIN_GROWTH * before and now - before >= MIN_GROWN * _rounding(case, name):
            found[str(name)] = before, now
    return found


def _rounding(case: str, output: str) -> float:
    """The error of rounding an output once, relative."""
    try:
        [dtype, *_] = Case.parse(case).dtypes(output)
    except (ValueError, KeyError):
        return math.inf
    return 2.0 ** -MANTISSA_BITS[dtype] if dtype in MANTISSA_BITS else math.inf


def differences(head: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences between two sets of compile-time facts; releases and equality of the code come first."""
    said = [f"{name} {before} → {now}" for name, before, now in releases(head, parent)]
    if head.get("code") and parent.get("code"):
        # Of what was not compiled only the operators that ran are known, and not the Python between them.
        what = "operators" if head.get("kind") == "operators" else "code"
        said.append(f"same {what}" if head["code"] == parent["code"] else f"{what} changed")
    if moved := repeatability(head, parent):
        said.append("no longer bitwise repeatable" if moved is Repeatability.LOST else "now bitwise repeatable")
    if noise := interchangeable(head, parent):
        said.append("both sides ran the same configurations in some trials")
    in_full = [configurations(facts) for facts in (parent, head)]
    for fact in _COMPARED:
        if noise and fact in _OF_CONFIGURATION:
            continue
        before, now = in_full if fact == "config" and all(in_full) else (parent.get(fact), head.get(fact))
        if before != now and before is not None and now is not None:
            said.append(f"{LABELS[fact]} {' → '.join(apart(before, now))}")
    return tuple(said)


def same_facts(head: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The labels of the facts that both sides have, and that are the same."""
    same = [
        LABELS[fact]
        for fact in _NAMED_WHERE_SAME
        if (now := whole(head.get(fact))) is not None and now == whole(other.get(fact))
    ]
    in_full = configurations(head)
    return [*same, LABELS["config"]] if in_full and in_full == configurations(other) else same


def configurations(facts: Mapping[str, Any]) -> str:
    """The settings of every kernel, where they are known: the fact `config` is cut to 400 characters."""
    kernels = facts.get("triton")
    known = isinstance(kernels, list) and all(isinstance(one, Mapping) for one in kernels)
    return " ".join(_configuration(one) for one in kernels or ()) if known else ""


def _configuration(kernel: Mapping[str, Any]) -> str:
    settings = kernel.get("settings")
    known = {"num_warps": kernel.get("warps"), "num_stages": kernel.get("stages")}
    known |= settings if isinstance(settings, Mapping) else {}
    return " ".join([str(kernel.get("name")), *(f"{key}={value}" for key, value in known.items() if value is not None)])


def changed_settings(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of the settings of a kernel that differ, in the order of the tables."""
    return [name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name)]
