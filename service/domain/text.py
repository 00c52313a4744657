"""Text fit to show, as Markdown too, the small words of every renderer, and times of a clock that was set back.  Pure.

What a repository, a build or a contender says may hold anything: it is shown, and does nothing.  As Markdown it cannot
break the layout, mention a person, or link.

After a clock was set back the stored times are too far in the future.  Each kind of wait has a longest duration, so a
time that is further ahead cannot be right.  The functions take numbers, and columns with numbers or SQL expressions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit, urlunsplit

DAY_S = 86_400.0
ONE_LINE = r"^[^\x00-\x1f\x7f]+$"  # databases refuse the first, and names with the others cannot be read
_COLOUR_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PUNCTUATION = re.compile(r"[\\`*_\[\]#!|~$]")
_BEGINNING = re.compile(r"^([0-9]*)([-+=.)])(?![0-9A-Za-z])")  # a list or an underlined title
_LINKING = re.compile(r"(@|:(?=//)|www(?=\.)|#(?=[0-9])|GH-(?=[0-9]))")  # broken by a space without width
_TICKS = re.compile(r"`+")


def listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, noun: str) -> str:
    """`1 run`, `2,000 runs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def interval(low: float | None, high: float | None) -> str:
    """The confidence interval of a ratio: `1.081 to 1.124`; empty where one end is missing or nothing varied."""
    return "" if low is None or high is None or low == high else f"{low:.3f} to {high:.3f}"


def printable(text: str) -> str:
    """Text without control characters, colour codes and marks that turn the direction of writing."""
    if text.isprintable():  # most texts, at a tenth of the price
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL_CHARACTERS.sub("", _COLOUR_CODES.sub("", lines))


def one_line(text: str, most: int = 240) -> str:
    """Make untrusted text usable in a sentence: one line without its full stop, bounded, at a word if possible."""
    words = " ".join(printable(text).split())
    if len(words) <= most:
        return words.rstrip(".")
    at_word = words[:most].rpartition(" ")[0]
    return (at_word if len(at_word) > most // 2 else words[: most - 1]).rstrip() + "…"


def last_lines(log: str, lines: int = 40, characters: int = 6000) -> str:
    """The end of a log, bounded in both ways."""
    return "\n".join(printable(log).rstrip().splitlines()[-lines:])[-characters:]


def without_middle(text: str, most: int) -> str:
    """A text of at most about so many characters: what is left out is left out of its middle, and said there."""
    if len(text) <= most:
        return text
    first = most // 4
    left_out = f"[kernelwatch] {len(text) - most:,} characters were left out here"
    return f"{text[:first]}\n{left_out}\n{text[len(text) - (most - first) :]}"


def plain(value: Any, most: int = 120) -> str:
    """A fact as people write it: `4`, `0.00386`, `num_warps=4 num_stages=2`; the whole of it bounded."""
    return one_line(_joined(value), most)


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_joined(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_joined(inner) for inner in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def apart(before: Any, now: Any, most: int = 120) -> tuple[str, str]:
    """Two facts that differ, each on one bounded line: of long ones only the words that differ, or what follows them.

    `_forward num_warps=4 BLOCK=1024` and `_forward num_warps=4 BLOCK=2048` give `BLOCK=1024` and `BLOCK=2048`.
    """
    both = [_joined(side).split() for side in (before, now)]
    if len(both[0]) == len(both[1]):
        pairs = [pair for pair in zip(*both, strict=True) if pair[0] != pair[1]]
        both = [list(side) for side in zip(*pairs, strict=True)] if pairs else both
    else:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*both, strict=False)))
        both = [["…" if same else "", *side[same:]] for side in both]
    return one_line(" ".join(both[0]), most), one_line(" ".join(both[1]), most)


def short(sha: str) -> str:
    """A commit as people write it; a version stays as it is."""
    return sha[:10] if len(sha) >= 40 else sha


def in_percent(share: float) -> str:
    """`2%`, `0.5%`, `12.3%`: three digits, so that a small limit is not rounded to nothing."""
    return f"{share:.0%}" if abs(share) >= 1 else f"{share * 100:.3g}%"


def share_in_words(share: float) -> str:
    """Format a share for a sentence: `6 %`, `0.5 %`."""
    return f"{share * 100:.2g} %" if abs(share) < 0.995 else f"{share * 100:.0f} %"


def in_bytes(size: float) -> str:
    """`0.3 MB`, `12 MB`, `1.5 GB`."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.2g} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"


def lasted(seconds: float) -> str:
    """`42 s`, `12 min`, `3.5 h`, `4 days`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def without_credentials(location: str) -> str:
    """Remove the user name and the password from a URL."""
    parts = urlsplit(location)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.username else location


WORKER_GONE_S = 60.0  # without a sign of a worker for so long, it is not online: workers report every few seconds


def is_due(at: Any, now: Any, longest_s: Any) -> Any:
    """Whether the time `at` has come, for waits of at most `longest_s`.  A time further ahead counts as due."""
    return (at <= now) | (at > now + longest_s)


def is_recent(at: Any, now: Any, within_s: Any) -> Any:
    """Whether something happened less than `within_s` ago.  A time further ahead than that is not recent."""
    return (at >= now - within_s) & (at <= now + within_s)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of plain text: whatever strangers wrote stays in its cell, and does nothing there."""
    plain = (row_of([escaped(cell) for cell in row]) for row in rows)
    return [row_of(head), row_of(["---"] * len(head)), *plain]


def row_of(cells: Sequence[str]) -> str:
    """A line of a table, of cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text from elsewhere as Markdown that shows exactly it: no markup, no mention, no link."""
    text = _LINKING.sub("\\1\u200b", _on_one_line(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _BEGINNING.sub(r"\1\\\2", _PUNCTUATION.sub(r"\\\g<0>", text))


def _on_one_line(text: str) -> str:
    return " ".join(printable(text).split())


def code(text: str) -> str:
    """Text as a code span that it cannot leave, in a table too."""
    return span(text.replace("|", "\\|"))


def span(text: str) -> str:
    """Text as a code span that it cannot leave, outside of tables."""
    text = _on_one_line(text)
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(text: str) -> str:
    """Text as a block that it cannot leave: the fence is longer than any run of backticks inside."""
    ticks = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    return f"{ticks}text\n{text}\n{ticks}"


def within_calendar(at: datetime) -> datetime:
    """The same time.  Raises ValueError if it is in no year from 1 to 9999 of UTC, or would be after rounding."""
    try:
        datetime.fromtimestamp(at.timestamp(), UTC)
    except (ValueError, OverflowError):
        raise ValueError("it is outside the years 1 to 9999 in UTC") from None
    return at
