"""How fast measurements made elsewhere are stored, through the API of a real server.

python -m tests.studies.api.ingest_speed [--mb 100] [--database URL]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from service.db import migrate
from service.db.engine import transaction
from service.domain.access import local, read_grants
from service.ledger.access import keys
from service.ledger.access.acting import as_actor
from service.settings import settings
from tests import world
from tests.fakes.processes import free_port
from tests.studies.readers import served

SAMPLES = 5  # of a measurement, as a run of kernelwatch has rounds
BATCH = {"batch": {"tool": "a study", "machine": "here", "device": "h200"}}
PROVIDERS, WIDTHS = ("ours", "quack"), (1024, 2048, 4096, 8192)


def lines(size: int) -> Iterator[bytes]:
    """Lines of a batch of about `size` bytes."""
    first = json.dumps(BATCH).encode() + b"\n"
    yield first
    sent, n = len(first), 0
    while sent < size:
        case = f"rmsnorm.fwd.4096x{WIDTHS[n % len(WIDTHS)]}.bf16-fp32"
        samples = [round(7 + (n * 31 + one * 17) % 97 / 100, 4) for one in range(SAMPLES)]
        row = {"revision": f"{n // 200:040x}", "provider": PROVIDERS[n % 2], "case": case, "samples": samples}
        line = json.dumps(row).encode() + b"\n"
        yield line
        sent, n = sent + len(line), n + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the batch")
    parser.add_argument("--database", help="URL of an empty database; by default a new SQLite file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNELWATCH_STATE"] = folder
        if given.database:
            os.environ["KERNELWATCH_DATABASE_URL"] = given.database
        settings.cache_clear()
        migrate.upgrade(settings().database)
        world.target(name="norms")
        with as_actor(local("study")), transaction() as session:
            _, key = keys.create(session, "study", read_grants(["ingest:norms"]))
        port = free_port()
        body = Path(folder) / "batch"
        body.write_bytes(b"".join(lines(given.mb * 10**6)))
        os.environ["KERNELWATCH_PORT"] = str(port)
        with served(port) as server:
            send(f"http://127.0.0.1:{port}", key, body, server)


def send(address: str, key: str, body: Path, server: psutil.Process) -> None:
    before = server.memory_info().rss
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson", "Idempotency-Key": "once"}
    cpu, began = server.cpu_times(), time.perf_counter()
    with body.open("rb") as file:
        answer = httpx.post(f"{address}/api/v1/targets/norms/ingested", content=file, headers=headers, timeout=600)
    took = time.perf_counter() - began
    after = server.cpu_times()
    assert answer.status_code == 201, answer.text
    stored = answer.json()
    used = after.user + after.system - cpu.user - cpu.system
    print(f"{body.stat().st_size / 1e6:.0f} MB, {stored['measurements']} measurements, {stored['samples']} samples")
    print(f"{took:.1f} s, {stored['samples'] / took:,.0f} samples/s; {used:.1f} s of CPU in the server")
    print(f"memory of the server: {before / 1e6:.0f} MB before, {server.memory_info().rss / 1e6:.0f} MB after")


if __name__ == "__main__":
    main()
