"""The report of a study as Markdown.  Pure."""

from collections.abc import Iterable, Sequence
from statistics import median

from kernels.studies.results import Results
from kernels.studies.study import Study, StudyTable

_HOLDS = {True: "holds", False: "does not hold", None: "undecided"}


def document(study: Study, results: Results) -> str:
    """The whole report: where it was measured, findings, tables."""
    found = study.report(results)
    findings = [(one.claim, one.found, _HOLDS[one.holds]) for one in found.findings]
    parts = [
        f"# {study.title}",
        study.question,
        f"Source: [{study.source.title}]({study.source.url}), {study.source.hardware}.",
        *_where(results),
    ]
    parts += [_table(("claim", "measured here", ""), findings)] if findings else []
    for table in found.tables:
        parts += [f"## {table.title}", _of(table)]
    return "\n\n".join(parts) + "\n"


def _where(results: Results) -> list[str]:
    lines = []
    for session in results.sessions:
        revision = session.code.get("revision", "unknown revision")
        form = ", quick form" if session.quick else ""
        lines.append(f"Measured on {session.device}{form} at {revision}, begun {session.began}.")
    found = [_versions(note.value) for note in results.notes if note.what == "stack"]
    stacks = dict.fromkeys(filter(None, found))
    control = results.control()
    middle = f" Two copies of the first arm differ by {median(control):.2%} in the median." if control else ""
    return [" ".join(lines) + middle, *(f"- {versions}" for versions in stacks)]


def _versions(stack: object) -> str:
    if not isinstance(stack, dict):
        return ""
    device = stack.get("device") or {}
    versions = ", ".join(
        f"{name} {version}" for name, version in stack.items() if name not in ("arm", "device") and version
    )
    return f"{device.get('name', device.get('kind', ''))}: {versions}" if versions else ""


def _of(table: StudyTable) -> str:
    text = _table(table.columns, table.rows)
    return f"{text}\n\n{table.note}" if table.note else text


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(columns) - 1)]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in (columns, rule, *rows)
    )
