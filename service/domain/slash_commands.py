"""Commands in the comments of pull requests: the table of what there is, and how a first line is read.  Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from service.domain.access import Scope
from service.errors import BadInput

NAME = "/kernelwatch"
_OPTION = "--target"
# Whole: a stranger can make another commit whose sha begins alike, and push it after somebody has read the first.
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class CommandName(StrEnum):
    HELP = "help"
    RUN = "run"
    RERUN = "rerun"
    STOP = "stop"
    BISECT = "bisect"
    ACCEPT = "accept"
    APPROVE = "approve"


@dataclass(frozen=True)
class Form:
    """How a command is written, what it does, and the scope that it needs; `words` are the fewest and the most.

    `{pull}` in `does` is the forge's word for a pull request.
    """

    usage: str
    does: str
    scope: Scope | None = Scope.RUN
    words: tuple[int, int] = (0, 0)


FORMS: Mapping[CommandName, Form] = {
    CommandName.HELP: Form("help", "list the commands", scope=None),
    CommandName.RUN: Form("run [SUITE] [DEVICE]", "measure the head, unless it was measured already", words=(0, 2)),
    CommandName.RERUN: Form("rerun", "measure the head once more, on every device"),
    CommandName.STOP: Form("stop", "cancel the runs of this {pull} that wait or are measured"),
    CommandName.BISECT: Form("bisect", "search the commits of this {pull} for the one that made cases slower"),
    CommandName.ACCEPT: Form(
        "accept REASON",
        "let the head pass although it is slower; its regressions on the mainline are acknowledged with the reason",
        scope=Scope.TRIAGE,
        words=(1, 1000),
    ),
    CommandName.APPROVE: Form(
        "approve SHA",
        "let the held runs of exactly this head start; the whole sha",
        words=(1, 1),
    ),
}


@dataclass(frozen=True)
class Command:
    """A command that was read; `target` limits it to one of the targets that watch the repository."""

    verb: CommandName
    words: tuple[str, ...] = ()
    target: str | None = None

    @property
    def form(self) -> Form:
        return FORMS[self.verb]


def is_command(line: str) -> bool:
    """Whether a comment with this first line commands something, rightly or wrongly."""
    return line.split(maxsplit=1)[:1] == [NAME] and not line[0].isspace()


def read(line: str) -> Command:
    """Read the first line of a comment.  Raises BadInput that says what to write instead."""
    verb, *words = line.split()[1:] or [CommandName.HELP]
    if verb not in FORMS:
        raise BadInput(f"There is no command {verb[:40]!r}. Write `{NAME} help` for the list of commands.")
    form = FORMS[CommandName(verb)]
    target = None
    if words[:1] == [_OPTION]:
        if len(words) < 2:
            raise BadInput(f"Write the name of a target after {_OPTION}: `{NAME} {verb} {_OPTION} NAME`.")
        target, words = words[1], words[2:]
    fewest, most = form.words
    if not fewest <= len(words) <= most:
        raise BadInput(f"Write `{NAME} {form.usage}` on the first line, and nothing else there.")
    if verb == CommandName.APPROVE:
        words = [_sha(words[0])]
    return Command(CommandName(verb), tuple(words), target)


def _sha(word: str) -> str:
    if not _SHA.fullmatch(word.lower()):
        raise BadInput(
            f"{word[:80]!r} is not the whole sha of a commit. Write all of its 40 characters, because a stranger can "
            f"make another commit whose sha begins alike: `{NAME} {FORMS[CommandName.APPROVE].usage}`."
        )
    return word.lower()
