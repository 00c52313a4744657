"""Measure a revision on a server and exit with the code of its gate, as a step of continuous integration does.

    KERNELWATCH_KEY=kw_… python gate.py https://kernelwatch.example.org norms "$(git rev-parse HEAD)"

The key needs the scope `run:norms`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from kernelwatch.client import Client, KernelwatchError
from kernelwatch.client.models import RunDocument

FAILED = 2  # nothing is known about the revision
# A regression, then what cannot be measured, what was not measured, and what is undecided; as the command does.
MOST_SEVERE_FIRST = (1, 125, FAILED, 3, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a revision and judge it.")
    parser.add_argument("server")
    parser.add_argument("target")
    parser.add_argument("revision")
    given = parser.parse_args()
    try:
        with Client(given.server, os.environ.get("KERNELWATCH_KEY")) as client:
            runs = measured(client, given.target, given.revision)
    except KernelwatchError as error:
        print(error, file=sys.stderr)
        return FAILED
    for run in runs:
        print_result(run)
    return most_severe([run.gate.exit_code for run in runs])


def measured(client: Client, target: str, revision: str) -> list[RunDocument]:
    """The runs of the revision, one for each device, finished or held.  What was measured is not measured again."""
    runs = client.runs.start(target, revision).items
    for run in runs:
        for progress in client.runs.events(run.id):
            print(f"run {run.id} on {run.device}: {progress.stage or progress.state}")
            if progress.state == "held":  # until a maintainer approves it, which no job waits for
                break
    return [client.runs.get(run.id) for run in runs]


def most_severe(codes: Sequence[int]) -> int:
    """The code of several devices: the first of `MOST_SEVERE_FIRST` that occurs."""
    return next((code for code in MOST_SEVERE_FIRST if code in codes), 0)


def print_result(run: RunDocument) -> None:
    """The headline, and every case that became slower."""
    print(f"{run.device}: {run.headline} {run.url}")
    for verdict in run.verdicts:
        if verdict.baseline_kind == "parent" and verdict.outcome == "regression":
            print(f"  {verdict.provider} {verdict.case}: {verdict.change}")


if __name__ == "__main__":
    sys.exit(main())
