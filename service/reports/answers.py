"""Answers to the commands in comments of a pull request, as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.db.models import Run
from service.domain.forges import pull_noun
from service.domain.slash_commands import FORMS, NAME, CommandName
from service.domain.states import ForgeKind, RunState
from service.domain.text import code, escaped, lasted, one_line, short

_SHOWN = 20  # lines of one answer
LAST_TO_STRANGERS = (
    "This is the last answer of today to people who may not command anything here; "
    "to their further commands there is a reaction only."
)


class Reaction(StrEnum):
    """How a command ended, in GitHub's words for reactions."""

    WORKING = "eyes"  # something is queued; its result follows
    DONE = "+1"
    REFUSED = "confused"


@dataclass(frozen=True)
class Reply:
    """What was done, in lines of Markdown."""

    reaction: Reaction
    lines: tuple[str, ...]


def done(*lines: str) -> Reply:
    return Reply(Reaction.DONE, lines)


def refused(*lines: str) -> Reply:
    return Reply(Reaction.REFUSED, lines)


def together(answers: Iterable[Reply]) -> Reply:
    """The answers of several targets as one; the reaction is the best of theirs."""
    parts = list(answers)
    best = min((one.reaction for one in parts), key=list(Reaction).index, default=Reaction.REFUSED)
    return Reply(best, tuple(line for one in parts for line in one.lines))


def about(target: str, words: str) -> str:
    """A line about one target."""
    return f"**{escaped(target)}**: {words}"


def help_text(kind: ForgeKind) -> Reply:
    """The table of commands, in the words of a forge."""
    does = {form: form.does.format(pull=pull_noun(kind)) for form in FORMS.values()}
    rows = [f"| {code(f'{NAME} {form.usage}')} | {does[form]} |" for form in FORMS.values()]
    return done(
        "| on the first line of a comment | does |\n|---|---|\n" + "\n".join(rows),
        "A command is for every target that watches this repository; "
        f"{code(f'{NAME} run --target NAME')} is for one of them.",
    )


def of_run(run: Run, sha: str, url: str, *, place: int | None, eta_s: float | None) -> str:
    """Where a run is: its place in the queue, and when it is expected to end."""
    what = f"[run {run.id}]({url}) of {code(run.suite)} on {code(run.device)} at {code(short(sha))}"
    when = "" if eta_s is None else f"; it is expected to end in {lasted(eta_s)}"
    return f"{what} {_state(run, place)}{when}."


def _state(run: Run, place: int | None) -> str:
    match run.state:
        case RunState.QUEUED:
            return "is the next in the queue" if place == 1 else f"is number {place} in the queue"
        case RunState.LEASED:
            return "is being measured"
        case RunState.HELD:
            return "is held until somebody approves its commit"
        case RunState.DONE:
            return f"was measured already; {code(f'{NAME} {CommandName.RERUN}')} measures it once more"
        case RunState.FAILED:
            why = escaped(one_line(run.reason or "no reason is known"))
            return f"failed: {why}; {code(f'{NAME} {CommandName.RERUN}')} tries it once more"
        case _:
            return f"is {run.state}"


def marker(asked: str) -> str:
    """The hidden marker of an answer.  It has spaces, which the name of a target never has."""
    return f"<!-- kernelwatch: answer to {asked} -->"


def comment(line: str, author: str, asked: str, lines: Sequence[str]) -> str:
    """The comment that answers a command; `asked` identifies it for ever: `comment 12`.

    It does not begin with the command, so that it is none itself.
    """
    shown = [*lines[:_SHOWN], *([f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]
    said = shown[0] if len(shown) == 1 else "\n".join(f"- {one}" for one in shown)
    if any("\n" in one for one in shown):
        said = "\n\n".join(shown)
    return f"{code(one_line(line, 200))} ({escaped(author)}):\n\n{said}\n\n{marker(asked)}"
