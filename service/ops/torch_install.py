"""Choose a build of torch and install it.  Uses the standard library only, because it runs first.

`python -m service.ops.torch_install PYTHON` installs it into the environment of the interpreter PYTHON: the stack
`host` and the environment of the tests.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = "2.13.0"
_COMPILE = (
    "import compileall, sys, sysconfig\n"
    "for folder in sys.argv[1:] or [sysconfig.get_path('purelib')]:\n"
    "    compileall.compile_dir(folder, quiet=2, workers=0)"
)
EXTRA = ("numpy>=2", "packaging")  # torch warns without NumPy; Liger and Quack read versions


def install(python: Path, requirements: Sequence[str] = ()) -> None:
    """Install torch and `requirements` into the environment of `python`.

    Raises:
        RuntimeError: With the installer's output.
    """
    wanted = [*EXTRA, *requirements]
    torch = [requirement for requirement in requirements if requirement.replace(" ", "").startswith("torch==")]
    _run(python, commands(python, wanted, own_torch=bool(torch)), " ".join(("torch", *requirements)))


def install_locked(python: Path, lock: Path) -> None:
    """Install what `lock` lists, each distribution with its hash, and nothing else.

    Raises:
        RuntimeError: With the installer's output.
    """
    _run(python, [[*_pip(python), "--require-hashes", "--no-deps", "-r", str(lock)]], f"What {lock} lists")


def _run(python: Path, commands: Sequence[Sequence[str]], what: str) -> None:
    """Run the first of these commands that succeeds."""
    output = ""
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            compile_modules(python)
            return
        output = "\n".join(done.stdout.strip().splitlines()[-8:])
    raise RuntimeError(f"{what} could not be installed for {python}:\n{output}")


def compile_modules(python: Path, folders: Sequence[Path] = ()) -> None:
    """Compile the modules in these folders, by default its packages, to byte code where that can be written.

    Contenders cannot write into a stack, so that without it each compiles torch's modules again: importing Inductor
    takes 4.2 s of CPU time with byte code, and 10.2 s without.  uv installs none.  All cores are used, where pip uses
    one.
    """
    subprocess.run([str(python), "-c", _COMPILE, *map(str, folders)], stdout=subprocess.DEVNULL, check=False)


def commands(
    python: Path, wanted: Sequence[str], *, own_torch: bool = False, gpu: bool | None = None
) -> list[list[str]]:
    """Return the install commands to try in order.

    With an NVIDIA driver the default wheel is used.  Without one it would bring gigabytes of CUDA, so a CPU wheel that
    pip finds by its own settings (a mirror, a folder of wheels) comes first, then the one that uv finds.
    """
    pip = _pip(python)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    if own_torch:
        return [[*pip, *wanted]]
    plain = [*pip, f"torch=={TORCH}", *wanted]
    if has_driver() if gpu is None else gpu:
        return [plain]
    return [
        [*pip, f"torch=={TORCH}+cpu", *wanted],
        [*uv, "--torch-backend", "cpu", f"torch=={TORCH}", *wanted],
        plain,
    ]


def _pip(python: Path) -> list[str]:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    return [*pip, "--no-compile"]


def has_driver() -> bool:
    """Return whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]), sys.argv[2:])
    except RuntimeError as failure:
        sys.exit(str(failure))
