"""Detect performance regressions of GPU kernels.

Exit codes: 0 success; 1 a regression; 2 an infrastructure or usage error; 3 undecided: nothing bad was found, but not
every case could be decided; 125 the revision cannot be measured; 141 the reader closed the output.  With several
devices, the first of 1, 125, 2 and 3 that occurs.  For `facts`: 1 a limit is broken, 125 the head does not build.
"""

import sys
import traceback
from typing import NoReturn

import typer
from rich.text import Text
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from service.commands import machine, runs, serve
from service.commands.bisect import bisect, bisection_app
from service.commands.calibration import calibration_app
from service.commands.facts import facts
from service.commands.pipes import CLOSED_PIPE, Commands, PipeClosed, outputs_of_this_process, reader_left
from service.commands.printing import err
from service.commands.regressions import regression_app, regressions_command
from service.commands.replay import replay
from service.commands.status import status
from service.commands.targets import target_app
from service.errors import ServiceError
from service.log import set_up_logging
from service.settings import settings

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
for command in (serve.up, serve.demo, machine.doctor, serve.api, serve.worker, serve.control):
    app.command()(command)
app.command()(runs.run)
app.command("report")(runs.report_command)
app.command()(facts)
app.command()(runs.backfill)
app.command("log")(runs.log_command)
app.command()(runs.cancel)
app.command()(runs.approve)
app.command()(status)
app.command()(bisect)
app.command("regressions")(regressions_command)
app.command()(replay)
app.add_typer(target_app, name="target")
app.add_typer(machine.stack_app, name="stack")
app.add_typer(machine.db_app, name="db")
app.add_typer(bisection_app, name="bisection")
app.add_typer(regression_app, name="regression")
app.add_typer(calibration_app, name="calibration")


def main() -> None:
    """Run a command.  An expected error is printed as one sentence, without a traceback."""
    outputs = outputs_of_this_process()
    try:
        _run(outputs)
    finally:
        if reader_left(outputs):
            sys.exit(CLOSED_PIPE)


def _run(outputs: tuple[int, ...]) -> None:
    set_up_logging()
    try:
        app()
    except ServiceError as error:
        _fail(str(error))
    except DBAPIError as error:
        where = make_url(settings().database).render_as_string(hide_password=True)
        hint = "Start kernelwatch once (`kernelwatch up`), or migrate the database with `kernelwatch db upgrade`."
        _fail(f"The database {where} reports an error: {error.orig}. {hint}")
    except Exception as error:
        if not (isinstance(error, PipeClosed) and reader_left(outputs)):
            traceback.print_exc()
        sys.exit(2)  # Python's own 1 would mean a regression


def _fail(message: str) -> NoReturn:
    err.print(Text("kernelwatch: ", style="red"), message, soft_wrap=True, markup=False)
    sys.exit(2)


if __name__ == "__main__":
    main()
