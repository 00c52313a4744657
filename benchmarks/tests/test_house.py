"""The rulers, held against a small tree whose figures can be counted by hand."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import house

FILES = {
    "kernels/cases.py": "def _once(): ...\ndef _twice(): ...\n_once()\n_twice(), _twice()\n",
    "service/ledger/runs/queue.py": "import service.ledger.intake.pulls\nimport service.features.weekly.store\n",
    "service/ledger/intake/pulls.py": "import service.ledger.runs.queue\n",
    "service/ledger/intake/long.py": "# a line\n" * 100,
    "service/db/rows.py": "class Row:\n    id: int\n    name: str\n    at: float\n    by: str\nclass B:\n    x: int\n",
    "service/db/documents.py": "class Item:\n    id: int\n    name: str\n    at: float\n",
    "service/db/migrations/versions/0001_weekly.py": "def upgrade(): ...\n",
    "service/features/weekly/store.py": "import kernels.cases\n",
    "service/features/weekly/templates/weekly.html": "<p>Acknowledge it\n",
    "service/domain/notices.py": "",
    "service/export.py": "ACKNOWLEDGED = 1\n",
    "service/app.py": "import service.features.weekly.store\nimport service.ledger.runs.queue\n",
    "workers/isolation.py": "",
    "workers/site.py": "",
    "dashboards/studies.py": "",
    "dashboards/replay.py": "",
    "dashboards/badges.py": "",
    "kernelwatch/__init__.py": "def acknowledge(): ...\n",
    "tests/test_one.py": "1\n2\n",
    "docs/index.md": "four words of text\n",
}
EXPECTED = {
    "lines of product": 125,
    "lines of tests": 2,
    "modules": 15,
    "modules below 100 lines": 14,
    "modules with exactly one importer": 2,
    "functions": 3,
    "private functions with a single use, %": 50,
    "families of classes with the same fields": 1,
    "lines beyond the largest of each family": 4,
    **{f"folders of {name}": 1 for name in house.FEATURES},
    "imports into features from the core": 1,
    "loops of folders": 1,
    "folders in the largest loop": 2,
    "files that name `acknowledge`": 2,
    "files of a commit, median": 1,
    "files of a commit, nine tenths": 19,
    "words of docs": 4,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two commits of it: the second touches one file of the product."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for command in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "more")):
        subprocess.run(["git", *command], cwd=tree, check=True)


def test_every_figure_is_counted(tree: Path) -> None:
    for number in (1, 2):
        (tree / "service/export.py").write_text(f"ACKNOWLEDGED = {number + 1}\n")
        commit(tree)
    found = house.figures(tree)
    assert {what: count for what, count in found.items() if count != EXPECTED.get(what)} == {}
    assert house.GOALS.keys() - found.keys() == {
        f"files that a {one} passes" for one in ("commit", "sample", "threshold")
    }


def test_a_feature_in_two_folders_is_counted_twice(tree: Path) -> None:
    (tree / "workers/weekly.py").write_text("")
    assert house.figures(tree)["folders of weekly"] == 2


def test_a_ruler_that_finds_nothing_says_so(tree: Path) -> None:
    (tree / "workers/site.py").rename(tree / "workers/pages.py")
    (tree / "docs/index.md").unlink()
    with pytest.raises(house.FoundNothing, match="folders of site, words of docs"):
        house.figures(tree)


def test_a_tree_without_loops_has_none(tree: Path) -> None:
    (tree / "service/ledger/intake/pulls.py").write_text("")
    assert house.figures(tree)["loops of folders"] == 0


def test_a_tree_without_imports_has_no_loops_to_look_for(tree: Path) -> None:
    for path in (tree / "service").rglob("*.py"):
        path.write_text("acknowledge = 1\n")
    with pytest.raises(house.FoundNothing, match="loops of folders"):
        house.figures(tree)


def test_a_walk_that_finds_nothing_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tree / "walks.py"
    script.write_text(
        """print('commit: 1 file\\n{"files that a commit passes": 1, "files that a sample passes": 0}')"""
    )
    monkeypatch.setattr(house, "__file__", str(tree / "house.py"))
    with pytest.raises(house.FoundNothing, match=r"^files that a sample passes$"):
        house.walked(tree)


def test_the_table_has_a_line_for_each_figure_and_dashes_for_what_was_not_measured() -> None:
    lines = house.table({"modules": 628}, {"modules": 1598}).splitlines()
    assert len(lines) == 2 + len(house.GOALS)
    [modules] = [line for line in lines if line.startswith("| modules  ")]
    assert [cell.strip() for cell in modules.split("|")[2:-1]] == ["628", "1,598", "330"]
    [sample] = [line for line in lines if "a sample" in line]
    assert [cell.strip() for cell in sample.split("|")[2:-1]] == ["–", "–", "12"]
