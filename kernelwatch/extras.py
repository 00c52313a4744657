"""Say which part of an installation is missing: the extras of the wheel, or the requirements of a checkout."""

import sys
from pathlib import Path
from typing import NoReturn

OURS = ("kernelwatch", "kernels", "service", "workers", "dashboards")
WORKER = ("nvidia", "pynvml", "pyseccomp", "uv")
KERNELS = ("torch", "triton")


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """A sentence for people; None if the module is ours, which is a broken installation."""
    name = (missing.name or "").partition(".")[0]
    if not name or name in OURS:
        return None
    if not _is_installed():
        return f"The module {name} is missing; install it with `make run`, or from requirements.txt."
    extra = "worker" if name in WORKER else "kernels" if name in KERNELS else "server"
    how = f"pip install 'kernelwatch[{extra}]'"
    if extra == "server":
        how += ", or name a server with --server or KERNELWATCH_SERVER"
    return f"This needs the extra `{extra}` (the module {name} is missing): {how}"


def exit_for(missing: ModuleNotFoundError) -> NoReturn:
    """End a command that cannot be loaded.  Nothing is imported for that: it might be what is missing."""
    if (sentence := how_to_install(missing)) is None:
        raise missing
    print(f"kernelwatch: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


def _is_installed() -> bool:
    """Whether this is the wheel, where all packages are below this one, and not a checkout."""
    return (Path(__file__).parent / "service").is_dir()
