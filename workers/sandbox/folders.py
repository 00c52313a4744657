"""Folders that strangers fill: made read-only and removed however deep they are and whatever they allow.

By programs that walk by descriptors: Python's own functions recurse, and a build may nest thousands of folders.
"""

import subprocess
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a tree, also one whose folders a build made unreadable.  Never raises; what will not go is left."""
    if folder.is_dir() and not folder.is_symlink():
        _quietly("chmod", "-R", "u+rwx", "--", folder)
    _quietly("rm", "-rf", "--", folder)


def make_read_only(folder: Path) -> None:
    """Everybody may read it and nobody may write into it, even where there is no sandbox to keep it."""
    # GNU's chmod leaves the links that it meets alone, and opens a folder only after it has made that readable.
    subprocess.run(["chmod", "-R", "a-w,a+rX,ug-s", "--", folder], check=True, capture_output=True)


def _quietly(*command: str | Path) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
