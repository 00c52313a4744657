"""Does a tree say the same as another revision: every document, page, command's output and stored verdict?

python -m benchmarks.same [--base REVISION]     records both into build/same/, and prints the difference

A revision is recorded by this file with the modules of that revision: over HTTP without a network, by `python -m
service.cli`, and by its own benchmarks/stored.py.  Clock and keys are fixed: two recordings of one tree are equal.
"""

import argparse
import json
import lzma
import os
import random
import re
import runpy
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

HERE = Path(__file__).resolve()
FACTORY, COMMANDS = "service.app", "service.cli"
NOW = 1_790_000_000.0
MOST_OF_A_PAGE, MOST_OF_A_QUERY = 12, 2  # addresses that differ in numbers and queries, and in values alone
MOST_PLACES = 4  # of one path of the API
MOST_CHARACTERS = 200_000  # of a document; of the rest its hash is kept
WHOLE = "decided"  # the database for which every format is printed
STUDY = "docs/measurements/2026-11-24-h200-studies-2/session/s3.jsonl.xz"
INGESTED = {
    "revision": "1f3a9c2",
    "provider": "norms",
    "case": "rmsnorm.fwd.4096x1024.bf16-fp32",
    "samples": [7.0, 7.2, 7.1],
}
BATCH = {
    "batch": {"tool": "triton.testing 3.6", "machine": "ci-runner-7", "device": "h200", "stack": {"torch": "2.11.0"}}
}
ENVIRONMENT = {
    "KERNELWATCH_RATE_LIMIT": "",
    "KERNELWATCH_CHANNELS": '{"team": "json://127.0.0.1:9/hook"}',
    "KERNELWATCH_DEVICE": "cpu",
    "HOME": "/nonexistent",  # who is logged in to a server would ask that one
    "NO_COLOR": "1",
    "COLUMNS": "160",
    "TZ": "UTC",
    "USER": "ada",
    "LOGNAME": "ada",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
}
# The key with which the server is asked, and what people did after the databases were sown.
KEY = "key create recorder --scope admin --format json"
DONE: Mapping[str, Sequence[str]] = {
    "big": (),
    "metrics": (),
    "sample": ("sample load",),
    "decided": (
        "key create ci --scope run:norms --scope ingest:norms",
        "key rotate 2",
        "key revoke 2",
        "subscription create team --target norms --severity pass",
        "subscription create team --device h* --event regression",
        "regression acknowledge 2 --reason accepted --as ada",
        "regression reopen 2 --as ada",
        "regression note 2 seen --as bob",
        "regression assign 2 ada",
        "regression due 2 2026-10-01",
        "regression dismiss 3 --reason noise",
        "target pause liger",
        "worker pause h200-box",
        "study add s3.jsonl",
        "import ingested.jsonl --target norms",
    ),
}
# Commands that only read.  A name in braces is a column of PLACES.
READS = """
target list
target show {name}
target drifts {name}
run list
run list {name}
run show {run_id}
run logs {run_id}
run texts {run_id}
report {run_id}
report {run_id} --all
queue
study list
study sessions {study}
study show {study_session}
status
regression list
regression list {name}
regression show {regression_id}
incident list
incident show {incident_id}
bisection list
bisection show {bisection_id}
calibration show
calibration show {name}
weekly
weekly --target {name}
policy list
policy show {digest}
subscription channels
subscription list
export targets
export revisions
export runs
export verdicts
export regressions
export incidents
export change-points
export bisections
export gaps
export drifts
export facts-checks
export ingested
export workers
export calibrations
export quarantines
export policies
export people
export audit
key list
key list --all
person list
audit
worker list
db check
no-such-command
run show 987654
""".strip().splitlines()
FORMATS = ("table", "json", "md")
# Values of the parameters of addresses: in one row, those that belong together.
PLACES = (
    """SELECT t.name, r.id AS run_id, r.device, m."case", m.provider, m.contender, v.sha AS head, r.baseline AS base
       FROM runs r JOIN targets t ON t.id = r.target_id JOIN revisions v ON v.id = r.revision_id
       JOIN measurements m ON m.run_id = r.id AND m.role = 'head'
       WHERE r.baseline IS NOT NULL AND r.state = 'done' GROUP BY t.id, r.device""",
    "SELECT name FROM targets ORDER BY id",
    """SELECT t.name, max(r.id) AS run_id FROM runs r JOIN targets t ON t.id = r.target_id
       GROUP BY r.state, r.purpose, r.pull IS NULL, r.device""",
    "SELECT id AS run_id FROM runs WHERE id IN (SELECT run_id FROM verdicts WHERE outcome = 'invalid') LIMIT 2",
    "SELECT t.name, v.sha AS revision FROM revisions v JOIN targets t ON t.id = v.target_id GROUP BY t.id",
    "SELECT id AS regression_id FROM regressions GROUP BY state",
    "SELECT id AS incident_id FROM incidents ORDER BY id LIMIT 4",
    "SELECT id AS bisection_id FROM bisections GROUP BY state",
    "SELECT digest FROM policies",
    "SELECT study AS name, id AS session_id, study, id AS study_session FROM study_sessions",
    "SELECT k.run_id, c.sha256 FROM kernel_texts k JOIN code_texts c ON c.id = k.text_id LIMIT 2",
)


# -- one tree: this part runs in a process of its own, with the modules of that tree


def fixed() -> None:
    """Stop the clock of every database that this process will open, fix its disk, and load what its copies need."""
    warnings.simplefilter("ignore")
    import_module(FACTORY)
    room = shutil.disk_usage("/")._replace(total=100 << 30, used=20 << 30, free=80 << 30)  # a page shows it
    shutil.disk_usage = lambda _: room

    @event.listens_for(Engine, "connect")
    def stop(connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("julianday", 1, lambda _: NOW / 86_400 + 2_440_587.5)


def sow(folder: Path) -> None:
    """Fill the databases of a tree, with what people did in each."""
    whole(lambda: runpy.run_path(str(stored()), run_name="sow")["sow"](folder))
    os.chdir(folder)
    Path("s3.jsonl").write_bytes(lzma.decompress((Path(os.environ["TREE"]) / STUDY).read_bytes()))
    Path("ingested.jsonl").write_text(f"{json.dumps(BATCH)}\n{json.dumps(INGESTED)}\n")
    for name, commands in DONE.items():
        os.environ["KERNELWATCH_STATE"] = str(folder / name)
        for line in (KEY, *commands):
            answer = command(line.split())
            if not answer.startswith("exit 0\n"):
                sys.exit(f"{name}: {line}: {answer}")
            if line == KEY:
                (folder / name / "key").write_text(re.findall(r'"(kw[^"]{20,})"', answer)[0])


def stored() -> Path:
    """The databases are made and judged by the tree's own code, if it has any for that."""
    own = Path(os.environ["TREE"], "benchmarks", "stored.py")
    return own if own.exists() else HERE.with_name("stored.py")


def in_process(does: Callable[[], object]) -> int:
    """Do something in a copy of this process; returns how it ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        does()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def command(words: Sequence[str]) -> str:
    """What a command prints, and how it ends."""
    with tempfile.TemporaryFile() as output:

        def run() -> None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["kernelwatch", *words]
            secret = random.Random(" ".join(words))
            secrets.token_bytes = lambda size=32: secret.randbytes(size)
            runpy.run_module(COMMANDS, run_name="__main__", alter_sys=True)

        status = in_process(run)
        output.seek(0)
        return f"exit {status}\n{output.read().decode()}"


class Documents:
    """A text file for each document, in a folder for each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, kind: str, name: str, text: str) -> None:
        short = re.sub(r"[^A-Za-z0-9=.,-]+", "_", name).strip("_") or "root"
        if len(short) > 120:
            short = f"{short[:100]}-{sha256(name.encode()).hexdigest()[:12]}"
        path = self.folder / kind / f"{short}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        while path.exists():  # of a name that differs in other characters
            path = path.with_stem(f"{path.stem}_")
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}\n{len(text)} characters, sha256 {sha256(text.encode()).hexdigest()}"
        path.write_text(f"{name}\n{text.rstrip()}\n")


def whole(does: Callable[[], object]) -> None:
    """Do something in a copy of this process, and end where that failed."""
    if status := in_process(does):
        sys.exit(status)


def record(databases: Path, folder: Path) -> None:
    """Write what a tree says about copies of these databases."""
    documents = Documents(folder)
    whole(lambda: runpy.run_path(str(stored()), run_name="judge")["judge_all"](folder / "verdicts"))
    for words, text in helps(()):
        documents.write("help", " ".join(words) or "kernelwatch", text)
    for source in sorted(path for path in databases.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as copy:
            state = Path(copy, "state")
            shutil.copytree(source, state)
            os.environ["KERNELWATCH_STATE"] = str(state)
            whole(partial(answered, documents, source.name, state))


def answered(documents: Documents, name: str, state: Path) -> None:
    """Write what commands and server say about one database."""
    rows = places(state / "kernelwatch.db")
    headers = {"Authorization": f"Bearer {(state / 'key').read_text()}"}
    app = import_module(FACTORY).create_app()
    client = TestClient(app, base_url="http://localhost", headers=headers, follow_redirects=False)
    # Reading the routes takes half a second, and no database: once for all of the commands below.
    described = client.get("/openapi.json").json()
    documents.write(f"{name}/api", "openapi", json.dumps(described, indent=1, sort_keys=True))
    for line in READS:
        for place, words in enumerate(filled(line, rows, 2 if name == WHOLE else 1)):
            for form in FORMATS if name == WHOLE and place == 0 else FORMATS[:1]:
                shown = command(words if form == "table" else [*words, "--format", form])
                documents.write(f"{name}/commands", f"{' '.join(words)} as {form}", without(shown, str(state)))
    ask(documents, name, client, addresses(described, rows))


def without(text: str, *paths: str) -> str:
    for path in (*paths, os.environ["TREE"]):
        text = text.replace(path, "FOLDER")
    return text


def helps(words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The help of a command and of those below it, which it lists."""
    text = command([*words, "--help"])
    yield words, text
    if words:
        listed = re.findall(r"^  ([a-z][a-z-]*)\b", text.partition("\nCommands:\n")[2], re.MULTILINE)
    else:
        listed = [
            name
            for part in text.split("\n\n")
            if not part.startswith("Options")
            for name in re.findall(r"^  ([a-z][a-z-]*)  ", part, re.MULTILINE)
        ]
    for name in listed:
        yield from helps((*words, name))


def places(database: Path) -> list[dict[str, str]]:
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    rows = [{key: str(row[key]) for key in row.keys()} for query in PLACES for row in connection.execute(query)]  # noqa: SIM118
    connection.close()
    return rows


def filled(line: str, rows: Sequence[Mapping[str, str]], most: int) -> list[tuple[str, ...]]:
    """The words of a command, with the values of each of the first rows that have all of its names."""
    wanted = set(re.findall(r"{(\w+)}", line))
    fitting = [row for row in rows if wanted <= row.keys()] if wanted else [{}]
    lines = dict.fromkeys(tuple(word.format(**row) for word in line.split()) for row in fitting)
    return list(lines)[:most]


def ask(documents: Documents, name: str, client: TestClient, reads: Sequence[str]) -> None:
    """Write each document of the API, and the pages that are reached from the first."""
    for address in reads:
        if name == "big" and "/export/" in address:  # 135 MB of samples; the others have every kind of row
            continue
        answer = client.get(address)
        kind = answer.headers.get("content-type", "")
        text = answer.text if re.match(r"text/|application/(x-ndjson|.*json)", kind) else f"{len(answer.content)} bytes"
        if "json" in kind and "ndjson" not in kind:
            text = json.dumps(answer.json(), indent=1, sort_keys=True, ensure_ascii=False)
        documents.write(
            f"{name}/api", address, f"{answer.status_code} {kind}\n{without(text, os.environ['KERNELWATCH_STATE'])}"
        )
    for address, text in pages(client.get):
        documents.write(f"{name}/pages", address, text)


def addresses(described: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Every address of the API that is read: with each row that fits, and once with each value of a choice."""
    found = dict[str, None]()
    for path, operations in described["paths"].items():
        if "get" not in operations or path.endswith("/events") or path == "/metrics":
            continue
        given = operations["get"].get("parameters", [])
        choices = {one["name"]: chosen(one["schema"], described) for one in given}
        needed = [one["name"] for one in given if one.get("required")]
        fitting = [row for row in rows if all(name in row or choices[name] for name in needed)]
        for place, row in enumerate(fitting[:MOST_PLACES] if needed else [{}]):
            inside = {name: [row[name]] if name in row else choices[name] for name in needed}
            for values in combined(inside):
                target = path.format(**{key: quote(value, safe="") for key, value in values.items()})
                query = {key: value for key, value in values.items() if f"{{{key}}}" not in path}
                found[f"{target}?{urlencode(query)}".rstrip("?")] = None
                optional = [(name, value) for name, some in choices.items() if name not in needed for value in some]
                for name, value in optional if place == 0 else ():
                    found[f"{target}?{urlencode({**query, name: value})}"] = None
    return list(found)


def chosen(schema: Mapping[str, Any], described: Mapping[str, Any]) -> list[str]:
    """The values of a parameter that is one of a few words."""
    if name := schema.get("$ref"):
        schema = described["components"]["schemas"][name.rpartition("/")[2]]
    inner = [schema.get("items", {}), *schema.get("anyOf", ())]
    return [str(one) for one in schema.get("enum", ())] or [
        one for each in inner if each for one in chosen(each, described)
    ]


def combined(values: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    if not values:
        yield {}
        return
    (name, some), *rest = values.items()
    for value in some:
        for others in combined(dict(rest)):
            yield {name: value, **others}


def pages(get: Callable[[str], Any]) -> Iterator[tuple[str, str]]:
    """The text of the pages that are reached from the first, a few of each kind."""
    waiting, seen, kinds = ["/"], {"/"}, Counter[Any]()
    for address in waiting:
        parts = urlsplit(address)
        shape = re.sub(r"[0-9a-f]{7,}|\d+|(?<=targets/)[^/]+", "*", parts.path)
        kind = (shape, tuple(sorted(key for key, _ in parse_qsl(parts.query, keep_blank_values=True))))
        kinds.update((kind, shape))
        if kinds[kind] > MOST_OF_A_QUERY or kinds[shape] > MOST_OF_A_PAGE:
            continue
        answer = get(address)
        media = answer.headers.get("content-type", "")
        page = Page()
        if "html" in media:
            page.feed(answer.text)
        text = page.text() if "html" in media else answer.text
        yield address, f"{answer.status_code} {media} {answer.headers.get('location', '')}\n{text}"
        for link in sorted({link.partition("#")[0] for link in page.links}):
            whole = link if link.startswith("/") else f"{parts.path}{link}" if link.startswith("?") else ""
            if whole and not whole.startswith(("//", "/assets/", "/api/", "/metrics")) and whole not in seen:
                seen.add(whole)
                waiting.append(whole)


class Page(HTMLParser):
    """What a reader sees of a page, a line for each block, and where its links and forms lead."""

    INLINE = frozenset(
        {"a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "sub", "sup", "time", "tspan", "mark"}
    )
    SILENT = frozenset({"script", "style"})
    SAID = ("alt", "aria-label", "title", "placeholder", "name", "value", "action", "method", "data-needs")

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self._parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._silent += tag in self.SILENT
        if tag not in self.INLINE:
            self._parts.append("\n")
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
            self._parts.append(f"<{given['href']}>")
        if said := [f"{name}={given[name]}" for name in self.SAID if given.get(name) is not None]:
            self._parts.append(f"[{tag} {' '.join(said)}]")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in self.SILENT
        if tag not in self.INLINE:
            self._parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(re.sub(r"\s+", " ", data))

    def text(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self._parts).splitlines())
        return "\n".join(line for line in lines if line)


# -- two trees


def in_tree(tree: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a part of this file with the modules of a tree."""
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    environment = kept | ENVIRONMENT | {"PYTHONPATH": str(tree), "TREE": str(tree)}
    return subprocess.Popen([sys.executable, "-P", str(HERE), *words], cwd=tree, env=environment)


def finished(*processes: subprocess.Popen[bytes]) -> None:
    ended = [process.wait() for process in processes]
    if any(ended):
        sys.exit("A recording failed.")


def schema(database: Path) -> list[Any]:
    """The version, and the tables without the order of their lines: migrations write constraints as a set has them."""
    connection = sqlite3.connect(database)
    tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    version = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    return [{name: sorted(re.split(r",?\s*\n\s*", sql or "")) for name, sql in tables}, version]


def compare(base: str) -> int:
    """Record this tree and a revision; print the difference."""
    here = HERE.parents[1]
    goal = here / "build" / "same"
    shutil.rmtree(goal, ignore_errors=True)
    goal.mkdir(parents=True)
    git = ("git", "-C", str(here))
    with tempfile.TemporaryDirectory() as made:
        other, theirs, ours = Path(made, "tree"), Path(made, "theirs"), Path(made, "ours")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(other), base], check=True)
        try:
            finished(in_tree(other, "--sow", str(theirs)), in_tree(here, "--empty", str(ours)))
            if schema(ours / "kernelwatch.db") == schema(theirs / "big" / "kernelwatch.db"):
                ours = theirs
            else:
                print("The schemas differ: each tree fills databases of its own.", file=sys.stderr)
                shutil.rmtree(ours)
                finished(in_tree(here, "--sow", str(ours)))
            finished(
                in_tree(other, "--record", str(theirs), str(goal / "base")),
                in_tree(here, "--record", str(ours), str(goal / "now")),
            )
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)
    return difference(goal)


def difference(recorded: Path) -> int:
    """Print what `now` has and `base` has not, and the other way round; 1 if there is any."""
    return subprocess.run(["git", "diff", "--no-index", "--no-prefix", "base", "now"], cwd=recorded).returncode


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--base", default="HEAD", metavar="REVISION")
    for part in ("sow", "empty"):
        given.add_argument(f"--{part}", type=Path, help=argparse.SUPPRESS)
    given.add_argument("--record", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = given.parse_args()
    if not (options.sow or options.empty or options.record):
        sys.exit(compare(options.base))
    fixed()
    if options.sow:
        sow(options.sow)
    elif options.empty:
        os.environ["KERNELWATCH_STATE"] = str(options.empty)
        command(["db", "upgrade"])
    else:
        record(*options.record)


if __name__ == "__main__":
    main()
