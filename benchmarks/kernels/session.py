"""Seconds of a session by phase, as a worker runs it: head, parent and control of the same code, and SOTA.

    make bench-session ARGS="--cases 12 200 --out session.json"

On a GPU head and parent are kernelwatch's Triton kernels and SOTA is Quack (QUACK_PATH names where it is); on a CPU
they are eager and Inductor, in three trials.  Compile caches are warm after the first session; `--cold` begins each
with empty ones.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.kernels.trials import contender, say
from benchmarks.power import Awake
from kernels.arena.session import Connection, Contender
from kernels.cases import Case, Role
from kernels.suites import SUITES
from service.domain.policy.policy import Policy
from workers.machine import device
from workers.machine.device import DeviceHere
from workers.run.trials import OnDevice, Tally, Trials

FROM = ("quack", "pr101", "models", "small", "awkward", "rmsnorm")
MAX_COLS = 32768
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR", "CUDA_CACHE_PATH")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="*", default=[12], help="a session for each number of cases")
    parser.add_argument("--sessions", type=int, default=1, help="of each number")
    parser.add_argument("--cold", action="store_true", help="begin each session with empty compile caches")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    chosen = parser.parse_args()
    [here, *_] = device.ask()
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.sessions):
            for count in chosen.cases:
                logs = Path(folder, f"{count}-{number}")
                logs.mkdir()
                if chosen.cold:
                    os.environ |= {name: str(logs / name) for name in CACHES}
                measured.append(session(spread(count, on_gpu=here.name != "cpu"), here, logs, seed=1000 * number))
                if chosen.out:
                    chosen.out.write_text(json.dumps(measured))


def spread(count: int, *, on_gpu: bool) -> tuple[Case, ...]:
    """So many cases, spread over a list that begins with the largest; on a CPU small ones."""
    if not on_gpu:
        return tuple(Case.parse(f"rmsnorm.fwd.{64 * (1 + number)}x512.fp32") for number in range(count))
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite] if text.startswith("rmsnorm."))
    texts |= dict.fromkeys(text.replace(".bwd.", ".fwd.") for text in texts)
    for dtypes in ("bf16", "fp16"):  # also with weights of the same dtype
        texts |= dict.fromkeys(text.replace("bf16-fp32", dtypes) for text in texts)
    cases = [case for case in map(Case.parse, texts) if case.cols <= MAX_COLS]
    return tuple(cases[:: max(1, len(cases) // count)][:count])


def session(cases: tuple[Case, ...], here: DeviceHere, logs: Path, *, seed: int) -> dict[str, Any]:
    """Run a session to its end, and say where its seconds went."""
    started = Counter[str]()

    def counted(one: Contender) -> Contender:
        def start() -> Connection:
            started[one.label] += 1
            return one.start()

        return replace(one, start=start)

    own, sota = ("eager", "inductor") if here.name == "cpu" else ("triton", "quack")
    contenders = [counted(contender(role, own, logs)) for role in (Role.HEAD, Role.PARENT, Role.CONTROL)]
    contenders.append(counted(contender(Role.SOTA, sota, logs)))
    began, cpu_before = time.monotonic(), _cpu_s()
    tally = Tally(contenders, cases)
    # A busy processor leaves cases undecided, which would ask for up to 28 trials.
    policy = Policy(screening=(3,), confirmation=(2,)) if here.name == "cpu" else Policy()
    trials = Trials(tally, [OnDevice(here, contenders)], policy, Awake(), seed=seed)
    trials.until_decided(cases)
    wall, cpu = time.monotonic() - began, _cpu_s() - cpu_before
    seconds = Counter[str]()
    for trial in trials.spent:
        seconds.update(trial["seconds"])
    say(
        f"{len(cases)} cases on {here.name}, {len(trials.spent)} trials: {wall:.1f} s; {started.total()} processes, "
        f"{cpu:.0f} s of CPU time; " + ", ".join(f"{what} {s:.1f} s" for what, s in seconds.items())
    )
    states = Counter(str(result.state) for result in tally.taken())
    return {
        "device": here.description,
        "cases": list(map(str, cases)),
        "wall_s": wall,
        "cpu_s": cpu,
        "processes": dict(started),
        "trials": [{"what": trial["what"], "seconds": trial["seconds"]} for trial in trials.spent],
        "states": dict(states),
    }


def _cpu_s() -> float:
    """CPU time of this process and of those that it started and that have ended."""
    return sum(time for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) for time in resource.getrusage(who)[:2])


if __name__ == "__main__":
    main()
