"""Which sources Triton's interpreter called right: `unchanged.txt`, a hash of all that its findings depend on.

Interpreting takes minutes.  While the hash is the stored one, the tests of its findings run at night; after a change of
a kernel, of what checks it or of Triton they run in every run.  `make interpreted` stores the hash after they passed.
"""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from .interpreted import ROOT, hashes

STORED = Path(__file__).with_suffix(".txt")
SOURCES = ("kernels/*.py", "kernels/norms/**/*.py", "kernels/checks/*.py", "tests/kernels/norms/*.py")


def digest() -> str:
    """Of all sources and of the version of Triton; torch decides nothing in the interpreter."""
    files = sorted(file.relative_to(ROOT).as_posix() for pattern in SOURCES for file in ROOT.glob(pattern))
    return sha256(json.dumps([version("triton"), hashes(iter(files))]).encode()).hexdigest()


def is_unchanged() -> bool:
    return STORED.exists() and STORED.read_text().strip() == digest()


if __name__ == "__main__":
    STORED.write_text(digest() + "\n")
