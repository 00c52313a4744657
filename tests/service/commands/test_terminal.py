"""What a terminal gets, and what a pipe gets: colours, tables in place, and progress."""

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

from tests.dashboards.seed import Seeded

ROOT = Path(__file__).parents[3]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


# One process for several commands: starting one takes longer than all of them.
SAY_ALL = """
import sys
from service.cli import app
for command in sys.argv[1:]:
    try:
        app(command.split(), standalone_mode=False)
    except SystemExit:
        pass
"""


def on_a_terminal(*commands: str, seconds: float = 60, **environment: str) -> str:
    """Run commands on a terminal of 80 columns; interrupt them after so many seconds."""
    main, other = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){SAY_ALL}", *commands],
        env=plain | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"} | environment,
        stdin=other,
        stdout=other,
        stderr=other,
    )
    os.close(other)
    interrupt = threading.Timer(seconds, process.terminate)
    interrupt.start()
    said = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        said += part
    process.wait()
    interrupt.cancel()
    os.close(main)
    return said.decode()


def test_a_terminal_gets_colours(seeded: Seeded) -> None:
    assert COLOUR.search(on_a_terminal(f"report {seeded.runs['slow']}"))


def test_without_colours_lists_fit_80_columns(seeded: Seeded) -> None:
    slow = seeded.runs["slow"]
    commands = ("status", "queue", "run list", "regression list --all", f"report {slow} --all")
    said = on_a_terminal(*commands, NO_COLOR="1")
    assert not COLOUR.search(said)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said).replace("\r", "").splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_a_watched_view_is_drawn_in_place(seeded: Seeded) -> None:
    ended = f"run show {seeded.runs['slow']} --watch"  # which ends by itself
    said = on_a_terminal(ended, "queue --watch", seconds=15)
    assert f"run {seeded.runs['slow']}" in said
    assert "place" in said, "the queue was reached"
    assert "\x1b[1A" in said, "the cursor moves up, so that the table is drawn over the last one"
