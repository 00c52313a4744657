"""A channel: time limits, invalid answers, and the reasons why a process was lost."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.arena.channel import MAX_DEPTH, Channel, ContenderLost, last_lines


@pytest.fixture
def talk_to(tmp_path: Path) -> Iterator[Callable[[str], Channel]]:
    """A channel to a process that runs these lines of Python."""
    opened = []

    def start(program: str) -> Channel:
        log = tmp_path / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        opened.append(Channel(process, log))
        return opened[-1]

    yield start
    for channel in opened:
        channel.close()


def test_a_question_gets_its_answer(talk_to):
    channel = talk_to("""
        import json, sys
        for line in sys.stdin:
            print(json.dumps({"heard": json.loads(line)["do"], "long": "x" * 200_000}), flush=True)
    """)

    assert channel.ask({"do": "first"}, 20)["heard"] == "first"
    assert len(channel.ask({"do": "second"}, 20)["long"]) == 200_000


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; time.sleep(60)", "no answer to 'turn' in 0.5 s"),
        ("input(); print('hello', flush=True); input()", "not a JSON object: b'hello'"),
        ("input(); print('[1, 2]', flush=True); input()", "not a JSON object: b'[1, 2]'"),
        ("input(); print('{\"a\":' + '[' * 100_000, flush=True); input()", "not a JSON object"),
        ("input(); print('x' * (2 << 20), flush=True); input()", "answered with more than 1 MiB"),
        ("input(); raise SystemExit(3)", "exited with status 3"),
        ("input(); import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("input(); raise SystemExit(139)", "killed by SIGSEGV"),  # a sandbox says it so
        ("import os; os.close(0); os.close(1); import time; time.sleep(60)", "closed its pipe and kept running"),
    ],
)
def test_the_reason_why_a_contender_was_lost(talk_to, program, reason):
    channel = talk_to(program)

    with pytest.raises(ContenderLost) as lost:
        channel.ask({"do": "turn"}, 0.5 if "no answer" in reason else 20)

    assert reason in str(lost.value)


def test_an_answer_can_be_stored_whatever_is_in_it(talk_to):
    channel = talk_to(r"""
        input()
        print(r'{"error": "a\u0000 lone \ud800 half", "facts": {"na\udfffme": ["\u001b[1mbold", "two\nlines", true]}, '
              r'"samples": [1.5, 3, NaN, -Infinity, 1e999, 1' + '0' * 400 + ']}', flush=True)
    """)

    assert channel.ask({"do": "turn"}, 20) == {
        "error": "a lone  half",
        "facts": {"name": ["[1mbold", "two\nlines", True]},
        "samples": [1.5, 3, None, None, None, None],
    }


def test_an_answer_can_be_stored_however_deep_it_is(talk_to):
    channel = talk_to("""
        input()
        print('{"facts": ' + '[' * 480 + ']' * 480 + ', "sets": ' + '{"a": ' * 480 + '1' + '}' * 481, flush=True)
    """)

    answer = channel.ask({"do": "prepare"}, 20)

    lists, tables, depth = answer["facts"], answer["sets"], 0
    while isinstance(lists, list):
        [lists], tables, depth = lists, tables["a"], depth + 1
    assert (lists, tables, depth) == ("…", "…", MAX_DEPTH)


def test_the_last_words_can_be_stored_too(tmp_path):
    (tmp_path / "log").write_bytes(b"\x1b[31mred\x00\n\xff\xfe\xed\xa0\x80 half\n")
    assert last_lines(tmp_path / "log") == ["[31mred", "\ufffd" * 5 + " half"]


def test_the_last_words_are_kept(talk_to):
    channel = talk_to("""
        import sys
        for number in range(50): print("line", number, file=sys.stderr)
        print("Extension modules: a, b, c", file=sys.stderr)
        input(); raise SystemExit(1)
    """)

    with pytest.raises(ContenderLost, match=r"exited with status 1; last lines: line 45 / .* / line 49$"):
        channel.ask({"do": "start"}, 20)


def test_two_answers_to_one_request_are_an_error(talk_to):
    channel = talk_to("input(); print('{}\\n{}', flush=True); input()")
    channel.ask({"do": "one"}, 20)

    with pytest.raises(ContenderLost, match="answered without a request"):
        channel.ask({"do": "two"}, 20)


def test_a_contender_that_does_not_read_does_not_block_the_driver(talk_to):
    channel = talk_to("import time; time.sleep(60)")

    with pytest.raises(ContenderLost, match="no answer"):
        channel.ask({"do": "start", "padding": "x" * 500_000}, 0.5)


def test_closing_ends_the_children_too(talk_to, tmp_path):
    channel = talk_to("""
        import os, subprocess, sys
        child = subprocess.Popen(["sleep", "60"])
        input(); print('{"child": %d}' % child.pid, flush=True); input()
    """)
    child = channel.ask({"do": "start"}, 20)["child"]

    channel.close()

    deadline = time.monotonic() + 120
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def test_closing_from_another_thread_ends_the_wait(talk_to):
    channel = talk_to("import time; time.sleep(600)")
    closing = threading.Timer(0.2, channel.close)
    closing.start()
    began = time.monotonic()

    with pytest.raises(ContenderLost):
        channel.ask({"do": "start"}, 600)

    closing.join()
    assert time.monotonic() - began < 300


def test_last_lines_of_nothing(tmp_path):
    assert last_lines(tmp_path / "never written") == []


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]
