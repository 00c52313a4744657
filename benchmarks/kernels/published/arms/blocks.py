"""All blocks of named architectures.

Nothing is downloaded: the widths are those that the papers publish, the weights are random.
"""

from collections.abc import Mapping

from benchmarks.kernels.published.arms import blocks_language, blocks_small, blocks_vision
from benchmarks.kernels.published.arms.blocks_common import Block

CATALOGUE: Mapping[str, Mapping[str, Block]] = {  # by suite and name
    "language": blocks_language.BLOCKS,
    "vision": blocks_vision.BLOCKS,
    "small": blocks_small.BLOCKS,
}


def find(case: str) -> tuple[Block, str]:
    """The block and the precision of `SUITE.BLOCK.PRECISION`.  Raises ValueError."""
    parts = case.split(".")
    if len(parts) != 3 or parts[1] not in CATALOGUE.get(parts[0], {}):
        known = ", ".join(f"{suite}.{name}" for suite, those in CATALOGUE.items() for name in those)
        raise ValueError(f"{case} is not SUITE.BLOCK.PRECISION with one of {known}")
    return CATALOGUE[parts[0]][parts[1]], parts[2]
