"""The kernel that adds up the parts, launched only when the first one has ended: what that costs is studied."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A package may hand on the function `backward` under the name of its module.
_module: Any = importlib.import_module("...norms.backward", __package__)


@contextmanager
def launched(*, early: bool) -> Iterator[None]:
    """Here `backward` launches its second kernel while the first one works, as it does by itself, or does not.

    Not to be used by several threads.
    """
    usual = _module.starts_early
    if not early:
        _module.starts_early = lambda _: False
    try:
        yield
    finally:
        _module.starts_early = usual
