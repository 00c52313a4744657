"""Benchmarks of PyTorch: the dashboard of TorchInductor, and the database behind hud.pytorch.org."""

import re
from collections.abc import Iterator

from service.domain.imports.tables import CsvRow, table
from service.domain.imports.trees import Place, decoded, trees
from service.domain.imports.units import ImportUnit, unit_named
from service.domain.imports.values import Amount, ImportedValue, ImportFile, ValueOrigin, imported
from service.domain.ingest import COUNT
from service.domain.states import Better, Missing

_RATIO = ImportUnit("ratio", better=Better.LARGER)
_INDUCTOR = {
    "speedup": _RATIO,
    "abs_latency": unit_named("ms"),
    "compilation_latency": unit_named("s"),
    "compression_ratio": _RATIO,
    "eager_peak_mem": unit_named("GB"),
    "dynamo_peak_mem": unit_named("GB"),
    "unique_graphs": ImportUnit(COUNT),
    "graph_breaks": ImportUnit(COUNT),
    "unique_graph_breaks": ImportUnit(COUNT),
}


def inductor(source: ImportFile) -> Iterator[ImportedValue]:
    """The performance file of the dynamo benchmarks.  A model whose speed-up or batch size is 0 failed.

    The batch size is no part of the name, as a model that failed has none.
    """
    read = table(source, ("dev", "name", "batch_size", "speedup"))
    metrics = [column for column in read.columns if column in _INDUCTOR]
    for row in read.rows:
        failed = row.amount("speedup") == 0 or row.amount("batch_size") == 0
        for metric in metrics:
            name = f"{row.cells['name']} {metric} {row.cells['dev']}"
            yield imported(name, [_or_failed(row, metric, failed=failed)], _INDUCTOR[metric])


def _or_failed(row: CsvRow, metric: str, *, failed: bool) -> Amount:
    return Missing.FAILED if failed else row.amount(metric)


# Metrics whose name says what `unit` may leave out, by the first of these words that it has.
_BY_NAME = {
    "speedup": Better.LARGER,
    "throughput": Better.LARGER,
    "bandwidth": Better.LARGER,
    "accuracy": Better.LARGER,
    "compression": Better.LARGER,
    "latency": Better.SMALLER,
    "memory": Better.SMALLER,
    "time": Better.SMALLER,
    "ratio": Better.LARGER,
    "utilization": Better.LARGER,
}
_IN_BRACKETS = re.compile(r"[^()]*\(([^()]+)\)")  # `memory_bandwidth(GB/s)`
_RATE = re.compile(r"(?:.*_)?([^_]+)_per_(?:s|sec|second)", re.IGNORECASE)  # `token_per_sec`


def pytorch_hud(source: ImportFile) -> Iterator[ImportedValue]:
    """Results in the schema v3 of PyTorch's benchmark database: an array, one object, or JSON lines."""
    for result in trees(source.name, decoded(source.name, source.content)):
        metric, benchmark = result.field("metric"), result.field("benchmark")
        name = metric.field("name").string()
        unit = metric.get("unit")
        written = (unit.string() if unit else "") or _unit_in(name)
        model = result.get("model")
        parts = [benchmark.field("name"), model and model.get("name"), benchmark.get("mode"), benchmark.get("dtype")]
        words = [part.string() for part in parts if part] + [name]
        said = name.lower().partition("(")[0].strip().split("_")
        better = next((way for word, way in _BY_NAME.items() if word in said), None)
        of = unit_named(written)
        yield imported(
            " ".join(words), metric.field("benchmark_values").amounts(), of, of.better or better, _origin(result)
        )


def _unit_in(name: str) -> str:
    """The unit that the name of a metric ends with."""
    if match := _IN_BRACKETS.fullmatch(name):
        return match[1]
    if match := _RATE.fullmatch(name):
        return f"{match[1]}/s"
    return name.rpartition("_")[2]


def _origin(result: Place) -> ValueOrigin:
    sha, when = result.get("head_sha"), result.get("timestamp")
    model = result.get("model")
    backend = model.get("backend") if model else None
    return ValueOrigin(
        contender=backend.string() if backend else None,
        revision=sha.revision() if sha else None,
        at=when.time() if when else None,
    )
