"""`kernelwatch export` and `kernelwatch import`: files leave one server and enter another."""

import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import update

from kernels.cases import Role
from service.commands.transfer.exporting import ReceivedCount
from service.db.engine import transaction
from service.db.models import Revision
from service.domain.exports import IMPORTED_ROLES, FileFormat, batches
from service.errors import BadInput
from tests import world
from tests.dashboards.conftest import reachable
from tests.dashboards.seed import CASES, watched
from tests.fakes.api import Api, new_key
from tests.shell import attempt, kernelwatch

ROOT = Path(__file__).parents[3]


def error(*arguments: object) -> str:
    found = attempt(*arguments)
    assert found.exit_code != 0, found.output
    return str(found.exception)


@pytest.mark.usefixtures("seeded")
def test_stdout_has_what_the_api_sends() -> None:
    for form in FileFormat:
        sent = Api().get("/export/runs", params={"format": form, "device": "h200"})
        assert kernelwatch("export", "runs", "--device", "h200", "--format", form).stdout_bytes == sent.content
    assert kernelwatch("export", "runs").stdout.startswith("id,target,revision,")


@pytest.mark.usefixtures("seeded")
def test_a_figure_is_that_of_the_api(tmp_path: Path) -> None:
    series = {"provider": "norms", "device": "h200", "unit": "gb_s"}
    sent = Api().get("/targets/norms/series/figure", params=series | {"case": CASES[1]}).json()
    options = [word for name, value in series.items() for word in (f"--{name}", value)]
    assert json.loads(kernelwatch("export", "figure", "trend", "norms", CASES[1], *options).stdout) == sent
    kernelwatch("export", "figure", "trend", "norms", CASES[1], *options, "--output", tmp_path / "figure.json")
    assert json.loads((tmp_path / "figure.json").read_text()) == sent
    assert "Search for the case" in error("export", "figure", "trend", "norms", "rmsnorm.fwd.8x8.bf16", *options)


@pytest.mark.usefixtures("seeded")
def test_the_suffix_chooses_the_format_and_stderr_has_the_rows(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(kernelwatch("export", "verdicts").stdout, newline="")))
    for name in ("verdicts.csv", "verdicts.ndjson"):
        found = kernelwatch("export", "verdicts", "--output", tmp_path / name)
        assert found.stdout == ""
        assert f"{name}: {len(rows):,} rows, 0." in found.stderr
    kernelwatch("export", "verdicts", "--output", tmp_path / "verdicts.parquet")
    assert parquet.read_metadata(tmp_path / "verdicts.parquet").num_rows == len(rows)
    assert (tmp_path / "verdicts.csv").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.mark.usefixtures("seeded")
def test_a_mistake_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("what was there")
    assert "No target nothing. Known: liger, norms." in error("export", "runs", "--target", "nothing", "--output", path)
    assert "has no filter 'device'; it takes target." in error("export", "targets", "--device", "x", "--output", path)
    assert "is a folder" in error("export", "runs", "--output", tmp_path)
    assert "cannot be written: No such file" in error("export", "runs", "--output", tmp_path / "no" / "a.csv")
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what its terminal shows."""
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "service.cli", *arguments]
    shown = b""
    with subprocess.Popen(command, cwd=ROOT, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        with suppress(OSError), open(ours, "rb", buffering=0) as screen:  # an error is its end
            while part := screen.read(4096):
                shown += part
    return process.returncode, shown.decode()


@pytest.mark.usefixtures("seeded")
def test_a_terminal_gets_text_that_cannot_control_it() -> None:
    code, shown = on_a_terminal("export", "runs", "--format", "parquet")
    assert (code, "Parquet is not text: write it to a file with --output FILE." in shown) == (2, True)
    with transaction() as session:
        session.execute(update(Revision).values(subject="\x1b[2Jgone\x07"))
    code, shown = on_a_terminal("export", "revisions")
    assert code == 0
    assert "gone" in shown
    assert not {"\x1b", "\x07"} & {*shown}
    assert "\x1b[2Jgone" in kernelwatch("export", "revisions").stdout


def series(api: Api, case: str, provider: str = "norms", target: str = "liger") -> list[dict[str, Any]]:
    params = {"case": case, "provider": provider, "device": "h200"}
    items: list[dict[str, Any]] = api.get(f"/targets/{target}/ingested/series", params=params).json()["items"]
    return items


def measured(api: Api, run_id: int, case: str, contender: str) -> list[float]:
    found = api.get(f"/runs/{run_id}/samples", params={"contender": contender, "case": case}).json()
    return [value for trial in found["screening"] + found["confirmation"] for value in trial]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_exported_samples_become_the_same_series_elsewhere(form: str, tmp_path: Path) -> None:
    """From the database of this machine through a file to a server, with a key that may do just that."""
    path = tmp_path / f"samples.{form}"
    with watched(tmp_path / "state") as story, reachable() as server:
        api = Api()
        runs = [story.runs[name] for name in ("steady", "slow", "fast")]
        kernelwatch("export", "samples", "--target", "norms", "--device", "h200", "--output", path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KERNELWATCH_KEY", new_key("ingest:liger"))
            send = ("import", path, "--target", "liger", "--server", server)
            first = kernelwatch(*send, "--format", "json")
            assert json.loads(kernelwatch(*send, "--format", "json").stdout) == json.loads(first.stdout)
        stored = {one["notes"]["run_id"]: one for one in json.loads(first.stdout)}
        assert len(api.get("/targets/liger/ingested").json()["items"]) == len(stored)
        for run_id in runs:
            run = api.get(f"/runs/{run_id}").json()
            batch = stored[run_id]
            assert (batch["machine"], batch["tool"], batch["sent_by"]) == (run["worker"], "kernelwatch", "CI")
            assert (batch["stack"], batch["measured_at"]) == (run["stack"], run["started_at"])
            assert batch["notes"] == {"target": "norms", "run_id": run_id}
            for provider, contender in (("norms", "head:norms"), ("quack", "sota:quack")):
                for case in CASES[:3]:
                    [found] = [one for one in series(api, case, provider) if one["batch_id"] == batch["id"]]
                    assert found["revision"] == run["revision"]
                    assert found["samples"] == pytest.approx(measured(api, run_id, case, contender), rel=5e-6)


def test_only_what_a_role_measured_is_imported_under_its_revision(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    with watched(tmp_path / "state") as story:
        kernelwatch("export", "samples", "--device", "h200", "--output", path)
        shown = kernelwatch("import", path, "--target", "liger", "--role", "parent").stdout
        assert "Left out: " in shown
        api = Api()
        runs = [api.get(f"/runs/{story.runs[name]}").json() for name in ("steady", "slow", "fast", "wrong", "pull")]
        assert {one["revision"] for one in series(api, CASES[0])} == {run["baseline"] for run in runs}


BATCH = {"tool": "do_bench", "machine": "ci-7", "device": "h200"}
LINE = {"revision": "1f3a9c2", "provider": "norms", "case": CASES[0], "samples": [7.31, 7.29]}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("compressed", [False, True])
def test_the_format_of_the_ingest_endpoint_is_sent_as_it_is(compressed: bool, tmp_path: Path) -> None:
    world.target(name="norms")
    path = written(tmp_path / "measured.ndjson", {"batch": BATCH}, LINE, LINE | {"revision": "2.0"})
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    shown = kernelwatch("import", path, "--target", "norms").stdout
    assert "1 batch with 4 samples of norms, as measurements made elsewhere:" in shown
    assert [one["samples"] for one in series(Api(), CASES[0], target="norms")] == [[7.31, 7.29]] * 2
    kernelwatch("import", path, "--target", "norms")
    assert len(Api().get("/targets/norms/ingested").json()["items"]) == 1

    assert Api().with_key("ingest:norms").request("DELETE", "/ingested/1").status_code == 204
    assert "stored within the last day and deleted since" in error("import", path, "--target", "norms")


HEADER = "run_id,target,revision,device,measured_at,worker,stack,contender,role,provider,measured_revision,case,value\n"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "It has no column run_id: only JSON lines as the ingest endpoint takes them can be imported"),
        ("id,name\n1,norms\n", "It has no column run_id"),
        (
            '{"id": 7}\n',
            "Row 1 is no exported sample (run_id: Field required); `kernelwatch export samples` writes them.",
        ),
        (
            '{\n    "benchmarks": []\n}\n',
            "Line 1 is no JSON object by itself, so these are no JSON lines. If another tool",
        ),
        ('{"batch": {}}\n{"revision"\n', "Line 2 is not JSON"),
        (json.dumps({"batch": BATCH}) + "\n[]\n", "Line 2 is not a JSON object"),
        (json.dumps({"batch": {}}) + "\n" + json.dumps(LINE) + "\n", "Line 1 must be"),
        (json.dumps({"batch": BATCH}) + "\n" + json.dumps(LINE | {"samples": [0]}) + "\n", "Line 2: samples.0: "),
        (
            HEADER + "7,n,c1,cpu,,,,h,head,n,,x,soon\n",
            "Row 1 is no exported sample (value: Input should be a valid number",
        ),
        (HEADER, "Nothing to import in "),
        (b"\xff\xfe\x00\x01 nothing", "It is not UTF-8"),
        (b"PAR1 but damaged", "It is damaged: "),
        (b"\x1f\x8b but damaged", "cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_imported_says_why(content: str | bytes, why: str, tmp_path: Path) -> None:
    world.target(name="norms")
    path = tmp_path / "file"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert why in error("import", path, "--target", "norms")
    assert Api().get("/targets/norms/ingested").json()["items"] == []


def sample(**fields: Any) -> Mapping[str, Any]:
    usual = {"run_id": 7, "target": "norms", "revision": "c1", "device": "cpu", "measured_at": None, "worker": None}
    usual |= {"stack": None, "contender": "head:norms", "role": "head", "provider": "norms", "measured_revision": "c1"}
    return usual | {"case": "a", "value": 1.0} | fields


PARENT = {"contender": "parent:norms", "role": "parent", "measured_revision": "c0"}
QUACK = {"contender": "sota:quack", "role": "sota", "provider": "quack", "measured_revision": None}


@pytest.mark.parametrize(
    ("rows", "roles", "sent"),
    [
        ([sample(), sample(value=2.0), sample(case="b")], IMPORTED_ROLES, [("c1", [1.0, 2.0]), ("c1", [1.0])]),
        ([sample(value=None), sample(value=2.0)], IMPORTED_ROLES, [("c1", [2.0])]),
        ([sample(value=None)], IMPORTED_ROLES, []),
        ([sample(), sample(**PARENT), sample(**QUACK)], IMPORTED_ROLES, [("c1", [1.0]), ("c1", [1.0])]),
        ([sample(), sample(**PARENT)], [Role.PARENT], [("c0", [1.0])]),
    ],
)
def test_rows_become_measurements(rows: list[Mapping[str, Any]], roles: Any, sent: list[Any]) -> None:
    [batch] = batches(rows, roles)
    assert [(one["revision"], one["samples"]) for one in batch.measurements] == sent


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([sample(), sample(run_id=8), sample()], "run 7"),
        ([sample(), sample(case="b"), sample()], "head:norms at a in run 7"),
    ],
)
def test_scattered_rows_are_refused(rows: list[Mapping[str, Any]], what: str) -> None:
    with pytest.raises(BadInput, match=f"The rows of {what} are in several places: sort the file by run_id"):
        list(batches(rows))


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_rows_are_counted_in_any_parts(step: int) -> None:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerows([["name", "text"], ["a", 'two\r\nlines, "quoted"'], ["b", "one"], ["c", '"']])
    count = ReceivedCount(FileFormat.CSV)
    content = text.getvalue().encode()
    for at in range(0, len(content), step):
        count.add(content[at : at + step])
    assert count.rows == 3
