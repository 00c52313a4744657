"""Detect performance regressions of GPU kernels.

Exit codes: 0 success, or a gate that warns; 1 a regression; 2 an infrastructure or usage error; 3 undecided: nothing
bad was found, but not every case could be decided; 125 the revision cannot be measured; 141 the reader closed the
output.  With several devices, the first of 1, 125, 2 and 3 that occurs.  For `facts`: 1 a limit is broken, 125 the
head does not build.
"""

import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwatch.extras import exit_for
from service.commands import connection, mistakes
from service.commands.arguments import this_person
from service.commands.mistakes import CLOSED_PIPE, PipeClosed, outputs_of_this_process, reader_left
from service.commands.nouns import Root, importing
from service.domain.access import local
from service.errors import ServiceError
from service.ledger.acting import as_actor

if TYPE_CHECKING:
    import httpx

NAME = "kernelwatch"


def _this_machine(person: str | None) -> "httpx.BaseTransport":
    with importing():
        from service.commands.connection.local import InProcess
    return InProcess(person)


connection.answer_here_with(_this_machine)
app = typer.Typer(
    name=NAME,
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=__doc__,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from service.version import product_version

        print(NAME, product_version())  # noqa: T201
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command.  An expected error is printed as one sentence, without a traceback."""
    outputs = outputs_of_this_process()
    try:
        _run(outputs)
    finally:
        if reader_left(outputs):
            sys.exit(CLOSED_PIPE)


def _prepare() -> None:
    from service.log import set_up_logging

    set_up_logging()


def _run(outputs: tuple[int, ...]) -> None:
    try:
        with as_actor(local(this_person())):
            app(prog_name=NAME, obj=_prepare)
    except ServiceError as error:
        mistakes.fail(str(error))
    except ModuleNotFoundError as missing:
        exit_for(missing)
    except Exception as error:
        if mistakes.debugging():
            traceback.print_exc()
        # Modules that were not loaded have raised nothing, and loading them here would slow down every mistake.
        if (client := sys.modules.get("kernelwatch.client.errors")) and isinstance(error, client.KernelwatchError):
            mistakes.fail(str(error))
        if (database := sys.modules.get("sqlalchemy.exc")) and isinstance(error, database.DBAPIError):
            from service.db.engine import describe

            mistakes.fail(describe(error))
        if isinstance(error, OSError):
            mistakes.fail(mistakes.of_the_machine(error))
        if not (isinstance(error, PipeClosed) and reader_left(outputs)):
            mistakes.unexpected(error)
        sys.exit(mistakes.USAGE)  # Python's own 1 would mean a regression


if __name__ == "__main__":
    main()
