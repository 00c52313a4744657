"""Load one served kernelwatch with readers while a forge delivers webhooks; needs wrk.  Everything on 127.0.0.1.

    python -m benchmarks.readers sqlite --readers 200 --seconds 180
    python -m benchmarks.readers postgresql --url postgresql://root@127.0.0.1:5432/postgres

Prints how the readers were answered, how long webhooks and /healthz took, and the memory of the process.  SQLite lies
in a temporary folder or is a copy of `--database`; on PostgreSQL a scratch database is made and dropped.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

SECRET = "load"
PATHS = (
    "/",
    "/targets/norms",
    "/runs/4",
    "/runs/4/cases.json",
    "/regressions",
    "/workers",
    "/api/v1/targets",
    "/api/v1/targets/norms/runs?limit=50",
    "/api/v1/runs/4",
    "/api/v1/queue",
    "/api/v1/targets/norms/series?case=rmsnorm.fwd.4096x1024.bf16-fp32&provider=norms&device=h200",
)
SCRIPT = """
local paths = {%s}
local i, counts, threads = 0, {}, {}
function setup(thread) table.insert(threads, thread) end
function init() answered = {} end
function request() i = i + 1; return wrk.format("GET", paths[i %% #paths + 1]) end
function response(status, headers)
  local key = tostring(status)
  if status == 503 and not headers["retry-after"] then key = "503 without Retry-After" end
  answered[key] = (answered[key] or 0) + 1
end
function done(summary, latency)
  for _, thread in ipairs(threads) do
    for status, n in pairs(thread:get("answered")) do counts[status] = (counts[status] or 0) + n end
  end
  local said = {}
  for status, n in pairs(counts) do table.insert(said, status .. ": " .. n) end
  local e = summary.errors
  print("readers: " .. table.concat(said, ", ") .. string.format(
    "; connect %%d, read %%d, write %%d, timeout %%d; all answers p50 %%.0f, p99 %%.0f, max %%.0f ms",
    e.connect, e.read, e.write, e.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
"""


@contextmanager
def database(kind: str, state: Path, url: str, file: Path | None) -> Iterator[str]:
    """The URL of a database for this load alone."""
    if kind == "sqlite":
        if file is not None:
            shutil.copy(file, state / "kernelwatch.db")
        yield f"sqlite:///{state / 'kernelwatch.db'}"
        return
    from sqlalchemy import create_engine, make_url, text

    name = f"kernelwatch_readers_{uuid.uuid4().hex[:8]}"
    server = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def served(port: int) -> Iterator[psutil.Process]:
    """`kernelwatch api` as operators start it."""
    api = subprocess.Popen([sys.executable, "-P", "-m", "service.cli", "api"])
    try:
        until = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                if api.poll() is not None or time.monotonic() > until:
                    raise
            time.sleep(0.2)
        yield psutil.Process(api.pid)
    finally:
        api.send_signal(signal.SIGTERM)
        try:
            api.wait(20)
        except subprocess.TimeoutExpired:
            api.kill()
            api.wait()


class Prober(threading.Thread):
    """Does something every so often, each time on its own connection, and keeps how long it took and what failed."""

    def __init__(self, name: str, every_s: float, ask: "Ask") -> None:
        super().__init__(daemon=True)
        self.label, self.every_s, self.ask = name, every_s, ask
        self.took: list[float] = []
        self.failed: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.every_s):
            began = time.perf_counter()
            try:
                answer = self.ask()
                if answer.status_code >= 300:
                    self.failed.append(str(answer.status_code))
            except httpx.HTTPError as error:
                self.failed.append(type(error).__name__)
            self.took.append(time.perf_counter() - began)

    def __str__(self) -> str:
        took = sorted(self.took)
        p50, p99 = (took[min(len(took) - 1, int(len(took) * share))] * 1000 for share in (0.5, 0.99))
        bad = f", FAILED {len(self.failed)}: {sorted(set(self.failed))}" if self.failed else ", none failed"
        return f"{self.label}: {len(took)} asked{bad}; p50 {p50:.0f}, p99 {p99:.0f}, max {took[-1] * 1000:.0f} ms"


class Ask:
    """One request to the served process."""

    def __init__(self, port: int, path: str, *, deliver: bool = False) -> None:
        self.address, self.deliver = f"http://127.0.0.1:{port}{path}", deliver
        fresh = httpx.Limits(max_keepalive_connections=0)  # a forge opens a connection for each delivery
        self.client = httpx.Client(limits=fresh, timeout=60, trust_env=False)

    def __call__(self) -> httpx.Response:
        if not self.deliver:
            return self.client.get(self.address)
        from service.forge.forge import signature

        body = json.dumps({"zen": uuid.uuid4().hex}).encode()
        headers = {"x-github-event": "ping", "x-github-delivery": uuid.uuid4().hex}
        headers["x-hub-signature-256"] = signature(body, SECRET)
        return self.client.post(self.address, content=body, headers=headers)


def load(port: int, api: psutil.Process, readers: int, seconds: int, folder: Path) -> None:
    script = folder / "paths.lua"
    script.write_text(SCRIPT % ", ".join(f'"{path}"' for path in PATHS))
    probers = [
        Prober("webhooks", 0.2, Ask(port, "/webhooks/github", deliver=True)),
        Prober("health", 0.5, Ask(port, "/healthz")),
    ]
    memory = [api.memory_info().rss]
    before = api.cpu_times()
    wrk = subprocess.Popen(
        ["wrk", "-t1", f"-c{readers}", f"-d{seconds}s", "--timeout", "60s", "-s", script, f"http://127.0.0.1:{port}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    for prober in probers:
        prober.start()
    for _ in range(9):
        time.sleep(seconds / 9)
        memory.append(api.memory_info().rss)
    said, _ = wrk.communicate(timeout=120)
    for prober in probers:
        prober.over.set()
    for prober in probers:
        prober.join(90)
    print(said.strip().splitlines()[-1])
    print(*probers, sep="\n")
    began = time.perf_counter()
    Ask(port, "/healthz")()
    print(f"/healthz after the load: {(time.perf_counter() - began) * 1000:.0f} ms")
    print("memory, MiB at each ninth:", *(f"{rss / 2**20:.0f}" for rss in memory))
    after = api.cpu_times()
    print(f"processor: {after.user - before.user + after.system - before.system:.0f} s of {seconds} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("sqlite", "postgresql"))
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--url", default="postgresql://root@127.0.0.1:5432/postgres", help="of the PostgreSQL server")
    parser.add_argument("--database", type=Path, help="a SQLite database to copy; by default a small one is filled")
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with database(given.kind, state, given.url, given.database) as url:
            os.environ |= {
                "KERNELWATCH_STATE": folder,
                "KERNELWATCH_DATABASE_URL": url,
                "KERNELWATCH_PORT": str(port),
                "KERNELWATCH_WEBHOOK_SECRET": SECRET,
            }
            _fill(given.database is None)
            print(
                f"{given.kind}, {given.readers} readers for {given.seconds} s; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            with served(port) as api:
                load(port, api, given.readers, given.seconds, state)


def _fill(small: bool) -> None:
    from service.db import migrate
    from service.db.engine import disconnect, transaction
    from tests.dashboards import seed

    migrate.upgrade()
    if small:
        with transaction() as session:
            seed.seed(session, time.time())
    disconnect()


if __name__ == "__main__":
    main()
