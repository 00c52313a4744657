"""The command line itself: its names, its help, and what it says about mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import cli
from service.commands.noun import first_sentence
from service.commands.nouns import NOUNS, Entry

ROOT = Path(__file__).parents[3]
HEAVY = ("alembic", "celery", "fastapi", "httpx", "numpy", "pydantic", "rich", "scipy", "sqlalchemy", "structlog")


def mistake(command: str) -> str:
    done = CliRunner().invoke(cli.app, command.split(), prog_name="kernelwatch")
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("regresion", "There is no command `kernelwatch regresion`. Did you mean `regression`?"),
        ("xyzzy", "There is no command `kernelwatch xyzzy`. See `kernelwatch --help`."),
        ("run aprove 3", "There is no command `kernelwatch run aprove`. Did you mean `approve`?"),
        (
            "run start norms",
            "`kernelwatch run start` needs REVISION (a commit, branch, tag or release). "
            "See `kernelwatch run start --help`.",
        ),
        ("report", "`kernelwatch report` needs RUN (the number of a run). See `kernelwatch report --help`."),
        ("report soon", "RUN takes a whole number, not 'soon'."),
        ("report 1 2", "`kernelwatch report` takes fewer arguments: `2` is too much. See `kernelwatch report --help`."),
        ("report 1 --formt json", "`kernelwatch report` has no option --formt. Did you mean `--format`?"),
        ("report 1 --format", "--format needs a value."),
        ("regression list --limit 0", "--limit takes a whole number from 1 to 1000, not '0'."),
        ("target add norms /srv/norms --backfill -1", "--backfill takes a whole number of at least 0, not '-1'."),
        ("regression due 1 soon", "DAY takes a day such as 2026-12-24, not 'soon'."),
        (
            "calibration start norms",
            "`kernelwatch calibration start` needs --device (the device). See `kernelwatch calibration start --help`.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_its_fix(command: str, said: str) -> None:
    assert mistake(command) == f"kernelwatch: {said}\n"


def test_a_wrong_choice_names_the_right_ones() -> None:
    assert mistake("report 1 --format xml").startswith("kernelwatch: --format takes table, json")
    assert mistake("report 1 --format xml").endswith("not 'xml'.\n")


def test_a_noun_alone_prints_its_help() -> None:
    done = CliRunner().invoke(cli.app, ["run"], prog_name="kernelwatch")
    assert done.exit_code == 2
    assert done.stdout.startswith("Usage: kernelwatch run [OPTIONS] COMMAND [ARGS]...\n")


def kernelwatch(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A process, as a shell starts it."""
    program = [sys.executable, "-P", "-m", "service.cli", *arguments]
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    return subprocess.run(program, cwd=ROOT, env=plain | environment, capture_output=True, text=True, check=False)


def test_it_calls_itself_by_its_name() -> None:
    assert kernelwatch("--help").stdout.startswith("Usage: kernelwatch [OPTIONS] COMMAND [ARGS]...\n")
    assert kernelwatch("nothing").stderr.startswith("kernelwatch: There is no command `kernelwatch nothing`.")
    assert kernelwatch("--version").stdout == "kernelwatch 0.1.0\n"


def test_help_fits_a_narrow_terminal() -> None:
    lines = kernelwatch("--help", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") and "[ARGS]" not in line for line in lines), "no sentence is cut"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_waits_for_no_library(arguments: list[str]) -> None:
    """A time would depend on the machine; what is imported does not."""
    code = (
        "import json, sys\n"
        "from service import cli\n"
        f"sys.argv = ['kernelwatch', *{arguments!r}]\n"
        "try: cli.app(prog_name='kernelwatch', standalone_mode=False)\n"
        "except Exception: pass\n"
        "except SystemExit: pass\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("entry", NOUNS, ids=lambda one: one.name)
def test_the_table_of_commands_says_what_each_says_of_itself(entry: Entry) -> None:
    command = entry.load()
    assert first_sentence(command.help) == entry.help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    script = kernelwatch("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_KERNELWATCH_COMPLETE=complete_" + shell in script
    asked = {"_KERNELWATCH_COMPLETE": f"complete_{shell}"}
    at_the_second_word = {"COMP_WORDS": "kernelwatch reg", "COMP_CWORD": "1"}
    if shell != "bash":
        at_the_second_word = {"_TYPER_COMPLETE_ARGS": "kernelwatch reg", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "regression" in kernelwatch(**asked, **at_the_second_word).stdout
