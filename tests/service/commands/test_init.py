"""`kernelwatch init` in checkouts of all kinds: what it writes, prints and refuses."""

import tomllib
from pathlib import Path

import pytest

from service.errors import BadInput
from tests.fakes.repository import Repository
from tests.shell import attempt, kernelwatch

PERF = "import torch\n\n\ndef test_sum(benchmark):\n    benchmark(torch.sum, torch.ones(8))\n"


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_DEVICE", "cpu")


@pytest.fixture
def checkout(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "norms")
    made.commit("first", {"bench/test_perf.py": PERF, "broken.py": "# @helion.kernel\ndef (:\n"})
    return made


def test_it_writes_a_recipe_and_says_what_comes_next(checkout: Repository) -> None:
    done = kernelwatch("init", checkout.folder)
    target = checkout.folder / "kernelwatch.toml"
    recipe = tomllib.loads(target.read_text())
    assert recipe["devices"] == ["cpu"]
    assert recipe["function"] == [{"name": "sum", "test": "bench/test_perf.py::test_sum", "cases": ["-"]}]
    first, *rest = done.stdout.splitlines()
    assert first == "measured   bench/test_perf.py:4  pytest-benchmark test test_sum: sum -"
    assert "not read   broken.py: line 2: invalid syntax" in rest
    assert f"Wrote {target} with 1 benchmark." in rest
    assert f"Next: kernelwatch compare HEAD~1 --checkout {checkout.folder}" in rest


def test_a_folder_and_a_device_can_be_named(checkout: Repository) -> None:
    checkout.commit(
        "more", {"other/test_other.py": PERF, "pyproject.toml": '[project]\ndependencies = ["einops>=0.8"]'}
    )
    done = kernelwatch("init", checkout.folder / "bench", "--device", "h200", "--device", "cpu")
    recipe = tomllib.loads((checkout.folder / "kernelwatch.toml").read_text())
    assert recipe["devices"] == ["h200", "cpu"]
    assert [function["name"] for function in recipe["function"]] == ["sum"]
    assert "The environment that measures needs, besides torch: pytest, einops." in done.stdout


def test_a_recipe_is_replaced_only_by_force_and_printed_alone(checkout: Repository) -> None:
    target = checkout.folder / "kernelwatch.toml"
    target.write_text("mine")
    with pytest.raises(BadInput, match="already: --force replaces it"):
        kernelwatch("init", checkout.folder)

    printed = kernelwatch("init", checkout.folder, "--print")
    assert target.read_text() == "mine"
    assert tomllib.loads(printed.stdout)["function"][0]["name"] == "sum"
    assert "pytest-benchmark test test_sum" in printed.stderr

    kernelwatch("init", checkout.folder, "--force")
    assert target.read_text() == printed.stdout


def test_what_has_to_be_filled_in_is_written_and_refused(checkout: Repository) -> None:
    hidden = (
        "import pytest\nfrom sizes import SIZES\n@pytest.mark.parametrize('x', SIZES)\ndef test_sum(benchmark, x): ..."
    )
    checkout.commit("hidden", {"bench/test_perf.py": hidden})
    with pytest.raises(BadInput, match="Nothing can be measured yet: fill in what is missing in"):
        kernelwatch("init", checkout.folder)
    assert '# test = "bench/test_perf.py::test_sum"' in (checkout.folder / "kernelwatch.toml").read_text()


@pytest.mark.parametrize(
    ("files", "arguments", "why"),
    [
        (None, (), "is not the checkout of a git repository"),
        ({"a.py": "x = 1"}, (), "No benchmark was found in 1 tracked Python files"),
        ({"test_perf.py": PERF}, ("--check",), "has one commit, and --check compares two: commit a change"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    tmp_path: Path, files: dict[str, str] | None, arguments: tuple[str, ...], why: str
) -> None:
    folder = tmp_path / "there"
    if files is None:
        folder.mkdir()
    else:
        Repository(folder).commit("only", files)
    done = attempt("init", folder, *arguments)
    assert isinstance(done.exception, BadInput)
    assert why in str(done.exception)
    assert done.stdout == ""
    assert not (folder / "kernelwatch.toml").exists()


def test_untracked_linked_and_large_files_are_not_read(checkout: Repository, tmp_path: Path) -> None:
    (tmp_path / "test_secret.py").write_text(PERF)
    checkout.link("test_link.py", str(tmp_path / "test_secret.py"))
    checkout.commit("a link, and a large file", {"test_large.py": PERF + "#" * (1 << 20)})
    (checkout.folder / "test_untracked.py").write_text(PERF)
    (checkout.folder / "broken.py").unlink()
    done = kernelwatch("init", checkout.folder, "--print")
    assert len(tomllib.loads(done.stdout)["function"]) == 1
    assert "not read   test_large.py: it has more than 1 MiB" in done.stderr


def test_a_project_that_is_nested_too_deep_has_no_packages_to_name(checkout: Repository) -> None:
    checkout.commit("deep", {"pyproject.toml": f"[project]\ndependencies = {'[' * 5000}{']' * 5000}"})
    done = kernelwatch("init", checkout.folder)
    assert "The environment that measures needs, besides torch: pytest." in done.stdout


def test_a_link_in_place_of_the_recipe_is_not_followed(checkout: Repository, tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    checkout.link("kernelwatch.toml", str(outside))
    with pytest.raises(BadInput, match="cannot be written: File exists"):
        kernelwatch("init", checkout.folder)
    outside.write_text("theirs")
    kernelwatch("init", checkout.folder, "--force")
    assert outside.read_text() == "theirs"
    assert not (checkout.folder / "kernelwatch.toml").is_symlink()
