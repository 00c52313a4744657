"""A FactsReport as JSON, for programs: every change on its own, and every fact of the head."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from service.domain.codefacts.compiled import Compiled, Place
from service.domain.codefacts.findings import MENDS, FactsReport


def document(report: FactsReport) -> str:
    """The report as JSON text; what was not known is null."""
    return json.dumps(facts(report), indent=2, ensure_ascii=False, allow_nan=False)


def facts(report: FactsReport) -> dict[str, Any]:
    """Everything that a report says."""
    return {
        "headline": report.headline,
        "exit_code": report.exit_code,
        "target": report.target,
        "suite": report.suite,
        "archs": list(report.archs),
        "providers": list(report.providers),
        "head": dataclasses.asdict(report.head),
        "base": dataclasses.asdict(report.base) if report.base else None,
        "skipped": report.skipped,
        "counts": {"compiled": report.compiled, "compared": report.compared, "same_code": report.same},
        "violations": [
            {"rule": one.rule, "said": one.said, "mend": MENDS[one.rule], "places": list(map(_place, one.places))}
            for one in report.violations
        ],
        "known_before": list(map(_place, report.known_before)),
        "changes": [
            {
                **_place(one.place),
                "kernel": one.kernel or None,
                "what": one.what.value,
                "said": one.said,
                "before": one.before,
                "after": one.after,
                "worse": one.worse,
            }
            for one in report.changes
        ],
        "uncompiled": [
            {"state": one.state.value, "reason": one.reason, "places": list(map(_place, one.places))}
            for one in report.uncompiled
        ],
        "notes": list(report.notes),
        "differences": [dataclasses.asdict(one) for one in report.differences],
        "seconds": report.seconds,
        "facts": [{**_place(place), **_compiled(one)} for place, one in report.facts],
    }


def _place(place: Place) -> dict[str, str]:
    return {"provider": place.provider, "case": place.case, "arch": place.arch}


def _compiled(one: Compiled) -> dict[str, Any]:
    kernels = [{**_plain(kernel), "shared": kernel.shared} for kernel in one.kernels]
    return {**_plain(one), "state": one.state.value, "kernels": kernels}


def _plain(value: Any) -> dict[str, Any]:
    return {field.name: _unfrozen(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _unfrozen(value: Any) -> Any:
    """As JSON has it: lists, tables, and the fields of a value."""
    if isinstance(value, tuple):
        return [_unfrozen(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _unfrozen(one) for name, one in value.items()}
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
