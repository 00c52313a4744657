"""The one rule by which torch is chosen and put into an environment.  Standard library only: it runs before all else.

`python -m service.ops.torch_install PYTHON` puts it into the environment of the interpreter
PYTHON; the stack named `host`
and the environment of the tests both get theirs here.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = "2.13.0"
QUACK = "quack-kernels==0.6.5"  # moves fast and tunes itself: another version is another state of the art
# What to install for the providers that are not part of torch.
PACKAGES = {"quack": QUACK, "quack-tuned": QUACK, "liger": "liger-kernel"}
# Contenders cannot write into a stack: without this each of them would compile torch's modules anew.  On every core,
# where pip uses one: of 28 s that a stack took on the CPU, 17 were this.
_COMPILE = "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"
BESIDE = ("numpy>=2", "packaging")  # torch warns without NumPy; Liger and Quack ask for versions


def install(python: Path, requirements: Sequence[str] = ()) -> None:
    """Put torch and `requirements` into the environment of `python`.  Raises RuntimeError that quotes the installer."""
    wanted = [*BESIDE, *requirements]
    torch = [one for one in requirements if one.replace(" ", "").startswith("torch==")]
    said = ""
    for command in commands(python, wanted, own_torch=bool(torch)):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            subprocess.run([str(python), "-c", _COMPILE], check=False)
            return
        said = "\n".join(done.stdout.strip().splitlines()[-8:])
    raise RuntimeError(f"{' '.join(('torch', *requirements))} could not be installed for {python}:\n{said}")


def commands(
    python: Path, wanted: Sequence[str], *, own_torch: bool = False, gpu: bool | None = None
) -> list[list[str]]:
    """The ways to do it, to be tried in order.

    With an NVIDIA driver the wheel that everybody gets is right.  Without, it would bring gigabytes of CUDA: better is
    a CPU wheel that pip finds by its own settings (a mirror, a folder of wheels), else the one that uv knows to get.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-compile"]
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


def has_driver() -> bool:
    """Is there an NVIDIA driver on this machine?"""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]), sys.argv[2:])
    except RuntimeError as failure:
        sys.exit(str(failure))
