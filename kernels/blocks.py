"""Sizes and FLOPs of a transformer block around a norm.  Torch-free."""

from dataclasses import dataclass
from typing import Self

from .cases import Case

HEAD = 128  # columns of one attention head
MAX_SEQUENCE = 2048  # tokens
INNER_MULTIPLE = 256


@dataclass(frozen=True)
class Shape:
    tokens: int
    sequence: int
    columns: int

    @classmethod
    def of(cls, case: Case) -> Self | None:
        """The block of a case, whose rows are tokens; None if they are not whole sequences."""
        sequence = min(case.rows, MAX_SEQUENCE)
        return None if case.rows % sequence else cls(case.rows, sequence, case.cols)

    @property
    def heads(self) -> int:
        return self.columns // HEAD

    @property
    def inner(self) -> int:
        """Inner columns of the SwiGLU, as in Llama: 8/3 of the hidden size, rounded up."""
        return -(-8 * self.columns // (3 * INNER_MULTIPLE)) * INNER_MULTIPLE

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The weight matrices: output and input columns."""
        columns, inner = self.columns, self.inner
        return {
            "qkv": (3 * columns, columns),
            "out": (columns, columns),
            "gate_up": (2 * inner, columns),
            "down": (columns, inner),
        }

    @property
    def flops(self) -> int:
        """Model FLOPs of one step, forward and backward.

        6 for each matrix weight and token, and 12 for each token, column and attended token (PaLM, arXiv 2204.02311,
        appendix B); with a causal mask a token attends to half a sequence.  Norms and recomputation do not count.
        """
        weights = sum(rows * columns for rows, columns in self.matrices.values())
        return self.tokens * (6 * weights + 12 * self.columns * self.sequence // 2)

    def least_bytes(self, element_bytes: int) -> int:
        """The minimum of bytes of one step: each pass reads its inputs once and writes its results once.

        Forward reads x and the matrices and writes y; backward reads dy, x and the matrices and writes dx and a
        gradient of each matrix.  What is between the operators could stay on the chip; the norm's weights do not count.
        """
        weights = sum(rows * columns for rows, columns in self.matrices.values())
        return (5 * self.tokens * self.columns + 3 * weights) * element_bytes
