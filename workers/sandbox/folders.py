"""Make folders of untrusted builds read-only and remove them, however deep they are and whatever their modes.

External programs do it, because Python's own functions recurse, and a build may nest thousands of folders.
"""

import subprocess
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a tree, also one whose folders a build made unreadable.  Never raises; what cannot be removed stays."""
    if folder.is_dir() and not folder.is_symlink():
        _quietly("chmod", "-R", "u+rwx", "--", folder)
    _quietly("rm", "-rf", "--", folder)


def make_read_only(folder: Path) -> None:
    """Make a tree readable by all users and writable by none, even without a sandbox."""
    # No file may run as its owner outside of the sandbox, whose file systems ignore these bits.
    # GNU chmod does not follow links in the tree, and opens a folder only after it made that readable.
    subprocess.run(["chmod", "-R", "a-w,a+rX,ug-s", "--", folder], check=True, capture_output=True)


def _quietly(*command: str | Path) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
