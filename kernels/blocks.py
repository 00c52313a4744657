"""The size of a transformer block around a norm, and the operations that it needs.  No torch in here."""

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
        """The block of a case: rows are tokens.  None where they are not whole sequences."""
        sequence = min(case.rows, MAX_SEQUENCE)
        return None if case.rows % sequence else cls(case.rows, sequence, case.cols)

    @property
    def heads(self) -> int:
        return self.columns // HEAD

    @property
    def inner(self) -> int:
        """Columns inside the SwiGLU, as Llama sizes it: 8/3 of the hidden size, rounded up."""
        return -(-8 * self.columns // (3 * INNER_MULTIPLE)) * INNER_MULTIPLE

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The weights beside those of the norms: columns out and in."""
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

        6 for each weight of a matrix and token, and 12 for each token, column and token it attends to (PaLM, arXiv
        2204.02311, appendix B); under a causal mask that is half a sequence.  Norms and what a kernel computes a second
        time do not count.
        """
        weights = sum(rows * columns for rows, columns in self.matrices.values())
        return self.tokens * (6 * weights + 12 * self.columns * self.sequence // 2)
