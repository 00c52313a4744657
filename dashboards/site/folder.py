"""A folder of files that appears when it is complete, and replaces only one that was made in the same way."""

import json
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from service.errors import Conflict

MARKER = ".kernelwatch-site"
_MADE_BY = {"made_by": "kernelwatch export site"}


class SiteFolder:
    """Files are written into a new folder, which replaces `path` at the end of the block, if the block did not fail."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # a link goes on pointing to the same place

    def __enter__(self) -> Self:
        """Make the folder in which the files are collected.

        Raises:
            Conflict: If the path is a file, or a folder that was made by something else.
            OSError: If nothing can be written there.
        """
        _check(self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._new = self._temporary()
        self._new.mkdir()
        self.write(MARKER, json.dumps(_MADE_BY).encode() + b"\n")
        return self

    def write(self, name: str, content: bytes) -> None:
        """Write a file; `name` is its path in the folder."""
        with self.open(name) as file:
            file.write(content)

    def open(self, name: str) -> BinaryIO:
        """A new file.  Raises FileExistsError if there is one of this name: two things would share an address."""
        path = self._new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def sizes(self) -> list[int]:
        """The bytes of each file."""
        return [path.stat().st_size for path in self._new.rglob("*") if path.is_file()]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            shutil.rmtree(self._new, ignore_errors=True)

    def _publish(self) -> None:
        _check(self._path)
        if not self._path.exists():
            self._new.rename(self._path)
            return
        old = self._temporary()
        self._path.rename(old)
        try:
            self._new.rename(self._path)
        except OSError:
            old.rename(self._path)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _temporary(self) -> Path:
        return self._path.parent / f".{self._path.name}.{secrets.token_hex(4)}"


def _check(path: Path) -> None:
    """Raise Conflict unless the path is free, an empty folder, or a site."""
    if not path.exists():
        return
    if not path.is_dir():
        raise Conflict(f"{path} is a file; name a folder.")
    if any(path.iterdir()) and not _is_site(path / MARKER):
        raise Conflict(
            f"{path} has files that `kernelwatch export site` did not make, and it would be replaced as a whole. "
            f"Name a new folder, for example {path / 'site'}."
        )


def _is_site(marker: Path) -> bool:
    try:
        return bool(json.loads(marker.read_bytes()) == _MADE_BY)
    except (OSError, ValueError):
        return False
