"""Facts without a GPU for cases of known regressions of generated kernels, with the installed torch and Triton.

python -m benchmarks.kernels.facts_known [--arch sm_90 --arch sm_100]
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kernels.trials import open_process, say
from kernels.arena import protocol
from kernels.cases import Case

KNOWN_REGRESSIONS = {
    "pytorch 185814: the block of rows grows with their number and not with their width": (
        "inductor",
        [f"rmsnorm.bwd.{rows}x16384.bf16" for rows in (32768, 65536, 131072, 262144)],
    ),
    "Several kernels instead of one pass over dy and x": (
        "inductor",
        [f"rmsnorm.bwd.{rows}x1024.bf16-fp32" for rows in (1024, 4096, 16384, 65536)],
    ),
    "16-byte loads where 16 does not divide the columns or the stride": (
        "triton",
        [f"rmsnorm.fwd.4096x{shape}.bf16" for shape in ("1024", "1152", "1032", "1025", "1024s1032", "1024s1040")],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append")
    architectures = parser.parse_args().arch or ["sm_90", "sm_100"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ[name] = str(Path(folder) / name.lower())
        for number, (title, (provider, cases)) in enumerate(KNOWN_REGRESSIONS.items()):
            say(f"\n{title}")
            for architecture in architectures:
                _report(provider, architecture, cases, Path(folder) / f"{number}-{architecture}.log")


def _report(provider: str, architecture: str, cases: list[str], log: Path) -> None:
    channel = open_process([str(protocol.CONTENDER)], log)
    try:
        ready = channel.ask(protocol.start(protocol.built_in(provider), architecture, 1, None), 120)
        if not ready.get("ready"):
            raise RuntimeError(ready.get("reason") or ready.get("error"))
        stack = ready["stack"]
        say(f"  {architecture}, {provider}, torch {stack['torch']}, Triton {stack['triton']}")
        for case in cases:
            answer = channel.ask(protocol.compile(Case.parse(case)), 300)
            say(f"    {case}: {answer.get('state')} {answer.get('reason') or ''}")
            facts = answer.get("facts") or {}
            for kernel in facts.get("refused", ()):
                say(f"      refused: {kernel['over']} ({_settings(kernel)})")
            for kernel in facts.get("kernels", ()):
                say(f"      {_describe(kernel)}")
    finally:
        channel.close()


def _describe(kernel: Mapping[str, Any]) -> str:
    widths = ", ".join(f"{times} of {width}" for width, times in {**kernel["loads"]}.items()) or "none"
    copies = ", ".join(f"{times} of {width}" for width, times in kernel["async_loads"].items())
    return (
        f"{kernel['name'][:44]}: {kernel['registers']} registers, {kernel['spills']} spills, "
        f"{kernel['shared_dynamic']} bytes shared, occupancy {kernel['occupancy']:.0%} ({kernel['limited_by']}), "
        f"loads by bytes: {widths}{f'; to shared memory {copies}' if copies else ''} ({_settings(kernel)})"
    )


def _settings(kernel: Mapping[str, Any]) -> str:
    return ", ".join([f"{kernel['warps']} warps", *(f"{name}={value}" for name, value in kernel["settings"].items())])


if __name__ == "__main__":
    main()
