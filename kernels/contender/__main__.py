"""A contender: one provider in one process, answering JSON lines.  Run as `python -P kernels/contender/__main__.py`.

With a provider (JSON) as its argument, it starts by importing what that provider needs (see `ProcessPool`).

Before all other imports, stdin and stdout are replaced: any output of the target goes to stderr, its input is empty,
and the pipes to the driver have other descriptors.  The package is loaded under the name `kernelwatch_kernels`, because
a target may have a package `kernels` of its own.  Where there is no target, `python -P -m kernels.contender` keeps the
name that it was imported by: the arms of studies are modules that import it.
"""

import fcntl
import gc
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

HIGH_DESCRIPTOR = 500  # targets that close "all" file descriptors stop at 255 or at the ones they know


def _move_up(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # a lower limit on open files
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def main() -> None:
    gc.disable()  # until `start` has ended: of 1.9 s of CPU time for importing torch, collecting took 0.4 s (November)
    requests, answers = _move_up(0), _move_up(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    server = importlib.import_module(f"{_package()}.contender.server")
    if len(sys.argv) > 1:
        server.load(json.loads(sys.argv[1]))
    server.serve(requests, answers)


def _package() -> str:
    """The name of our package, which is loaded if this file was started by its path."""
    if __package__:
        return __package__.rpartition(".")[0]
    here = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "kernelwatch_kernels", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    return spec.name


if __name__ == "__main__":
    main()
