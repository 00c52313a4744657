"""One provider in one process on the device, answering JSON lines.  Run as `python -P kernels/contender/__main__.py`.

Given a provider (JSON) as its argument, it imports what that needs at once: it was started ahead of its launch.

Before anything else is imported, the pipe to the driver is put out of reach: what the target prints, whichever way,
goes to stderr, and what it reads is empty.  The package is loaded under the name `kernelwatch_kernels`, because a
target may have a package `kernels` of its own.
"""

import fcntl
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

OUT_OF_THE_WAY = 500  # targets that close "all" file descriptors stop at 255 or at the ones they know


def _set_aside(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
    except OSError:  # a lower limit on open files
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def main() -> None:
    questions, answers = _set_aside(0), _set_aside(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    here = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "kernelwatch_kernels", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    serving = importlib.import_module(f"{spec.name}.contender.server")
    if len(sys.argv) > 1:
        serving.load(json.loads(sys.argv[1]))
    serving.serve(questions, answers)


if __name__ == "__main__":
    main()
