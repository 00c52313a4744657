"""Registers, spills, shared memory and programs per SM of all plans of our kernels, without a GPU.

python -m benchmarks.kernels.occupancy [--arch sm_90 sm_100] [--only PATTERN] [--markdown]

Plans that differ only in the size of a team are listed once: it does not change the tiles.  For one width
(`TWO_PASSES`) the kernels for devices whose teams cannot exchange sums are listed as well.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernels.trials import say
from tests.kernels.norms.occupancy import (
    ARCHITECTURES,
    HELPERS,
    KernelUse,
    chosen_for,
    lines,
    occupancies,
    table,
    two_passes,
    two_passes_for,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--only", default="", help="a pattern for the text of cases")
    parser.add_argument("--markdown", action="store_true")
    chosen = parser.parse_args()
    cases = [case for case in chosen_for() if re.search(chosen.only, str(case))]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        rows = occupancies(chosen.arch, cases, Path(folder))
        wide = [case for case in two_passes_for() if re.search(chosen.only, str(case))]
        rows += two_passes(chosen.arch, wide, Path(folder))
    shown = [row for row in rows if row.kernel not in HELPERS or row.objection]
    for line in markdown(shown) if chosen.markdown else lines(shown):
        say(line)
    say(f"\n{sum(row.objection is not None for row in rows)} of {len(rows)} kernels should not be chosen")


def markdown(rows: Sequence[KernelUse]) -> Iterator[str]:
    heading, *others = table(rows)
    for cells in (heading, ["---"] * len(heading), *others):
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
