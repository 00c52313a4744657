"""Draw the picture of a comment.  Pure.

A forge shows it without our style sheet, and scales it down on a phone: hence its own colours and few, large texts.
"""

from dashboards.drawing import Figure, Scale, bars, place
from service.domain.text import one_line
from service.reports.change_picture import ChangePicture

WIDTH, ROW_PX, BAR_PX = 480, 38, 9
MAX_NAME = 52  # characters, beside which `+10.2 %` has room
_MOST = 8.0  # a case that takes ten times as long must not hide the others
_LEAST = 1.02  # the axis reaches at least as far to the side on which something changed
# The tokens of kernelwatch.css.  Attributes are for light pages and viewers without styles, the style for dark ones.
LIGHT = {"card": "#ffffff", "ink": "#1b2430", "quiet": "#556273", "worse": "#c0262d", "better": "#0a5fc4"}
DARK = {"card": "#1a2028", "ink": "#e3e8ee", "quiet": "#9aa7b6", "worse": "#ff7a7a", "better": "#6db3ff"}


def draw(picture: ChangePicture) -> Figure:
    """A row for each case: its name, its size, and a bar from no change to its ratio with the interval on it."""
    height = len(picture.bars) * ROW_PX + 26
    figure = Figure(WIDTH, height, picture.alt, xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=height)
    figure.add("style", f"@media (prefers-color-scheme: dark) {{ {''.join(map(_dark, DARK))} }}")
    figure.add("rect", kind="card", fill=LIGHT["card"], width=WIDTH, height=height, rx=6)
    ends = [end for bar in picture.bars for end in (bar.low, bar.high, bar.ratio)]
    low = min(1.0, *ends) if min(ends) >= 1 else min(1 / _LEAST, *ends)
    high = max(1.0, *ends) if max(ends) <= 1 else max(_LEAST, *ends)
    x = Scale(max(low, 1 / _MOST), min(high, _MOST), 12, WIDTH - 12, log=True)
    zero = x(1.0)
    with figure.within("g", font_family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"):
        for n, bar in enumerate(picture.bars):
            top = 8 + n * ROW_PX
            kind = "worse" if bar.slower else "better"
            _text(figure, 12, top + 11, one_line(bar.name, MAX_NAME), "ink", 12)
            _text(figure, WIDTH - 12, top + 11, bar.size, kind, 13, "end", 600)
            left, right = sorted((zero, x.within(bar.ratio)))
            width = max(right - left, 1.0)
            figure.add("rect", kind=kind, fill=LIGHT[kind], x=left, y=top + 17, width=width, height=BAR_PX)
            middle = top + 17 + BAR_PX / 2
            start, end = x.within(bar.low), x.within(bar.high)
            _line(figure, f"M{place(start)} {place(middle)}H{place(end)}")
            _line(figure, bars([*((at, middle - 4, middle + 4) for at in (start, end)), (zero, top + 15, top + 28)]))
        bottom = 8 + len(picture.bars) * ROW_PX
        if picture.more:
            _text(figure, WIDTH / 2, bottom + 9, picture.more, "quiet", 11, "middle")
        if min(ends) < 1:
            _text(figure, 12, bottom + 9, f"← {picture.better}", "quiet", 11)
        if max(ends) > 1:
            _text(figure, WIDTH - 12, bottom + 9, f"{picture.worse} →", "quiet", 11, "end")
    return figure


def _text(
    figure: Figure, x: float, y: float, text: str, kind: str, size: int, anchor: str = "", weight: int = 400
) -> None:
    figure.add(
        "text", text, kind=kind, fill=LIGHT[kind], font_size=size, font_weight=weight, text_anchor=anchor,
        x=float(x), y=float(y),
    )  # fmt: skip


def _line(figure: Figure, d: str) -> None:
    figure.add("path", kind="line", fill="none", stroke=LIGHT["ink"], stroke_width=1.2, d=d)


def _dark(kind: str) -> str:
    stroke = f".line {{ stroke: {DARK[kind]} }} " if kind == "ink" else ""
    return f".{kind} {{ fill: {DARK[kind]} }} {stroke}"
