"""Findings of Triton's interpreter, from a process of its own, kept until a source changes.

Whoever sets TRITON_INTERPRET before the first import of Triton has it interpreted and nothing compiled.  What is found
lies below `build/`, with the hashes of all files of the checkout that the process had imported by its end.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kernels

ROOT = Path(kernels.__file__).parents[1]
KEPT = ROOT / "build" / "interpreted"
# A few dozen are usual.  Not of the clock: beside other work a process may wait for minutes.
CPU_LIMIT_S = 900


def in_the_interpreter(module: str, *, all_trials: bool) -> Any:
    """What the function `findings(all_trials)` of a module gives where Triton is interpreted, as JSON."""
    file = KEPT / f"{module}{'-all' * all_trials}.json"
    if (findings := kept(file)) is not None:
        return findings
    began = time.time()
    spoken = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"from {__name__} import tell; tell({module!r}, {all_trials})"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert spoken.returncode != -signal.SIGXCPU, f"{module} took more than {CPU_LIMIT_S} s of CPU"
    assert spoken.returncode == 0, spoken.stderr[-2000:]
    found = json.loads(spoken.stdout)
    keep(file, found, began)
    return found["findings"]


def kept(file: Path) -> Any:
    """The findings, or None where they would be others by now."""
    with suppress(OSError, ValueError):
        known = json.loads(file.read_text())
        if known["versions"] == versions() and known["sources"] == hashes(known["sources"]):
            return known["findings"]
    return None


def keep(file: Path, found: Mapping[str, Any], began: float) -> None:
    if any((ROOT / source).stat().st_mtime >= began for source in found["sources"]):
        return  # nobody knows which text was imported
    with suppress(OSError):  # a checkout that nobody may write to
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"versions": versions(), **found}))
        new.replace(file)


def versions() -> list[str]:
    return [sys.version, *(version(name) for name in ("triton", "torch", "numpy", "hypothesis"))]


def hashes(files: Mapping[str, str] | Iterator[str]) -> dict[str, str]:
    """By paths in the checkout.

    Raises:
        OSError: One is no longer there.
    """
    return {file: sha256((ROOT / file).read_bytes()).hexdigest() for file in files}


def tell(module: str, all_trials: bool) -> None:
    """In the process that interprets.  Its numpy would warn of every nan."""
    import numpy

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 10))
    numpy.seterr(all="ignore")
    warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
    patch_once()
    findings = import_module(module).findings(all_trials)
    print(json.dumps({"sources": hashes(imported()), "findings": findings}))


def imported() -> Iterator[str]:
    """Files of the checkout, without its environment."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(ROOT) and not file.relative_to(ROOT).parts[0].startswith("."):
            yield str(file.relative_to(ROOT))


def patch_once() -> None:
    """Have `triton.language` made interpretable once for each way to import it.

    The interpreter (3.7) does so again at every call of a function in a kernel, which was half of its time.
    """
    from triton.runtime import interpreter

    patch, language, done = interpreter._patch_lang, interpreter.tl, set()

    def once(function: Any) -> Any:
        named = frozenset(
            one.__name__ for one in function.__globals__.values() if one is language or one is language.core
        )
        if named not in done:
            done.add(named)
            patch(function)
        return interpreter._LangPatchScope()  # nothing to restore at the end of a launch

    interpreter._patch_lang = once
