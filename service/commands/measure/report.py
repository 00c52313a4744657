"""`kernelwatch report`: print the result of a run."""

from dataclasses import replace
from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import RunNumber
from service.commands.connection import client
from service.commands.measure.fail_on import FailOn, exit_code, read_findings
from service.commands.noun import single
from service.commands.output.views import View


def report(
    run_id: RunNumber,
    every: Annotated[bool, typer.Option("--all", help="List every case, not only those that changed.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Include the tables of `facts` in JSON: megabytes for a large suite.")
    ] = False,
    fail_on: FailOn = None,
) -> View:
    """Print the result of a run.

    Exit codes: 0 passed, 1 a confirmed regression, 2 not measured, 3 undecided, 125 the revision cannot be measured.
    """
    wanted = read_findings(fail_on)
    runs = client().runs
    found = runs.get(run_id, tables=tables or None)
    view = views.reports.report(found, every=every, markdown=lambda: runs.comment(run_id))
    return replace(view, code=exit_code([found], wanted))


app = single(report)
