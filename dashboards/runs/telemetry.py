"""State of the device and its host during a run, trial by trial.  Pure: telemetry in, lines out.

A trial reads the device around every case: thousands of readings, of which ranges and sums are shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.metrics import digits
from service.domain.roofline import number

_HARMLESS = {"idle", "clocks_setting", "display"}  # clock reasons that do not slow kernels down
_BOARD = {"driver": "Driver", "uuid": "UUID", "pstate": "Performance state", "ecc": "ECC", "mig": "MIG"}
_NAMES = {**_BOARD, "sms": "SMs", "l2_bytes": "L2, bytes", "memory_bytes": "Memory, bytes", "l2": "L2, bytes"}
_SHOWN = {"trials", "device", "ceilings", "load_before", "began", "worker", "no_sandbox"}


@dataclass(frozen=True)
class TrialLine:
    """One trial: its time by phase in seconds, and readings of the device and the host."""

    what: str
    seconds: tuple[tuple[str, float], ...]
    timed_s: float | None  # part of the rounds: what their samples took
    load: str  # of the host, at the start and at the end
    sm_mhz: str
    memory_mhz: str
    power_w: str
    temperature_c: str
    throttled: str
    dropped: str  # how many rounds did not count because the device was throttled, and why

    @property
    def total_s(self) -> float:
        return sum(spent for _, spent in self.seconds)


def trials(telemetry: Mapping[str, Any]) -> tuple[TrialLine, ...]:
    """Return every trial in order, without those stored by an older version."""
    return tuple(_trial(one) for one in _maps(telemetry.get("trials")))


def board(telemetry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the device's name, driver, UUID and modes."""
    device = telemetry.get("device")
    lines = [(_named(key), _said(value)) for key, value in _mapping(device).items() if value is not None]
    gpus = [reading for one in _maps(telemetry.get("trials")) for reading in _gpus(one)]
    for key, name in _BOARD.items():
        seen = list(dict.fromkeys(_said(gpu[key]) for gpu in gpus if gpu.get(key) is not None))
        if seen and key not in _mapping(device):
            lines.append((name, ", ".join(seen)))
    return lines


def rest(telemetry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the telemetry that is not shown otherwise."""
    return {key: value for key, value in telemetry.items() if key not in _SHOWN}


def _trial(one: Mapping[str, Any]) -> TrialLine:
    readings, gpus = _maps(one.get("telemetry")), _gpus(one)
    loads = [load for reading in readings if (load := _load(reading)) is not None]
    seconds = {what: number(spent) for what, spent in _mapping(one.get("seconds")).items()}
    return TrialLine(
        what=str(one.get("what", "trial")),
        seconds=tuple((what, spent) for what, spent in seconds.items() if spent and what != "timed"),
        timed_s=seconds.get("timed"),
        load=f"{digits(loads[0])} → {digits(loads[-1])}" if loads else "–",
        sm_mhz=_range(gpu.get("sm_mhz") for gpu in gpus),
        memory_mhz=_range(gpu.get("memory_mhz") for gpu in gpus),
        power_w=_range(gpu.get("power_w") for gpu in gpus),
        temperature_c=_range(gpu.get("temperature_c") for gpu in gpus),
        throttled=_throttled(gpus),
        dropped=_dropped(readings),
    )


def _throttled(gpus: Sequence[Mapping[str, Any]]) -> str:
    """`sw_power_cap in 3 of 40 readings`."""
    reasons = Counter(
        str(reason)
        for gpu in gpus
        for reason in (gpu["throttle"] if isinstance(gpu.get("throttle"), list) else ())
        if reason not in _HARMLESS
    )
    if not gpus:
        return "–"
    return ", ".join(f"{reason} in {n} of {len(gpus)} readings" for reason, n in reasons.most_common()) or "never"


def _dropped(readings: Sequence[Mapping[str, Any]]) -> str:
    dropped = [reading for reading in readings if reading.get("when") == "dropped a round"]
    reasons = dict.fromkeys(str(reason) for one in dropped for reason in one.get("reasons") or ())
    return f"{len(dropped)} ({', '.join(reasons)})" if reasons else str(len(dropped))


def _range(values: Iterable[Any]) -> str:
    """`1,965 to 1,980`, or one figure where it never moved."""
    known = [value for one in values if (value := number(one)) is not None]
    if not known:
        return "–"
    ends = dict.fromkeys(f"{value:,.0f}" for value in (min(known), max(known)))
    return " to ".join(ends)


def _load(reading: Mapping[str, Any]) -> float | None:
    """Return the one-minute load average."""
    load = _mapping(reading.get("host")).get("load")
    return number(load[0]) if isinstance(load, list) and load else None


def _gpus(trial: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for reading in _maps(trial.get("telemetry")) if (gpu := _mapping(reading.get("gpu")))]


def _named(key: str) -> str:
    words = key.replace("_", " ")
    return _NAMES.get(key, words[:1].upper() + words[1:])


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
