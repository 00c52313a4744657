"""Where contenders say that code is defined counts only in a file that the revision has, as it was built."""

import os
from pathlib import Path
from typing import Any

import pytest

from kernels.cases import Case, Role
from service.domain.codefacts.texts import SourceLines
from service.domain.states import CellState
from service.domain.verdicts.session_result import ContenderResult
from service.settings import settings
from service.sources import open_source
from tests.fakes.repository import Repository, Target
from workers.machine.definitions import Definitions
from workers.machine.environments import Environment

BEFORE = "import torch\n\n\ndef forward(x):\n    return x\n\n\ndef other(x):\n    return x\n"
AFTER = BEFORE.replace("return x\n\n", "y = 2 * x\n    return y\n\n", 1)
FORWARD = {"file": "norms.py", "line": 4, "first": 4, "last": 6}
OTHER = {"file": "norms.py", "line": 9, "first": 9, "last": 10}


@pytest.fixture
def definitions(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definitions:
    """Of a head whose build changed one of its files and made another."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    settings.cache_clear()
    repository = Repository(tmp_path / "norms")
    base = repository.commit("before", {"norms.py": BEFORE, "patched.py": BEFORE, "deep/norms.py": BEFORE})
    head = repository.commit("after", {"norms.py": AFTER, "patched.py": AFTER, "deep/norms.py": AFTER})
    place = Environment("built", Path("python"), (), (), ())
    source = open_source(Target(str(repository.folder)))
    source.resolve(head)
    source.export(head, place.checkout)
    (place.checkout / "patched.py").write_text(f"# built\n{AFTER}")
    (place.checkout / "made.py").write_text(AFTER)
    return Definitions(source, base, head, place)


@pytest.mark.parametrize(
    ("said", "changed"),
    [(FORWARD, (5, 6)), (OTHER, None), ({**FORWARD, "first": 5, "line": 5}, None)],
)
def test_a_definition_has_the_lines_that_the_head_changed(
    definitions: Definitions, said: dict[str, Any], changed: tuple[int, int] | None
) -> None:
    found = definitions.checked(SourceLines.read(said))
    assert found is not None
    assert (found.file, found.line, found.changed) == ("norms.py", said["line"], changed)


@pytest.mark.parametrize(
    "said",
    [
        {**FORWARD, "file": "patched.py"},
        {**FORWARD, "file": "made.py"},
        {**FORWARD, "file": "nowhere.py"},
        {**FORWARD, "last": 11},
    ],
)
def test_a_place_that_the_head_does_not_have_is_dropped(definitions: Definitions, said: dict[str, Any]) -> None:
    assert definitions.checked(SourceLines.read(said)) is None


@pytest.mark.parametrize("special", ["fifo", "link", "linked folder", "folder", "larger"])
def test_what_a_build_leaves_in_place_of_a_file_is_dropped_at_once(
    definitions: Definitions, tmp_path: Path, special: str
) -> None:
    """A FIFO that nobody writes to would stop whoever opens it for reading."""
    checkout = definitions._place.checkout
    file = checkout / "deep" / "norms.py"
    content = file.read_bytes()
    file.unlink()
    match special:
        case "fifo":
            os.mkfifo(file)
        case "link":
            (tmp_path / "elsewhere.py").write_bytes(content)
            file.symlink_to(tmp_path / "elsewhere.py")
        case "linked folder":
            file.parent.rmdir()
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "elsewhere" / "norms.py").write_bytes(content)
            file.parent.symlink_to(tmp_path / "elsewhere")
        case "folder":
            file.mkdir()
        case "larger":
            with file.open("wb") as huge:
                huge.write(content)
                huge.truncate(1 << 40)
    assert definitions.checked(SourceLines.read({**FORWARD, "file": "deep/norms.py"})) is None


@pytest.mark.parametrize(
    ("role", "source", "kernels"),
    [
        (Role.HEAD, {**OTHER}, [{"name": "a"}, {"name": "b", "source": {**FORWARD, "changed": [5, 6]}}, "no table"]),
        (Role.PARENT, None, [{"name": "a"}, {"name": "b"}, "no table"]),
    ],
)
def test_places_of_measured_code_are_kept_of_the_head_alone(
    definitions: Definitions, role: Role, source: dict[str, Any] | None, kernels: list[Any]
) -> None:
    said = [{"name": "a", "source": {**FORWARD, "file": "made.py"}}, {"name": "b", "source": FORWARD}, "no table"]
    facts = {"registers": 40, "source": OTHER, "triton": said}
    case = Case.parse("rmsnorm.fwd.512x512.fp32")
    kept = definitions.of_result(ContenderResult(role, "norms", case, CellState.MEASURED, None, facts=facts)).facts
    assert kept == {"registers": 40, "triton": kernels, **({"source": source} if source else {})}
