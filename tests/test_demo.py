"""The demo, measured for real on the processor, as `make run` starts it: supervised processes and SQLite."""

import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.fakes import demo
from tests.fakes.processes import free_port, running, until
from workers import environments


@pytest.mark.demo
@pytest.mark.timeout(900)
def test_the_demo_comes_to_the_verdicts_that_its_commits_deserve(state, record_property):
    environments.adopt_stack("host", Path(sys.executable), [])
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {"KERNELWATCH_STATE": str(state), "KERNELWATCH_PORT": str(port)}
    began = time.monotonic()
    with running({"up": ["-m", "service.cli", "up", "--demo"]}, environment, state / "test-logs"):
        until(lambda: demo.runs(address), 800)
        took = time.monotonic() - began
        print(f"the demo took {took:.0f} s on {os.cpu_count()} cores")
        record_property("demo_s", round(took))
        assert demo.differences(demo.runs(address)) == []

        for path in ("/", "/regressions", "/targets/demo", "/workers"):
            assert httpx.get(address + path, timeout=20).status_code == 200
        page = httpx.get(f"{address}/runs/{demo.runs(address)['pull-7']['id']}", timeout=20).text
        _, heading, told = page.partition("What the pull request would be told")  # the demo has no forge
        comment = told.partition("As Markdown")[0]
        assert heading
        assert "<strong>1 regression</strong>" in comment
        assert "rmsnorm.bwd.512x512.fp32" in comment
