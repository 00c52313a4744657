"""What steps.sh asks of a running service: `drive.py known SHA | idle SECONDS | copy FILE | pull N HEAD BASE | …`."""

import contextlib
import gzip
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
import urllib.request
import uuid
from pathlib import Path

STATE = Path(os.environ["KERNELWATCH_STATE"])
ADDRESS = f"http://127.0.0.1:{os.environ['KERNELWATCH_PORT']}"
REPOSITORY = "okafor/warpnorm"
COPIED_EVERY_S = 20
QUIET_S = 13  # nothing was queued or leased for so long: control may still ask for more


def rows(question, *values):
    with contextlib.closing(
        sqlite3.connect(f"file:{STATE / 'kernelwatch.db'}?mode=ro", uri=True, timeout=30)
    ) as database:
        return database.execute(question, values).fetchall()


def known(sha):
    """Wait until the poll has found the revision."""
    for _ in range(120):
        if rows("SELECT 1 FROM runs JOIN revisions ON revisions.id = runs.revision_id WHERE sha = ?", sha):
            return
        time.sleep(0.5)
    sys.exit(f"{sha} was not found by polling")


def idle(seconds):
    """Wait until no run is queued or leased, or until the time is over; say what ended meanwhile."""
    until, quiet_since, said = time.monotonic() + float(seconds), time.monotonic(), {}
    copied = time.monotonic()
    while time.monotonic() < until:
        if time.monotonic() - copied > COPIED_EVERY_S:
            copy(Path(os.environ["OUT"], "kernelwatch.db.gz"))
            copied = time.monotonic()
        found = rows(
            "SELECT runs.id, targets.name, substr(sha, 1, 7), subject, purpose, state, stage, started_at, finished_at"
            " FROM runs JOIN revisions ON revisions.id = runs.revision_id JOIN targets ON targets.id = runs.target_id"
        )
        for number, target, sha, subject, purpose, state, _stage, began, ended in found:
            if ended is not None and said.get(number) != state:
                said[number] = state
                took = f"{ended - began:.1f} s" if began else ""
                told = outcomes(number)
                print(f"run {number} {target} {sha} {purpose} {state} {took} {told}: {subject[:50]}", flush=True)
        if any(state in ("queued", "leased", "QUEUED", "LEASED") for _, _, _, _, _, state, *_ in found):
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > QUIET_S:
            return
        time.sleep(1)
    open_ones = [(one[0], one[5], one[6]) for one in found if str(one[5]).lower() in ("queued", "leased")]
    print(f"still open after {seconds} s: {open_ones}", flush=True)


def copy(to):
    """A compressed copy of the database, whole at every moment."""
    to = Path(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    place = STATE / "copy.db"
    place.unlink(missing_ok=True)
    original = contextlib.closing(sqlite3.connect(STATE / "kernelwatch.db", timeout=30))
    with original as database, contextlib.closing(sqlite3.connect(place)) as other:
        database.backup(other)
        other.execute("VACUUM")
    unfinished = STATE / "copy.db.gz"
    unfinished.write_bytes(gzip.compress(place.read_bytes(), 6))
    to.write_bytes(unfinished.read_bytes())


def calibrated(seconds):
    """Wait until a calibration has ended: control asks for one when a night has gone by."""
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        ended = rows("SELECT id, finished_at - started_at FROM runs WHERE purpose = 'calibration' AND state = 'done'")
        if ended:
            print(f"calibrations: {ended}", flush=True)
            return
        time.sleep(1)
    print(f"no calibration after {seconds} s", flush=True)


def outcomes(number):
    counts = rows(
        "SELECT baseline_kind, outcome, count(*) FROM verdicts WHERE run_id = ? GROUP BY 1, 2 ORDER BY 1, 2", number
    )
    return " ".join(f"{kind}:{outcome}={count}" for kind, outcome, count in counts if kind == "parent")


def pull(number, head, base):
    """Post what GitHub posts when a pull request is opened."""
    repository = {"full_name": REPOSITORY}
    said = {
        "action": "opened",
        "number": int(number),
        "repository": repository,
        "pull_request": {
            "head": {"sha": head, "repo": repository},
            "base": {"sha": base, "ref": "main"},
            "user": {"login": "mira"},
        },
    }
    body = json.dumps(said).encode()
    secret = os.environ["KERNELWATCH_WEBHOOK_SECRET"].encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": str(uuid.uuid4()),
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest(),
    }
    asked = urllib.request.Request(f"{ADDRESS}/webhooks/github", body, headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        print(answer.status, answer.read().decode()[:200], flush=True)
    known(head)


def pages(folder):
    """The pages that a person would open, as they are served."""
    names = {"index": "/", "regressions": "/regressions", "calibration": "/calibration", "workers": "/workers"}
    names |= {f"target-{name}": f"/targets/{name}" for (name,) in rows("SELECT name FROM targets")}
    names |= {f"run-{number}": f"/runs/{number}" for (number,) in rows("SELECT id FROM runs WHERE state != 'queued'")}
    names |= {f"bisection-{number}": f"/bisections/{number}" for (number,) in rows("SELECT id FROM bisections")}
    names |= {f"regression-{n}": f"/regressions/{n}" for (n,) in rows("SELECT id FROM regressions LIMIT 20")}
    for name, path in names.items():
        try:
            with urllib.request.urlopen(ADDRESS + path, timeout=30) as answer:
                Path(folder, f"{name}.html").write_bytes(answer.read())
        except OSError as error:
            print(f"{path}: {error}", flush=True)


if __name__ == "__main__":
    {"known": known, "idle": idle, "calibrated": calibrated, "copy": copy, "pull": pull, "pages": pages}[sys.argv[1]](
        *sys.argv[2:]
    )
