"""Where the code of a target is defined: a file of its checkout, and lines."""

import inspect
import os
from pathlib import Path
from types import CodeType
from typing import Any

CHECKOUT = "KERNELWATCH_CHECKOUT"  # the folder of the target's files; no others are named
_MAX_WRAPPERS = 10
# The names under which Triton, torch.compile, torch.library, functools and others keep the function that they wrap.
_WRAPPED = ("_torchdynamo_orig_callable", "_orig_mod", "_init_fn", "__wrapped__", "fn", "func")
_DEFINES = ("def ", "async def ", "class ")


def location(function: Any) -> dict[str, Any] | None:
    """File, line of the definition, and first and last line; None if the function is in no file of the checkout.

    The first line is that of the first decorator.
    """
    try:
        return _location(_code(function))
    except Exception:  # facts must not fail a case
        return None


def _location(code: CodeType | None) -> dict[str, Any] | None:
    root = os.environ.get(CHECKOUT)
    if code is None or not root:
        return None
    file, folder = Path(code.co_filename).resolve(), Path(root).resolve()
    if not file.is_relative_to(folder):
        return None
    lines, first = inspect.getsourcelines(code)
    line = first + next((number for number, text in enumerate(lines) if text.lstrip().startswith(_DEFINES)), 0)
    return {"file": file.relative_to(folder).as_posix(), "line": line, "first": first, "last": first + len(lines) - 1}


def _code(function: Any) -> CodeType | None:
    """The code of a function, below what wraps it; of a module, that of its `forward`."""
    for _ in range(_MAX_WRAPPERS):
        wrapped = next((inner for name in _WRAPPED if (inner := getattr(function, name, None)) is not None), None)
        if wrapped is not None:
            function = wrapped
        elif isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
        else:
            kind = function if inspect.isclass(function) else type(function)
            function = getattr(kind, "forward", None) or kind.__call__
    return None
