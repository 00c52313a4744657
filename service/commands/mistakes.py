"""How a command ends early: mistakes in one sentence that says how to fix them, and a reader that went away.

SIGPIPE itself stays ignored: it would end workers and servers that write to pipes and sockets of their own.
"""

import contextlib
import errno
import os
import select
import sys
import traceback
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NoReturn

import typer
from typer._click import exceptions as usage

from service.domain.text import listed, printable
from service.errors import BadInput

USAGE = 2  # the exit code
_NO_SPACE = " Free space on its disk."
_NO_FOLDER = " Make its folder exist."
_NO_RIGHT = " Let the user that runs kernelwatch write there."
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
}


class UnknownCommand(usage.UsageError):
    def __init__(self, context: Any, word: str, known: list[str]) -> None:
        near = get_close_matches(word, known, n=1, cutoff=0.5)
        more = f" Did you mean {_alternatives(near)}?" if near else _help(context)
        super().__init__(f"There is no command `{context.command_path} {word}`.{more}", context)


class TooManyArguments(usage.UsageError):
    def __init__(self, context: Any, rest: list[str]) -> None:
        more = listed([f"`{one}`" for one in rest])
        super().__init__(f"{_path(context)} takes fewer arguments: {more} is too much.{_help(context)}", context)


def only_here(server: str, *, by_option: bool) -> BadInput:
    """The error of a command that cannot be given to a server."""
    how = "leave out --server" if by_option else "add `--server local`"
    return BadInput(f"This command works on this machine, not on {server}: {how}, or run it on the server's machine.")


def leave(result: object) -> NoReturn:
    """Exit with the code of `typer.Exit`; what a command returned itself is no code."""
    sys.exit(result if isinstance(result, int) and not isinstance(result, bool) else 0)


def fail(message: str) -> NoReturn:
    """Print an error to stderr and exit."""
    from rich.text import Text

    from service.commands.output.console import err

    err.print(Text("kernelwatch: ", style="red"), printable(message), soft_wrap=True, markup=False, sep="")
    sys.exit(USAGE)


def debugging() -> bool:
    """Whether the operator wants the traceback of each error."""
    return os.environ.get("KERNELWATCH_DEBUG") == "1"


def of_the_machine(error: OSError) -> str:
    """Name the file, the error and its remedy."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}.{_REMEDIES.get(error.errno or 0, '')}"


def unexpected(error: Exception) -> NoReturn:
    """Print an error of kernelwatch itself: one line on a terminal, else a log gets the traceback."""
    if sys.stderr.isatty() and not debugging():
        fail(f"{type(error).__name__}: {error}. This is a mistake of kernelwatch; KERNELWATCH_DEBUG=1 shows the place.")
    if not debugging():  # it was printed
        traceback.print_exception(error)
    sys.exit(USAGE)


def show(error: typer.TyperException) -> NoReturn:
    """Print a mistake.  A command without arguments prints its help."""
    if isinstance(error, usage.NoArgsIsHelpError):
        print(error.format_message())  # noqa: T201
        sys.exit(USAGE)
    fail(sentence(error))


def sentence(error: typer.TyperException) -> str:
    """Say what is wrong with a command line and how to fix it."""
    match error:
        case UnknownCommand() | TooManyArguments():
            return str(error.message)
        case usage.NoSuchOption(ctx=context, option_name=name):
            near = f" Did you mean {_alternatives(error.possibilities)}?" if error.possibilities else _help(context)
            return f"{_path(context)} has no option {name}.{near}"
        case usage.BadOptionUsage(option_name=name):
            return f"{name} needs a value."
        case usage.MissingParameter(param=param, ctx=context) if param is not None:
            return f"{_path(context)} needs {_named(param)}{_meaning(param)}.{_help(context)}"
        case usage.BadParameter(param=param) if param is not None:
            return f"{_named(param)} takes {_wanted(param)}{_given(error)}."
    return error.format_message()


def _alternatives(names: Any) -> str:
    return " or ".join(f"`{one}`" for one in names)


def _path(context: Any) -> str:
    return f"`{context.command_path}`"


def _help(context: Any) -> str:
    return f" See `{context.command_path} --help`."


def _named(param: Any) -> str:
    """An option by its name, an argument by its name in the help."""
    return str(param.opts[0] if param.param_type_name == "option" else (param.metavar or param.name.upper()))


def _meaning(param: Any) -> str:
    return f" ({param.help.rstrip('.')[:1].lower()}{param.help.rstrip('.')[1:]})" if param.help else ""


def _wanted(param: Any) -> str:
    """What a parameter takes, in words."""
    kind = param.type_descriptor
    if kind.is_choice:
        return _either([str(getattr(one, "value", one)) for one in kind.choices])
    if kind.is_datetime:
        form = (kind.parameter_info.formats or ["%Y-%m-%dT%H:%M:%S"])[0]
        return f"a {'time' if '%H' in form else 'day'} such as {datetime(2026, 12, 24, tzinfo=UTC).strftime(form)}"
    if kind.is_path:
        return "an existing path" if kind.parameter_info.exists else "a path"
    low, high = kind.parameter_info.min, kind.parameter_info.max
    name = {int: "a whole number", float: "a number"}.get(kind.annotation, "another value")
    if low is not None and high is not None:
        return f"{name} from {low} to {high}"
    return f"{name} of at least {low}" if low is not None else name


def _either(names: list[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else names[0]


def _given(error: usage.BadParameter) -> str:
    """`, not "soon"`: the value is in the validation error that caused it."""
    errors = getattr(error.__cause__, "errors", None)
    return f", not {errors()[0]['input']!r}" if errors else ""


CLOSED_PIPE = 141  # 128 + SIGPIPE


class PipeClosed(Exception):
    """A write to a pipe without a reader; the pipe need not be an output of this process."""


def outputs_of_this_process() -> tuple[int, ...]:
    """Copy the descriptors of stdout and stderr.  Rich replaces descriptor 1 when it finds its pipe closed."""
    found = list[int]()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed from the start
            found.append(os.dup(descriptor))
    return tuple(found)


def reader_left(outputs: tuple[int, ...]) -> bool:
    """Flush the output and return whether one of these descriptors is a pipe without a reader.

    If so, all further output is discarded, so that the interpreter does not fail on it at exit.
    """
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    poll = select.poll()
    for descriptor in outputs:
        poll.register(descriptor, 0)  # errors are always reported
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return True
