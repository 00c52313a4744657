"""Wait for runs, and print what they found."""

import time
from collections.abc import Sequence

from kernelwatch.client.models import RunDocument
from service.commands.connection import client
from service.commands.output.progress import progress
from service.commands.output.views import View
from service.commands.views import reports, runs
from service.domain.states import worst_exit_code

EVERY_S = 1.0


def until_done(ids: Sequence[int]) -> list[RunDocument]:
    """Wait until all runs have ended, or wait for approval, and return them."""
    with progress() as shown:
        while True:
            found = [client().runs.get(one) for one in ids]
            if not any(one.state in runs.OPEN and one.state != "held" for one in found):
                return found
            left_s = {one.id: one.eta_s for one in client().queue.list() if one.id in ids}
            for one in found:
                shown.show(one.id, f"run {one.id}: {one.stage or one.state}", left_s.get(one.id))
            time.sleep(EVERY_S)


def results(found: Sequence[RunDocument]) -> View:
    """Their results, with the gravest exit code."""
    code = worst_exit_code(one.gate.exit_code for one in found)
    return reports.several(found, code, lambda: comment([one.id for one in found]))


def comment(ids: Sequence[int]) -> str:
    """Their results as one comment."""
    first, *others = ids
    return client().runs.comment(first, also=others or None)
