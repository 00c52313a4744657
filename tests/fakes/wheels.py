"""Distributions: in a folder as an installer leaves them, as wheels, and releases of torch that are quick to make.

Such a release is a thin layer over the installed torch: it has its own version and its own
`torch.nn.functional.rms_norm`; everything else is the installed torch.
"""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

# The installed module runs under the name of the release's, which says where it really comes from.
_MODULE = """
_real = {real!r}
_mine = __file__
__path__ = [_real]
__file__ = _real + "/__init__.py"
with open(__file__) as _file:
    exec(compile(_file.read(), __file__, "exec"))
__file__ = _mine
__version__ = {version!r}

import torch.nn.functional as _functional

_rms_norm, _range = _functional.rms_norm, __builtins__["range"]  # torch has a range of its own


def _norm(*arguments, **named):
    for _ in _range({extra}):
        _rms_norm(*arguments, **named)
    return _rms_norm(*arguments, **named)


_functional.rms_norm = _norm
"""


def unpacked(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: tuple[str, ...] = (),
    *,
    record: bool = True,
) -> None:
    """Write a distribution into `site`, with a RECORD that has the hashes of its files."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    whole = {**files, f"{info}/METADATA": metadata}
    for path, text in whole.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in whole.items()]
    if record:
        (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def files_of_torch(version: str, extra: int = 0) -> dict[str, str]:
    """The files of a release whose eager RMSNorm computes its result `extra` more times."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    real = str(Path(spec.origin).parent)
    about = f"torch-{version}.dist-info"
    return {
        "torch/__init__.py": _MODULE.format(real=real, version=version, extra=extra),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }


def write_tree(folder: Path, files: dict[str, str]) -> Path:
    """A release as it is unpacked."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path
