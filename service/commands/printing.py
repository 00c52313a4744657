"""What every command prints with: a terminal's output, its errors, and lines with words from elsewhere."""

from enum import StrEnum

from rich.console import Console
from rich.text import Text

from service.texts import printable

out = Console(highlight=False)
err = Console(highlight=False, stderr=True)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    MD = "md"


def line(*parts: str | tuple[str, str], to: Console = out) -> None:
    """One line with words from elsewhere, which can neither colour nor break it; a part may have a style."""
    plain = (printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts)
    to.print(Text.assemble(*plain), soft_wrap=True)
