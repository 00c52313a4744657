"""Duration of the facts of 200 cases for two architectures without a GPU, with cold and warm caches, by step.

python -m benchmarks.kernels.facts_speed [--provider triton] [--count 200] [--out FILE]
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kernels.trials import say
from kernels.cases import Case
from kernels.suites import SUITES
from tests.kernels.norms.compiling import compiled

ARCHITECTURES = ("sm_90", "sm_100")
FROM = ("quack", "pr101", "models", "small", "awkward", "norms")
GOALS_S = {"cold": 60, "warm": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="triton")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    cases = cases_of(chosen.count)
    found: dict[str, Any] = {"provider": chosen.provider, "cases": [str(case) for case in cases]}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ[name] = str(Path(folder) / name.lower())
        for when in ("cold", "warm"):
            found[when] = _measured(when, chosen.provider, cases, Path(folder))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1))


def cases_of(count: int) -> list[Case]:
    """RMSNorm at the shapes of every suite: forward, backward, then with an fp32 weight, then in fp16."""
    texts = dict.fromkeys(text for suite in FROM for text in SUITES.get(suite, ()) if text.startswith("rmsnorm."))
    texts |= dict.fromkeys(text.replace(".fwd.", ".bwd.") for text in texts)
    texts |= dict.fromkeys(f"{text}-fp32" for text in texts if text.endswith(".bf16"))
    texts |= dict.fromkeys(text.replace(".bf16", ".fp16") for text in texts)
    return [Case.parse(text) for text in list(texts)[:count]]


def _measured(when: str, provider: str, cases: Sequence[Case], folder: Path) -> dict[str, Any]:
    """One process for each architecture, at the same time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        answers = list(pool.map(lambda one: compiled(provider, one, cases, folder), ARCHITECTURES))
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"{when}: {len(cases)} cases x {len(ARCHITECTURES)} architectures in {wall:.1f} s, {processor:.1f} s of cores")
    if len(cases) >= 200 and provider == "triton":
        say(f"  goal: {GOALS_S[when]} s")
    figures = {"wall_s": round(wall, 2), "processor_s": round(processor, 2)}
    return figures | {one: _summarise(one, *answer) for one, answer in zip(ARCHITECTURES, answers, strict=True)}


def _summarise(architecture: str, start: float, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    spent = {what: sum(one.get("spent", {}).get(what, 0.0) for one in answers) for what in ("compile", "read")}
    kernels = {kernel["sass"] for one in answers for kernel in (one.get("facts") or {}).get("kernels", ())}
    states = dict(Counter(one.get("state", "error") for one in answers))
    say(
        f"  {architecture}: start {start:.1f} s, compiling {spent['compile']:.1f} s, reading machine code "
        f"{spent['read']:.1f} s; {len(kernels)} different kernels; {states}"
    )
    return {"start_s": round(start, 2), "spent_s": spent, "different_kernels": len(kernels), "states": states}


if __name__ == "__main__":
    main()
