"""Write the results of runs into a folder, for the steps of a job that come after."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from service.commands.output.formats import as_json
from service.domain.text import one_line
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import RunDocument
    from service.commands.output.views import View

GRAVEST = ("fail", "undecided", "warn", "pass")  # states of the gate


def save(folder: Path, view: "View", runs: Sequence["RunDocument"]) -> None:
    """Write report.json, report.md, and result.env with a line for each value.

    Raises:
        BadInput: The folder cannot be written.
    """
    texts = {"report.json": as_json(view.document), "result.env": _values(runs, view.code)}
    if view.markdown is not None:
        texts["report.md"] = view.markdown()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--save cannot write to {folder}: {error.strerror}.") from None


def _values(runs: Sequence["RunDocument"], code: int) -> str:
    """Values for shells; what a repository wrote into a headline stays in its line."""
    gravest = min(runs, key=lambda run: GRAVEST.index(run.gate.state) if run.gate.state in GRAVEST else 0)
    values = {
        "runs": " ".join(str(run.id) for run in runs),
        "outcome": gravest.gate.state,
        "exit_code": str(code),
        "url": gravest.url,
        "headline": gravest.headline,
    }
    return "\n".join(f"{name}={one_line(value, 1000)}" for name, value in values.items())
