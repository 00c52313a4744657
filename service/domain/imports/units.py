"""Units of other tools: times in us, rates in GB/s and TFLOP/s, sizes in bytes, everything else as it is written."""

from dataclasses import dataclass

from service.domain.ingest import BYTES, COUNT, US
from service.domain.states import Better

RATIO = "ratio"

_TIMES = {"ps": 1e-6, "ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "min": 6e7}
_SPELLED = {"µs": "us", "μs": "us", "sec": "s"} | {
    name + plural: unit
    for name, unit in (("nanosecond", "ns"), ("microsecond", "us"), ("millisecond", "ms"), ("second", "s"))
    for plural in ("", "s")
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_SIZES = {f"{prefix}b": factor for prefix, factor in (_PREFIXES | _BINARY).items()} | {"byte": 1.0, "bytes": 1.0}
_PER_SECOND = ("/s", "/sec", "/second", "ps")
_LONG = ("minute", "h", "hour")
_RATES = ("fps", "qps", "rps", "tps")
_OF_ONE = ("/iter", "/op")  # a time of one iteration is a time


@dataclass(frozen=True)
class ImportUnit:
    """The unit that values are stored in, and how many of it one of theirs is."""

    name: str
    factor: float = 1.0
    better: Better | None = None  # where the unit tells it


def unit_named(written: str) -> ImportUnit:
    """The unit that a tool writes as `ms`, `ns/iter`, `GB/s`, `gbps`, `TFLOPS` or `MiB`."""
    short = written.strip()
    lower = short.lower()
    for ending in _OF_ONE:
        lower = lower.removesuffix(ending)
    lower = _SPELLED.get(lower, lower)
    if lower in _TIMES:
        return ImportUnit(US, _TIMES[lower], Better.SMALLER)
    if lower in _SIZES:
        return ImportUnit(BYTES, _SIZES[lower], Better.SMALLER)
    return _rate(lower) or _other(short, lower)


def _rate(lower: str) -> ImportUnit | None:
    for ending in _PER_SECOND:
        of = lower.removesuffix(ending)
        if of == lower:
            continue
        if of in _SIZES:
            return ImportUnit("GB/s", _SIZES[of] / 1e9, Better.LARGER)
        flops = of.removesuffix("s").removesuffix("flop")
        if flops != of and flops in _PREFIXES:
            return ImportUnit("TFLOP/s", _PREFIXES[flops] / 1e12, Better.LARGER)
    prefix = lower.removesuffix("flops")  # `TFLOPS` is written for TFLOP/s
    if prefix != lower and prefix in _PREFIXES:
        return ImportUnit("TFLOP/s", _PREFIXES[prefix] / 1e12, Better.LARGER)
    return None


def _other(short: str, lower: str) -> ImportUnit:
    if lower in ("x", "ratio", "speedup"):
        return ImportUnit(RATIO)
    if lower in ("count", "counts", ""):
        return ImportUnit(COUNT)
    of, per, time = lower.rpartition("/")
    is_rate = lower in _RATES or (of and per and (_SPELLED.get(time, time) in _TIMES or time in _LONG))
    return ImportUnit(short, better=Better.LARGER if is_rate else None)
