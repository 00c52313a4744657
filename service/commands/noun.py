"""What a module of commands is made of: a noun with verbs, or a command of its own.

A verb that prints returns a View: the options `--format` and `--watch`, and the printing, are added here, as is
`--server`.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from service.commands import connection, mistakes
from service.commands.output.formats import Format, formatted, show
from service.commands.output.views import View

_PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}


class Where(Enum):
    """Where a verb works."""

    ANYWHERE = "through the server that is named, else on this machine"
    HERE = "on this machine, even if the environment names a server"
    ONLY_HERE = "on the machine of the database; never if a server is named"


Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="A server, or `local` for this machine.  Default: that of `login`."),
]
NoServer = Annotated[str | None, typer.Option("--server", metavar="URL", hidden=True)]
Watched = Annotated[bool, typer.Option("--watch", help="Print it again whenever it changes, until Ctrl-C.")]
Command = Callable[..., View | None]


class Verb(TyperCommand):
    """A command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; `ctx.obj` prepares the process for work on this machine."""
        with connection.preparing(ctx.obj):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise a mistake that names the arguments that are too many."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise mistakes.TooManyArguments(ctx, rest)
        return rest


class Verbs(TyperGroup):
    """A group of commands; an unknown one is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise mistakes.UnknownCommand(ctx, args[0], list(self.commands))
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write each command with the first sentence of its help, uncut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(one.help)) for name, one in self.commands.items()])


class Noun(typer.Typer):
    """A noun with verbs, or a single command."""

    def __init__(self, about: str | None = None, where: Where = Where.ANYWHERE) -> None:
        super().__init__(cls=Verbs, no_args_is_help=True, help=about, **_PLAIN)
        self.where = where
        if about is not None:
            self.callback()(lambda: None)  # a noun with one verb stays a noun

    def verb(
        self,
        name: str | None = None,
        *,
        watch: bool = False,
        where: Where | None = None,
        formats: type[StrEnum] = Format,
    ) -> Callable[..., Any]:
        """Add a command.  One that returns a View prints it in one of these formats."""

        def add(function: Command) -> Command:
            command = _command(function, watch=watch, where=where or self.where, formats=formats)
            self.command(name, cls=Verb)(command)
            return function

        return add


def single(
    function: Command, *, watch: bool = False, where: Where = Where.ANYWHERE, formats: type[StrEnum] = Format
) -> Noun:
    """Return the application of a command without verbs."""
    app = Noun(where=where)
    app.verb(watch=watch, formats=formats)(function)
    return app


def first_sentence(text: str | None) -> str:
    """Return a help text up to its first full stop."""
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def _command(function: Command, *, watch: bool, where: Where, formats: type[StrEnum]) -> Callable[..., None]:
    """Make the function that Typer calls: it has the options that are common to many commands."""
    signature = inspect.signature(function)
    added = list[inspect.Parameter]()

    def add(name: str, annotation: Any, default: Any) -> None:
        added.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    if signature.return_annotation not in (None, "None"):
        add("form", formatted(formats), formats(Format.TABLE))
    if watch:
        add("watched", Watched, False)
    add("server", Server if where is Where.ANYWHERE else NoServer, None)

    @functools.wraps(function)
    def command(
        *given: Any, server: str | None, form: StrEnum = Format.TABLE, watched: bool = False, **own: Any
    ) -> None:
        if where is not Where.ANYWHERE:
            _check_here(server, where)
            server = connection.HERE
            connection.prepare()
        with connection.connected(server):
            if watched:
                from service.commands.output.live import keep_watching

                code = keep_watching(lambda: _view(function(*given, **own)), form)
            else:
                view = function(*given, **own)
                code = view.code if view else 0
                if view is not None:
                    show(view, form)
        if code:
            sys.exit(code)

    parameters = [*signature.parameters.values(), *added]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


def _view(found: View | None) -> View:
    assert found is not None  # noqa: S101  # only commands that print are watched
    return found


def _check_here(server: str | None, where: Where) -> None:
    """Raise BadInput if a server is named for a command that does not use one."""
    name = connection.named(server) if where is Where.ONLY_HERE or server is not None else None
    if name is not None:
        raise mistakes.only_here(name, by_option=server is not None)
