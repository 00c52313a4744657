"""An operator makes keys on the server's machine, and a program elsewhere uses them."""

import re

import pytest

from service import cli
from tests.fakes.api import Api

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def kernelwatch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run a command as a shell does; returns exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["kernelwatch", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_first_key_is_made_on_the_server_and_makes_the_next(kernelwatch) -> None:
    code, out, err = kernelwatch("key", "create", "my laptop", "--scope", "admin", "--expires", "90d")
    assert (code, out.count("\n"), "not shown again" in err) == (0, 1, True)
    made = Api(out.strip()).post("/keys", {"name": "CI", "scopes": ["read"]})
    assert made.status_code == 201
    _, listed, _ = kernelwatch("key", "list")
    assert re.search(r"CI +read +never +never", listed)


def test_a_key_is_rotated_and_revoked(kernelwatch) -> None:
    old = kernelwatch("key", "create", "CI", "--scope", "read")[1].strip()
    new = kernelwatch("key", "rotate", old[:13], "--overlap", "1h")[1].strip()
    assert Api(old).get("/targets").status_code == Api(new).get("/targets").status_code == 200
    assert kernelwatch("key", "revoke", new[:13])[0] == 0
    assert Api(new).get("/targets").status_code == 401


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("create", "CI", "--scope", "write"), "'write' is no scope. Use one of read, ingest, run"),
        (
            ("create", "CI", "--scope", "read", "--expires", "soon"),
            "'soon' is no length of time; write 30m, 12h or 90d.",
        ),
        (("revoke", "kw_0000000000"), "No key kw_0000000000. `kernelwatch key list` lists them."),
        (("create", "CI"), "--scope"),
    ],
)
def test_a_mistake_is_one_sentence(kernelwatch, words: tuple[str, ...], why: str) -> None:
    code, _, err = kernelwatch("key", *words)
    assert code == 2
    assert why in err
