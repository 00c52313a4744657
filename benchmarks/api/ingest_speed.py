"""How fast measurements made elsewhere are stored, through the API of a real server.

python -m benchmarks.api.ingest_speed [--mb 100] [--mbit 10] [--database URL]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.api.servers import Server, kernelwatch
from benchmarks.stored import state
from service.db.engine import disconnect, transaction
from service.domain.access import local, read_grants
from service.ledger.access import keys
from service.ledger.acting import as_actor
from tests import world

SAMPLES = 5  # of a measurement, as a run of kernelwatch has rounds
MAX_GROWTH_MB = 64  # of the server, for a batch of any size
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
    parser.add_argument("--mbit", type=float, help="speed of the line in Mbit/s; by default as fast as it goes")
    parser.add_argument("--database", help="URL of an empty database; by default a new SQLite file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, state(Path(folder), given.database):
        world.target(name="norms")
        with as_actor(local("study")), transaction() as session:
            _, key = keys.create(session, "study", read_grants(["ingest:norms"]))
        disconnect()
        body = Path(folder) / "batch"
        with body.open("wb") as file:
            file.writelines(lines(given.mb * 10**6))
        with kernelwatch() as server:
            send(server, key, body, given.mbit)


def send(server: Server, key: str, body: Path, mbit: float | None) -> None:
    size = body.stat().st_size
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/x-ndjson",
        "Content-Length": str(size),
        "Idempotency-Key": "once",
    }
    path, parts = "targets/norms/ingested", list[float]()
    before, cpu, began = _peak_mb(server), server.cpu_s(), time.perf_counter()
    answer = server.client.post(path, content=_parts(body, mbit, parts), headers=headers)
    took, used = time.perf_counter() - began, server.cpu_s() - cpu
    assert answer.status_code == 201, answer.text
    stored, peak = answer.json(), _peak_mb(server)
    print(f"{size / 1e6:.0f} MB, {stored['measurements']} measurements, {stored['samples']} samples")
    print(f"sent in {parts[-1] - began:.1f} s, stored after {took:.1f} s: {stored['samples'] / took:,.0f} samples/s")
    print(f"{used:.1f} s of CPU in the server: {stored['samples'] / used:,.0f} samples per second of CPU")
    print(f"most memory of the server: {before:.0f} MB before, {peak:.0f} MB after")
    assert peak - before < MAX_GROWTH_MB, f"the server grew by {peak - before:.0f} MB"


def _parts(body: Path, mbit: float | None, sent_at: list[float]) -> Iterator[bytes]:
    """The body in parts, at the speed of the line; the times at which they were taken go to `sent_at`."""
    began, sent = time.perf_counter(), 0
    with body.open("rb") as file:
        while part := file.read(1 << 16):
            if mbit:
                time.sleep(max(0.0, began + sent * 8 / mbit / 1e6 - time.perf_counter()))
            yield part
            sent += len(part)
            sent_at.append(time.perf_counter())


def _peak_mb(server: Server) -> float:
    """The most memory that the process has had at once."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [peak] = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak) * 1024 / 1e6


if __name__ == "__main__":
    main()
