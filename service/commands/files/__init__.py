"""Results of runs as files that other tools read: documents of runs in, text out."""

import json
from collections.abc import Callable, Mapping, Sequence

from kernelwatch.client.models import RunDocument
from service.commands.files import benchmarks, junit, sarif
from service.commands.output.formats import RunFormat


def texts(runs: Sequence[RunDocument], comment: Callable[[], str]) -> Mapping[str, Callable[[], str]]:
    """The formats of a result besides those of every command, and the comment of a pull request as its Markdown."""
    return {
        RunFormat.MD: comment,
        RunFormat.JUNIT: lambda: junit.document(runs),
        RunFormat.SARIF: lambda: as_json(sarif.document(runs)),
        RunFormat.GITHUB_ACTION_BENCHMARK: lambda: as_json(
            [benchmarks.of_action(one) for run in runs for one in benchmarks.of_run(run)]
        ),
        RunFormat.BENCHER: lambda: as_json(
            benchmarks.metric_format([one for run in runs for one in benchmarks.of_run(run)])
        ),
    }


def as_json(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
