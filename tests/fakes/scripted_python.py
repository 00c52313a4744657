"""An interpreter that plays a contender: real processes and pipes, scripted timings.

It reads `speed.json` from the revision's tree: {"rmsnorm.fwd.4x8.fp32": 100.0, ...} microseconds, or "invalid: why",
"inexact 100.0: why" (invalid for its numbers alone, and timed all the same), "crash" or "hang";
"wide:rmsnorm.fwd.4x8.fp32" is of the provider `wide` alone.  Counts are exact, 1 by default.  The facts of
`facts.json`, {"rmsnorm.fwd.4x8.fp32.breaks": {"break_reasons": […]}}, are added.  Anything else that it is asked to
run, it runs as the real interpreter would.  `source.json`, where there is one, says where its code is defined,
and `code.json` has its kernels with their texts and figures: [{"name": "_forward", "ptx": "…", "registers": 40}].
"""

import hashlib
import json
import os
import random
import sys
import time

COUNTS = (".recompiles", ".breaks", ".kernels")


def play() -> None:
    random.seed()
    placement = 1 + noise(0.002)  # a trial has its own luck with memory
    speed: dict[str, object] = {}
    where: dict[str, object] = {}
    kernels: list[dict[str, object]] = []
    facts: dict[str, dict[str, object]] = {}
    for folder in f"{os.environ.get('KERNELWATCH_TREE')}:{os.environ.get('PYTHONPATH')}".split(":"):
        if folder and os.path.exists(os.path.join(folder, "speed.json")):
            with open(os.path.join(folder, "speed.json")) as file:
                speed = json.load(file)
        if folder and os.path.exists(os.path.join(folder, "facts.json")):
            with open(os.path.join(folder, "facts.json")) as file:
                facts = json.load(file)
        if folder and os.path.exists(os.path.join(folder, "source.json")):
            with open(os.path.join(folder, "source.json")) as file:
                where = {"source": json.load(file)}
        if folder and os.path.exists(os.path.join(folder, "code.json")):
            with open(os.path.join(folder, "code.json")) as file:
                kernels = json.load(file)
            where |= {"triton": [{"name": one["name"], "sass": hash_of(one), **figures(one)} for one in kernels]}
    case, builtin, provider = "", False, ""
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, object] = {"ok": True}
        if asked["do"] == "start":
            spec = asked["provider"]
            builtin, provider = bool(spec["builtin"]) and not spec["of_revision"], spec["name"]
            answer = {"ready": True, "stack": {"torch": "2.13.0", "scripted": "1"}, "device": {"name": "scripted"}}
        elif asked["do"] == "prepare":
            case = asked["case"]
            says = 100.0 if builtin else speed.get(f"{provider}:{case}", speed.get(case, 100.0))
            wrong = isinstance(says, str) and says.startswith(("invalid", "inexact"))
            answer = {"state": "invalid", "reason": str(says).split(": ", 1)[1]} if wrong else {"state": "measured"}
            answer["inexact"] = str(says).startswith("inexact")
            answer["facts"] = {"code": f"{says}", "kernels": 1, **where, **({} if builtin else facts.get(case, {}))}
        elif asked["do"] == "texts":
            trace = json.dumps({"traceEvents": [{"name": str(speed.get(case)), "ph": "X", "ts": 0, "dur": 1}]})
            answer = {"text": trace if asked["kind"] == "trace" else kernels[asked["kernel"]].get(asked["kind"], "")}
        elif asked["do"] == "turn":
            usual = 1 if case.endswith(COUNTS) else 100.0
            says = usual if builtin else speed.get(f"{provider}:{case}", speed.get(case, usual))
            if says == "crash":
                os.abort()
            if says == "hang":
                time.sleep(3600)
            if str(says).startswith("inexact"):
                says = str(says).split()[1].rstrip(":")
            moved = [placement * (1 + noise(0.003)) for _ in range(asked["timed"])]
            answer = {"samples": [float(says) * (1 if case.endswith(COUNTS) else one) for one in moved]}
        elif asked["do"] == "check":
            answer = {"state": "measured", "reason": None}
        print(json.dumps(answer), flush=True)


def noise(deviation: float) -> float:
    """Normal, without what one of a thousand processes draws: a test of something else would see its controls fail."""
    return max(-2 * deviation, min(2 * deviation, random.gauss(0, deviation)))


def figures(kernel: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in kernel.items() if not isinstance(value, str)}


def hash_of(kernel: object) -> str:
    return hashlib.sha256(json.dumps(kernel, sort_keys=True).encode()).hexdigest()[:16]


if any(argument.endswith("contender/__main__.py") for argument in sys.argv[1:]):
    play()
else:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
