"""Calls as before in C++ (`native.cpp`), which take less of the host's time, where somebody has built that.

`build_calls` compiles it once for a version of torch, with a C++ compiler, in half a minute.  This process and each
that imports the norms from then on load it.  Nothing is built by itself.
"""

import hashlib
import importlib.util
import os
import shlex
import struct
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("native.cpp")
UNLIKE = (AttributeError, TypeError, OverflowError, struct.error)  # of launches that are not as the library takes them

# As `operators.norm`, then `tuned_plans.choices`; it returns None where Python must make the call.
norm: Callable[..., tuple[Tensor, ...] | None] | None = None
_store: Any = None  # the calls that this copy of the package keeps
_backward: Callable[..., tuple[Any, ...]] | None = None
at_use: list[Callable[[], None]] = []  # called when the library is first used: what Python kept, it does not have


def build_calls() -> Path:
    """Compile the library if it was not yet, and use it where there is a driver; returns its path.

    Raises RuntimeError with the message of the compiler, OSError for a folder that cannot be written.
    """
    if not (path := library()).exists():
        _compile(path)
    _use()
    return path


def _compile(path: Path) -> None:
    import triton.backends.nvidia
    from torch.utils import cpp_extension

    headers = [
        *cpp_extension.include_paths(),
        str(Path(next(iter(triton.backends.nvidia.__path__))) / "include"),
        sysconfig.get_paths()["include"],
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [
            *compiler, "-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden",
            f"-DTORCH_EXTENSION_NAME={path.stem}", *(f"-isystem{each}" for each in headers), str(SOURCE),
            "-o", f"{folder}/{path.name}", *(f"-L{each}" for each in cpp_extension.library_paths()),
            "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as error:
            raise RuntimeError(f"no C++ compiler {compiler[0]} ({error}): install g++, or set CXX to another") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{compiler[0]} cannot compile {SOURCE}:\n{error.stderr[-4000:]}") from None
        Path(folder, path.name).replace(path)


def library() -> Path:
    """Where the library for this source, torch, Python and machine lies: where torch has its extensions.

    Raises OSError without the source.
    """
    versions = f"{torch.__version__} {torch.version.git_version} {sysconfig.get_config_var('EXT_SUFFIX')}"
    name = f"kernelwatch_norms_{hashlib.sha256(SOURCE.read_bytes() + versions.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions") / name / f"{name}.so"


def begin(backward: Callable[..., tuple[Any, ...]]) -> None:
    """Use the library if it is built.  backward: makes the gradients that it leaves to Python."""
    global _backward
    _backward = backward
    _use()


def _use() -> None:
    global _store, norm
    if _store is not None or _backward is None or torch.version.cuda is None:
        return
    try:
        if not (path := library()).exists():
            return
    except (OSError, RuntimeError):  # the folder cannot be searched, there is no home, or the source was left out
        return
    try:
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        warnings.warn(f"{path} cannot be loaded, so that calls take longer: {error}; remove it and build it again",
                      stacklevel=2)  # fmt: skip
        return
    if module.is_complete():
        _store = module.Store(_backward)
        norm = _store.norm
        for call in at_use:
            call()


def forget(direction: str) -> None:
    if _store is not None:
        _store.forget(direction == "backward")


def keep_forward(launch: Any, tensors: tuple[Tensor | None, ...], *others: Any, slots: int | None) -> None:
    """Keep a launch of `forward` with its arguments, and `tuned_plans.choices`.

    slots: bytes of the workspace before the slots of rows; 0: no such slots, None: no workspace.
    """
    if _store is None:
        return
    with suppress(*UNLIKE):
        if described := launch.described():
            _store.keep_forward(*tensors, *others, [launch.watched()], described, slots)


def keep_backward(launches: Any, tensors: tuple[Tensor | None, ...], *others: Any) -> None:
    """Keep launches of `backward` with its arguments but for `narrow_dx`, and `tuned_plans.choices`."""
    if _store is None:
        return
    with suppress(*UNLIKE):
        main, sums = launches.main.described(), launches.sums and launches.sums.described()
        if main and (sums or launches.sums is None):
            watched = [each.watched() for each in (launches.main, launches.sums) if each]
            kept = watched, main, sums, launches.partial_grads or [], launches.works
            _store.keep_backward(*tensors, *others, *kept)


def give_workspace(device: int, stream: int, words: Tensor | None) -> None:
    """The workspace of a stream; None: it has none any more."""
    if _store is not None:
        _store.give_workspace(device, stream, words)
