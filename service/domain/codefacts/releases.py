"""Packages of the stack that the revisions of a comparison replace, each with a release of its own.  Pure.

Facts come from strangers' processes: a value of the wrong type counts as missing.
"""

from collections.abc import Mapping
from typing import Any

COMPILERS = ("torch", "triton", "cutlass_dsl")  # they make the machine code, so that equal text proves nothing


def releases(head: Mapping[str, Any], base: Mapping[str, Any]) -> list[list[str]]:
    """`["triton", "3.6.0", "3.7.1"]`: what both sides replace in different versions, with those of base and head."""
    now, before = _replaced(head), _replaced(base)
    return [[name, before[name], now[name]] for name in now if name in before and now[name] != before[name]]


def same_compilers(head: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether both sides ran with the same torch, Triton and CUTLASS DSL, as far as the revisions choose them."""
    now, before = _replaced(head), _replaced(base)
    return all(now.get(name) == before.get(name) for name in COMPILERS)


def _replaced(facts: Mapping[str, Any]) -> dict[str, str]:
    found = facts.get("replaced")
    return {str(name): str(version) for name, version in found.items()} if isinstance(found, Mapping) else {}


ARCH_OF = {"a100": "sm_80", "l40s": "sm_89", "h100": "sm_90", "h200": "sm_90", "b200": "sm_100", "gb200": "sm_100"}
