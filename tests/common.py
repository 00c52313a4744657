"""What all processes of one session of tests have in common: things that take long to make, made once."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_given: list[Path] = []
_own: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def share(folder: Path) -> None:
    """Use this folder: conftest.py gives the same one to every process of pytest-xdist."""
    _given[:] = [folder]


def folder() -> Path:
    """The folder of this session of tests.  Outside of one, it is a new folder of this process."""
    if _given:
        return _given[0]
    if not _own:
        _own.append(tempfile.TemporaryDirectory(prefix="kernelwatch-tests-"))
    return Path(_own[0].name)


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, which `make` fills for the first process that asks.  The others wait, and only read it."""
    made = folder() / name
    if not made.exists():
        with (folder() / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                making = folder() / f"{name}.making"
                shutil.rmtree(making, ignore_errors=True)  # of an attempt that failed
                making.mkdir()
                make(making)
                making.rename(made)  # a folder with this name is whole
    return made
