"""Compile the commits of this folder for a GPU that is not there, and print the facts that a run would record.

A process of its own: Triton and torch see a pretended device from here on.
"""

import json
import sys
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.cases import Case
from kernels.facts.gather import totals
from kernels.facts.offline import Offline


def facts_of_run(answer: dict[str, Any]) -> dict[str, Any]:
    """What is recorded where it runs, from what is known where it is only compiled."""
    assert answer["state"] == "compiled", answer
    facts = answer["facts"]
    kernels = [{**kernel, "shared": kernel["shared_dynamic"]} for kernel in facts["kernels"]]
    kind = "triton" if kernels else "operators"
    calls = facts["operators"]
    code = facts["code"] + str(calls)
    return {"kind": kind, "code": code, "operators": calls, "kernels": len(kernels) + len(calls), **totals(kernels)}


def main(folder: Path) -> None:
    from kernels.providers import open_provider

    sys.path.insert(0, str(folder))
    offline = None
    for module, case, function in json.loads(sys.stdin.read()):
        parsed = Case.parse(case)
        spec = protocol.targets_own("norms", {parsed.key: f"{module}:{function}"})
        if offline is None:
            offline = Offline(spec, "sm_90")
        with offline._mode:
            offline._provider = open_provider(spec)
        offline._cases = {}
        print(json.dumps(facts_of_run(offline.compile(parsed))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
