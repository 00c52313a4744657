"""The commands by name.  The module of a command is imported when the command is used."""

import gc
import importlib
import io
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from service.commands import mistakes
from service.commands.mistakes import PipeClosed
from service.commands.noun import Verbs

Command = TyperCommand | TyperGroup


@contextmanager
def importing() -> Iterator[None]:
    """Of a thousand modules nothing is garbage, and looking for it takes a quarter of their import."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class Entry:
    """A command of the first level; its Typer application is `<name>_app` of its module."""

    name: str
    module: str
    panel: str
    help: str  # the first sentence of the command's own help, so that `--help` imports no command

    def load(self) -> Command:
        with importing():
            module = importlib.import_module(f"{__name__.rpartition('.')[0]}.{self.module}")
        command: Any = get_command(getattr(module, f"{self.name}_app"))
        command.name = self.name
        return command  # type: ignore[no-any-return]


_MEASURE, _TRIAGE, _EXCHANGE, _ACCESS = "Measure", "Triage", "Exchange data", "Control access"
_SERVE, _PREPARE = "Serve", "Prepare this machine"
NOUNS = (
    Entry("target", "measure.target", _MEASURE, "Manage targets: watched repositories and packages."),
    Entry("run", "measure.run", _MEASURE, "Measure revisions, and follow the runs that do it."),
    Entry("report", "measure.run", _MEASURE, "Print the result of a run."),
    Entry("queue", "measure.run", _MEASURE, "Show runs in progress, then waiting runs in their order."),
    Entry("init", "measure.init", _MEASURE, "Find the benchmarks of a checkout and write a recipe that measures them."),
    Entry("compare", "measure.compare", _MEASURE, "Measure two revisions of a checkout on this machine."),
    Entry("isolate", "measure.compare", _MEASURE, "Find which component of a new stack made a revision slower."),
    Entry("facts", "measure.compare", _MEASURE, "Compile two revisions without a GPU and show what changed."),
    Entry("study", "measure.study", _MEASURE, "Measure published results again, and read what follows."),
    Entry("status", "measure.run", _MEASURE, "Show targets, workers and the queue."),
    Entry("regression", "triage.regression", _TRIAGE, "List, show and change confirmed regressions."),
    Entry("incident", "triage.regression", _TRIAGE, "List and show incidents: regressions with one cause."),
    Entry("bisection", "triage.regression", _TRIAGE, "Find the revision that made a case slower."),
    Entry("calibration", "triage.policy", _TRIAGE, "Compare equal code, and quarantine cases."),
    Entry("weekly", "triage.news", _TRIAGE, "Print what moved in a week, by time at stake."),
    Entry("policy", "triage.policy", _TRIAGE, "Show a policy, or apply another one to stored runs."),
    Entry(
        "subscription", "triage.news", _TRIAGE, "Send notices of events to Slack, mail, webhooks and other channels."
    ),
    Entry(
        "export",
        "transfer.exporting",
        _EXCHANGE,
        "Write everything of one kind to a file, a figure to explore, or public boards as a web site.",
    ),
    Entry("import", "transfer.importing", _EXCHANGE, "Send measurements made elsewhere, as series of their own."),
    Entry("login", "access", _ACCESS, "Use a server for all commands, with a key."),
    Entry("logout", "access", _ACCESS, "Forget the key of a server; commands use this machine again."),
    Entry("key", "access", _ACCESS, "Manage API keys."),
    Entry("person", "access", _ACCESS, "Manage people who sign in."),
    Entry("audit", "access", _ACCESS, "List what was changed, by whom and from where, the newest first."),
    Entry("up", "machine.serve", _SERVE, "Run API, dashboard, worker and control on this machine until Ctrl-C."),
    Entry("demo", "machine.serve", _SERVE, "Add the demo target and queue runs for its history."),
    Entry(
        "sample", "transfer.importing", _SERVE, "Load or remove the sample: a repository as it was measured on an H200."
    ),
    Entry("api", "machine.serve", _SERVE, "Serve the API and the dashboard."),
    Entry("control", "machine.serve", _SERVE, "Run the periodic tasks of the service."),
    Entry("worker", "machine.worker", _SERVE, "Start, list, pause and drain workers."),
    Entry("doctor", "machine.worker", _PREPARE, "Check this machine, and print a fix for what is missing."),
    Entry("stack", "machine.worker", _PREPARE, "Manage base environments: a Python with torch."),
    Entry("db", "machine.db", _PREPARE, "Manage the database."),
)


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each loaded when it is read."""

    def __init__(self, nouns: tuple[Entry, ...]) -> None:
        self._nouns = {one.name: one for one in nouns}
        self._loaded = dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._nouns[name].load()
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        self._loaded.pop(name, None)
        del self._nouns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nouns)

    def __len__(self) -> int:
        return len(self._nouns)

    def __contains__(self, name: object) -> bool:
        return name in self._nouns


class Root(Verbs):
    """`kernelwatch`: it loads no command that is not used, and says what is wrong with a command line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(NOUNS)

    def main(self, *given: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line.  A mistake in it is printed as one sentence, and exits with 2."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # the exit code is the verdict, whatever the terminal can show
        if not standalone_mode:
            return self._main(*given, **extra)
        try:
            mistakes.leave(self._main(*given, **extra))
        except typer.TyperException as error:
            mistakes.show(error)
        except typer.Abort:
            mistakes.fail("Nothing was done.")

    def _main(self, *given: Any, **extra: Any) -> Any:
        run: Any = super().main
        return run(*given, standalone_mode=False, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            PipeClosed: Instead of BrokenPipeError, for which Typer exits with 1: that would mean a regression.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed(str(error)) from error

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the table of commands in its sections."""
        widest = max(len(one.name) for one in NOUNS)
        for panel, nouns in groupby(NOUNS, attrgetter("panel")):
            with formatter.section(panel):
                formatter.write_dl([(one.name.ljust(widest), one.help) for one in nouns])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete a command's name without loading any."""
        from typer._click.shell_completion import CompletionItem

        names = [CompletionItem(one.name, help=one.help) for one in NOUNS if one.name.startswith(incomplete)]
        return names if names and not incomplete.startswith("-") else super().shell_complete(ctx, incomplete)
