"""What every command prints with: a terminal's output, its errors, and lines with words from elsewhere."""

from enum import StrEnum

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from service.domain.text import printable

UNBOUNDED = 100_000  # columns: nothing that is printed here is as wide


class Output(Console):
    """A terminal's width where there is a terminal; else lines as wide as what is in them, for files and pipes."""

    @property
    def size(self) -> ConsoleDimensions:
        bounded = self.is_terminal or self._width is not None  # COLUMNS says so
        return super().size if bounded else ConsoleDimensions(UNBOUNDED, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


out = Output(highlight=False)
err = Output(highlight=False, stderr=True)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    MD = "md"


def line(*parts: str | tuple[str, str], to: Console = out) -> None:
    """One line with words from elsewhere, which can neither colour nor break it; a part may have a style."""
    plain = (printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts)
    to.print(Text.assemble(*plain), soft_wrap=True)
