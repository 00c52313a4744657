"""Where commands print: stdout and stderr, as terminals or as pipes."""

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from service.domain.text import printable

UNBOUNDED = 100_000  # columns: wider than anything printed here


class Output(Console):
    """As wide as the terminal; without one, as wide as the longest line, for files and pipes."""

    @property
    def size(self) -> ConsoleDimensions:
        bounded = self.is_terminal or self._width is not None  # set by COLUMNS
        return super().size if bounded else ConsoleDimensions(UNBOUNDED, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


out = Output(highlight=False)
err = Output(highlight=False, stderr=True)


def line(*parts: str | tuple[str, str], to: Console = out) -> None:
    """Print one line of untrusted text, which can neither style nor break it; a part may be `(text, style)`."""
    plain = (printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts)
    to.print(Text.assemble(*plain), soft_wrap=True)
