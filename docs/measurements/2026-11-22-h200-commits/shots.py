"""Pictures of the pages of a kept database: `shots.py kernelwatch.db.gz FOLDER [PATH …]`, run in the repository.

Without paths: the dashboard, the targets, the run with most verdicts of each outcome, regressions, bisections and the
calibration.
"""

import gzip
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

PORT = 28733
INTERESTING = ("regression", "improvement", "invalid")


def usual(database):
    """The paths worth a picture, by file name."""
    rows = sqlite3.connect(database).execute
    found = {"dashboard": "/", "regressions": "/regressions", "calibration": "/calibration"}
    found |= {f"target-{name}": f"/targets/{name}" for (name,) in rows("SELECT name FROM targets")}
    for outcome in INTERESTING:
        most = "SELECT run_id FROM verdicts WHERE outcome = ? GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
        found |= {f"run-{outcome}": f"/runs/{number}" for (number,) in rows(most, (outcome,))}
    return found | {f"bisection-{number}": f"/bisections/{number}" for (number,) in rows("SELECT id FROM bisections")}


def main():
    kept, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        database = Path(state, "kernelwatch.db")
        database.write_bytes(gzip.decompress(kept.read_bytes()))
        paths = {path.strip("/").replace("/", "-"): path for path in sys.argv[3:]} or usual(database)
        mine = {**os.environ, "KERNELWATCH_STATE": state, "KERNELWATCH_PORT": str(PORT)}
        subprocess.run([sys.executable, "-P", "-m", "service.cli", "db", "upgrade"], env=mine, check=True)
        api = subprocess.Popen([sys.executable, "-P", "-m", "service.cli", "api"], env=mine)
        try:
            address = f"http://127.0.0.1:{PORT}"
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{address}/readyz", timeout=5)
                    break
                except OSError:
                    time.sleep(0.5)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                for name, path in paths.items():
                    page.goto(address + path, wait_until="networkidle")
                    page.screenshot(path=folder / f"{name}.png", full_page=True)
                    print(name, path)
                browser.close()
        finally:
            api.terminate()
            api.wait(20)


if __name__ == "__main__":
    main()
