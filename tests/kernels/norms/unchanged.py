"""Which sources Triton's interpreter called right: `unchanged.txt`, by the hash of all that its findings depend on.

Interpreting takes minutes.  While the hash is the stored one, the tests of its findings run at night; after a change of
a kernel, of what checks it or of Triton they run in every run.  `make interpreted` stores the hash after they passed.
"""

import sys
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import kernels

LIST = Path(__file__).with_suffix(".txt")
ROOT = Path(kernels.__file__).parents[1]
SOURCES = ("kernels/*.py", "kernels/norms/*.py", "kernels/checks/*.py", "tests/kernels/norms/*.py")
MODULES = ("test_norms", "test_modules", "test_regions", "test_wide")


def digest() -> str:
    """Of all sources and of the version of Triton; torch decides nothing in the interpreter."""
    files = sorted(file for pattern in SOURCES for file in ROOT.glob(pattern))
    hashed = sha256(version("triton").encode())
    for file in files:
        hashed.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return hashed.hexdigest()


def is_unchanged() -> bool:
    return LIST.exists() and LIST.read_text().strip() == digest()


def main(arguments: Iterable[str]) -> None:
    if "--write" in arguments:
        LIST.write_text(digest() + "\n")
    else:
        print(" or ".join(MODULES))


if __name__ == "__main__":
    main(sys.argv[1:])
