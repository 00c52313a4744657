"""How the first line of a comment is read."""

import pytest

from service.domain.slash_commands import FORMS, Command, CommandName, is_command, read
from service.errors import BadInput

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/kernelwatch", Command(CommandName.HELP)),
        ("/kernelwatch help", Command(CommandName.HELP)),
        ("/kernelwatch  help  ", Command(CommandName.HELP)),
        ("/kernelwatch run", Command(CommandName.RUN)),
        ("/kernelwatch run smoke", Command(CommandName.RUN, ("smoke",))),
        ("/kernelwatch run smoke h200", Command(CommandName.RUN, ("smoke", "h200"))),
        ("/kernelwatch run --target norms smoke", Command(CommandName.RUN, ("smoke",), "norms")),
        ("/kernelwatch rerun", Command(CommandName.RERUN)),
        ("/kernelwatch stop --target norms", Command(CommandName.STOP, target="norms")),
        ("/kernelwatch accept  exact rounding", Command(CommandName.ACCEPT, ("exact", "rounding"))),
        ("/kernelwatch bisect", Command(CommandName.BISECT)),
        (f"/kernelwatch approve {SHA.upper()}", Command(CommandName.APPROVE, (SHA,))),
        (f"/kernelwatch approve {SHA}", Command(CommandName.APPROVE, (SHA,))),
    ],
)
def test_read(line: str, expected: Command) -> None:
    assert is_command(line)
    assert read(line) == expected


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("/kernelwatch Rerun", "no command 'Rerun'. Write `/kernelwatch help`"),
        ("/kernelwatch rerun please", "Write `/kernelwatch rerun` on the first line"),
        ("/kernelwatch run a b c", "Write `/kernelwatch run [SUITE] [DEVICE]`"),
        ("/kernelwatch run --target", "`/kernelwatch run --target NAME`"),
        ("/kernelwatch accept", "Write `/kernelwatch accept REASON`"),
        ("/kernelwatch approve", "Write `/kernelwatch approve SHA`"),
        (f"/kernelwatch approve {SHA[:12]}", "Write all of its 40 characters"),
        ("/kernelwatch approve main", "'main' is not the whole sha of a commit"),
        (f"/kernelwatch approve {SHA}{SHA}", "is not the whole sha of a commit"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_to_write(line: str, advice: str) -> None:
    assert is_command(line)
    with pytest.raises(BadInput) as refused:
        read(line)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        *("", " ", "/", "kernelwatch run", " /kernelwatch run", "/kernelwatch: run", "/kernelwatchrun"),
        *("> /kernelwatch run", "`/kernelwatch run`", "/Kernelwatch run"),
    ],
)
def test_other_lines_are_no_commands(line: str) -> None:
    assert not is_command(line)


def test_every_command_has_a_form() -> None:
    assert set(FORMS) == set(CommandName)
    assert all(form.usage.startswith(verb) for verb, form in FORMS.items())
