"""Commands of this process, as a shell runs them."""

import shlex
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from service import cli


def attempt(*words: object, **options: Any) -> Result:
    """What becomes of a command; the error that it raises is its `exception`."""
    return CliRunner().invoke(cli.app, [str(word) for word in words], **options)


def kernelwatch(*words: object, code: int = 0) -> Result:
    """What a command does that ends with this exit code, given as words or as one line.  Raises its error."""
    given = shlex.split(str(words[0])) if len(words) == 1 else words
    done = attempt(*given, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done
