"""The metrics in words: what is measured of a case, in which unit, and how people write amounts and changes of it.

A stored case may have been written by another version, so its metric is read from the end of its text.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from kernels.cases import Metric
from service.domain.stats import counts

# What one of each is in the metric's own unit, the largest first.
_UNITS = {
    Metric.MEMORY: ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    Metric.COMPILE: ((1e6, "s"), (1e3, "ms"), (1.0, "µs")),
}

_SUFFIXES = {metric.value: metric for metric in Metric if metric is not Metric.KERNEL}


@dataclass(frozen=True)
class Words:
    """The words of a metric: "it *is* 5 % *slower*", "it *takes* 5 % *more memory*"."""

    name: str
    more: str = "slower"
    less: str = "faster"
    is_: str = "is"
    became: str = "became"
    as_much: str = "as slow as"
    as_much_of: str = "as long as"  # "takes 1.2 times as long as quack"
    own: str = "our own time"
    thing: str = ""  # what is counted, one of it; empty for times and sizes


def _counted(name: str, thing: str) -> Words:
    return Words(name, more=f"more {thing}s", less=f"fewer {thing}s", is_="has", became="now has", thing=thing)


WORDS = {
    Metric.KERNEL: Words("kernel time"),
    Metric.CALL: Words("call time"),
    Metric.BLOCK: Words("block time"),
    Metric.COMPILE: Words("compile time", own="our own compile time"),
    Metric.MEMORY: Words(
        "peak memory",
        more="more memory",
        less="less memory",
        is_="takes",
        became="now takes",
        as_much="as much memory as",
        as_much_of="as much memory as",
        own="our own call",
    ),
    Metric.RECOMPILES: _counted("recompilations", "recompilation"),
    Metric.BREAKS: _counted("graph breaks", "graph break"),
    Metric.KERNELS: _counted("kernels", "kernel"),
}


@lru_cache(8192)  # a document asks for the metric of each of its cases several times
def split_metric(printed: str) -> tuple[str, Metric]:
    """A printed case as the case and its metric; the kernel metric has no suffix."""
    case, _, suffix = printed.rpartition(".")
    metric = _SUFFIXES.get(suffix)
    return (case, metric) if case and metric else (printed, Metric.KERNEL)


def op_of(printed: str) -> tuple[str, str]:
    """The op and the direction of a printed case; the name of a function, and an empty direction."""
    function, _, label = printed.rpartition("/")
    op, direction = (function, "") if function else [*label.split("."), ""][:2]
    return op, direction


def print_case(case: str, metric: Metric) -> str:
    """The case as people read and type it, with its metric."""
    return case if metric is Metric.KERNEL else f"{case}.{metric.value}"


def metric_of(printed: str) -> Metric:
    """The metric of a printed case."""
    return split_metric(printed)[1]


def words(case: str) -> Words:
    return WORDS[metric_of(case)]


def amount(value: float | None, metric: Metric) -> str:
    """Format a measurement for people: `7.31 µs`, `10,432 µs`, `1.80 s` of compiling, `16.8 MB`, `3 kernels`."""
    if value is None:
        return "–"
    if metric.counts:
        return number_of(value, WORDS[metric].thing)
    divisor, symbol = _unit(value, metric)
    return f"{digits(value / divisor)} {symbol}"


def number_of(count: float, thing: str) -> str:
    """`1 kernel`, `3 kernels`; a median between two counts is `2.5 kernels`."""
    return f"{count:,g} {thing}{'s' * (count != 1)}"


def axis_unit(largest: float, metric: Metric) -> tuple[float, str]:
    """By what to divide the values of a figure's axis, and the unit that they have then."""
    return (1.0, WORDS[metric].name) if metric.counts else _unit(largest, metric)


def quotient(now: float | None, then: float | None, metric: Metric) -> float | None:
    """Now over then, of counts as `service.domain.stats.counts` has it; None where there is none."""
    if now is None or then is None:
        return None
    if metric.counts:
        return counts.ratio(now - then)
    return now / then if then > 0 else None


def _unit(value: float, metric: Metric) -> tuple[float, str]:
    if metric not in _UNITS:
        return 1.0, "µs"
    units, shown = _UNITS[metric], abs(float(f"{value:.3g}"))  # 999.7 B are shown as 1.00 kB
    return next(((size, symbol) for size, symbol in units if shown >= size), units[-1])


def digits(value: float) -> str:
    """Three digits that mean something: `7.31`, `12.8`, `128`, `10,432`."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def signed(ratio: float, metric: Metric = Metric.KERNEL) -> str:
    """A ratio as a signed change: `+10.2 %`, `−0.1 %`, of counts `+1`; above zero is more."""
    if metric.counts:
        return f"{counts.difference(ratio):+d}".replace("-", "−").replace("+0", "0")
    return f"{_signed(ratio)} %"


def in_range(low: float | None, high: float | None, metric: Metric = Metric.KERNEL) -> str:
    """Two ratios as a range of signed changes: `+9.6 to +10.8 %`; empty where one is missing, and for counts."""
    if low is None or high is None or metric.counts:
        return ""
    return f"{_signed(low)} to {_signed(high)} %"


def _signed(ratio: float) -> str:
    change = round((ratio - 1) * 100, 1)
    return f"{change:+.1f}".replace("-", "−") if change else "0.0"


def ratio_text(ratio: float | None, metric: Metric, places: int = 3) -> str:
    """A ratio for a column: `1.102`; of counts their difference, `+1`; empty where there is none."""
    if ratio is None:
        return ""
    return signed(ratio, metric) if metric.counts else f"{ratio:.{places}f}"


def percent(ratio: float | None, metric: Metric = Metric.KERNEL) -> str:
    """A ratio in words: `10.2 % slower`, `3.0 % less memory`, `1 more kernel`; "slower" by time, not by speed."""
    if ratio is None:
        return "not compared"
    if metric.counts:
        return more_or_fewer(ratio, WORDS[metric])
    change = (ratio - 1) * 100
    if abs(change) < 0.05:
        return "no change"
    return f"{abs(change):.1f} % {WORDS[metric].more if change > 0 else WORDS[metric].less}"


def more_or_fewer(ratio: float, words: Words) -> str:
    """The ratio of two counts in words: `1 more graph break`, `2 fewer kernels`."""
    change = counts.difference(ratio)
    if not change:
        return "no change"
    return number_of(abs(change), f"{'more' if change > 0 else 'fewer'} {words.thing}")


def instead(now: float | None, before: float | None, metric: Metric) -> str:
    """`3 kernels instead of 2`; empty for what is not counted, and where a count is missing or both are equal."""
    if not metric.counts or now is None or before is None or now == before:
        return ""
    return f"{amount(now, metric)} instead of {before:,g}"


@dataclass(frozen=True, order=True)
class SeriesKey:
    """The unique key of a series."""

    target_id: int
    device: str
    provider: str
    case: str  # without its metric
    metric: Metric

    @classmethod
    def of(cls, target_id: int, device: str, provider: str, printed: str) -> Self:
        """The key of a case as it is printed: `rmsnorm.fwd.4096x1024.bf16.call`."""
        return cls(target_id, device, provider, *split_metric(printed))

    @property
    def name(self) -> tuple[str, str]:
        """Provider and printed case, which identify the series within its target and device."""
        return self.provider, self.printed

    @property
    def printed(self) -> str:
        """The case as people read and type it, with its metric."""
        return print_case(self.case, self.metric)
