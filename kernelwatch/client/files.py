"""Files that appear when they are complete."""

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


class WholeFile:
    """A file that replaces `path` at the end of the block, if the block did not fail."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written = 0  # bytes

    def __enter__(self) -> Self:
        self._file = tempfile.NamedTemporaryFile(  # closed by __exit__
            dir=self._path.parent, prefix=f".{self._path.name}.", delete=False
        )
        return self

    def write(self, part: bytes) -> None:
        self._file.write(part)
        self.written += len(part)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        made = Path(self._file.name)
        try:
            self._file.close()
            if kind is None:
                made.chmod(0o666 & ~_umask())  # temporary files are private
                made.replace(self._path)
        finally:
            made.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
