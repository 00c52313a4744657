"""What a request for a page costs the server: CPU and time, and the bytes of the answer."""

import gzip
import statistics
import time
from dataclasses import dataclass

from benchmarks.api.servers import Server

_WARM = 3


@dataclass(frozen=True)
class Cost:
    """Medians over the requests; `gzip_kb` is as sent, or as it could be sent by a server that does not compress."""

    cpu_ms: float
    wall_ms: float
    raw_kb: float
    gzip_kb: float


def cost(server: Server, path: str, requests: int) -> Cost | None:
    """Ask one after the other.  None where there is no such page."""
    url = server.client.base_url.copy_with(raw_path=path.encode())
    answer = server.client.get(url)
    if answer.status_code == 404:
        return None
    answer.raise_for_status()
    for _ in range(_WARM):
        server.client.get(url)
    cpu, wall = list[float](), list[float]()
    for _ in range(requests):
        before, began = server.cpu_s(), time.perf_counter()
        server.client.get(url)
        wall.append((time.perf_counter() - began) * 1e3)
        cpu.append((server.cpu_s() - before) * 1e3)
    packed = answer.headers.get("content-encoding") == "gzip"
    sent = answer.num_bytes_downloaded if packed else len(gzip.compress(answer.content, 5))
    return Cost(statistics.median(cpu), statistics.median(wall), len(answer.content) / 1e3, sent / 1e3)
