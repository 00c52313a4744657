"""State of the device and of the host during a measurement.  Torch-free; without NVML only the host is read."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Throttle reasons that make a round differ from its neighbours.  The power cap is only recorded: a board may stay at
# its cap during a whole session, and then every round is equally slow.
_SPOILING = {
    "hw_slowdown": 0x08,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
_HARMLESS = {"idle": 0x01, "clocks_setting": 0x02, "sw_power_cap": 0x04, "sync_boost": 0x10, "display": 0x100}
# Counters of throttled time, by NVML's number (nvmlPerfPolicyType_t).  Throttle reasons are visible only while they
# last, and are read between rounds, when the device is idle.  Power is only recorded, as above.
_COUNTERS = {"power": 0, "thermal": 1}


def host() -> dict[str, Any]:
    """Load averages, cores that this process may use, and the frequency of the first in MHz if Linux reports it."""
    reading: dict[str, Any] = {"load": list(os.getloadavg()), "cores": sorted(os.sched_getaffinity(0))}
    try:
        with open(f"/sys/devices/system/cpu/cpu{reading['cores'][0]}/cpufreq/scaling_cur_freq") as file:
            reading["mhz"] = int(file.read()) // 1000
    except (OSError, ValueError):
        pass
    return reading


@dataclass(frozen=True)
class Watch:
    """Reads a device: `whole` everything, `glance` only what may spoil a round (rounds follow each other quickly)."""

    whole: Callable[[], dict[str, Any]]
    glance: Callable[[], dict[str, Any]]


def watch(uuid: str | None) -> Watch:
    """Read the GPU with this UUID and the host; only the host if NVML is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = _found(pynvml, uuid)
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        return Watch(lambda: {"host": host(), "not_read": {"nvml": reason}}, dict)
    return Watch(
        lambda: {"host": host(), "gpu": {"uuid": uuid, "driver": driver, **_gpu(pynvml, gpu)}},
        lambda: {"gpu": _gpu(pynvml, gpu, ("throttle", "slowed_ns", "sm_mhz"), ("thermal",))},
    )


def driver() -> str | None:
    """The version of NVIDIA's kernel module; None without one."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return None


def spoiled(reading: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The reasons why a round between two readings does not count."""
    gpu = reading.get("gpu", {})
    reasons = [reason for reason in gpu.get("throttle", ()) if reason in _SPOILING]
    now = gpu.get("slowed_ns", {}).get("thermal")
    then = before.get("gpu", {}).get("slowed_ns", {}).get("thermal")
    if now is not None and then is not None and now > then:
        reasons.append("thermal_counter")
    return reasons


def _found(nvml: Any, uuid: str | None) -> Any:
    if uuid is None:
        raise LookupError("no GPU")
    text = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return nvml.nvmlDeviceGetHandleByUUID(text.encode())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gpu(nvml: Any, gpu: Any, wanted: Sequence[str] = (), counters: Sequence[str] = tuple(_COUNTERS)) -> dict[str, Any]:
    """The values that this board reports: boards refuse some queries, which must not fail a measurement."""

    def bits() -> list[str]:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return [name for name, bit in {**_SPOILING, **_HARMLESS}.items() if reasons & bit]

    def slowed() -> dict[str, int]:
        read = {name: nvml.nvmlDeviceGetViolationStatus(gpu, _COUNTERS[name]) for name in counters}
        return {name: int(status.violationTime) for name, status in read.items()}

    queries: dict[str, Callable[[], Any]] = {
        "throttle": bits,
        "slowed_ns": slowed,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "pstate": lambda: nvml.nvmlDeviceGetPerformanceState(gpu),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
        "others": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    }
    reading: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, query in queries.items():
        if wanted and name not in wanted:
            continue
        try:
            reading[name] = query()
        except Exception as refusal:
            refused[name] = f"{type(refusal).__name__}: {refusal}"[:100]
    if refused and not wanted:  # a board without throttle reasons may still have been throttled
        reading["not_read"] = refused
    return reading
