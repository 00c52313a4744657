"""github-action-benchmark, Bencher and airspeed velocity: formats that keep results of commits."""

import itertools
from collections.abc import Iterator, Sequence

from service.domain.imports.trees import Place, decoded, tree
from service.domain.imports.units import ImportUnit, unit_named
from service.domain.imports.values import UNKNOWN, Amount, ImportedValue, ImportFile, ValueOrigin, imported
from service.domain.states import Better, Missing

_DATA_JS = "window.BENCHMARK_DATA"
# The tools of github-action-benchmark whose values are better when they are larger.
_LARGER_TOOLS = {"customBiggerIsBetter", "pytest", "benchmarkjs"}
_MS = 1e-3
# Measures that every Bencher has, and memory; of others the unit is not in the file.
_BENCHER = {
    "latency": unit_named("ns"),
    "throughput": ImportUnit("ops/s", better=Better.LARGER),
    "build-time": unit_named("s"),
    "file-size": unit_named("B"),
    "memory": unit_named("B"),
}
_ASV = {
    "time": unit_named("s"),
    "timeraw": unit_named("s"),
    "mem": unit_named("B"),
    "peakmem": unit_named("B"),
}
_MOST_PARAMETERS = 32  # of one benchmark
_MOST_FAILED = 10_000  # combinations of them that all failed
_MOST_VALUES = 1_000_000  # of a file: a few bytes can stand for many that failed


def github_action_benchmark(source: ImportFile) -> Iterator[ImportedValue]:
    """`data.js`, the external JSON file with many commits, or the array that the action reads of one run."""
    content = decoded(source.name, source.content)
    begin = content[: content.find("=") + 1]
    if begin.strip().startswith(_DATA_JS):  # blanks keep the columns that errors name
        content = " " * len(begin) + content[len(begin) :].rstrip().removesuffix(";")
    root = tree(source.name, content)
    if isinstance(root.value, list):
        for bench in root.elements():
            yield _bench(bench, None, UNKNOWN)
        return
    for suite, entries in root.field("entries").entries():
        for entry in entries.elements():
            commit, when = entry.field("commit"), entry.get("date")
            stamp = commit.get("timestamp")
            origin = ValueOrigin(
                contender=suite,
                revision=commit.field("id").revision(),
                at=when.time(_MS) if when else stamp.time() if stamp else None,
            )
            tool = entry.get("tool")
            larger = tool is not None and tool.string() in _LARGER_TOOLS
            custom = tool is not None and tool.string() == "customSmallerIsBetter"
            better = Better.LARGER if larger else Better.SMALLER if custom else None
            for bench in entry.field("benches").elements():
                yield _bench(bench, better, origin)


def _bench(bench: Place, better: Better | None, origin: ValueOrigin) -> ImportedValue:
    unit = bench.get("unit")
    of = unit_named(unit.string() if unit else "")
    return imported(bench.field("name").string(), [bench.field("value").amount()], of, better, origin)


def bencher(source: ImportFile) -> Iterator[ImportedValue]:
    """Bencher Metric Format: names, and of each its measures with a value."""
    for name, measures in tree(source.name, decoded(source.name, source.content)).entries():
        for written, measure in measures.entries():
            known = written.lower().replace(" ", "-")  # a file may have the name of a measure instead
            slug = known if known in _BENCHER else written
            unit = _BENCHER.get(slug) or ImportUnit(slug)
            whole = name if slug == "latency" else f"{name} {slug}"
            yield imported(whole, [measure.field("value").amount()], unit)


def asv(source: ImportFile) -> Iterator[ImportedValue]:
    """A result file of airspeed velocity, version 2: a value for each combination of parameters.

    `null` is a benchmark that failed, for all results where every one did, and NaN one that was skipped.
    """
    root = tree(source.name, decoded(source.name, source.content))
    params = root.get("params")
    machine = params.get("machine") if params else None
    when, environment = root.get("date"), root.get("env_name")
    origin = ValueOrigin(
        contender=environment.string() if environment else None,
        revision=root.field("commit_hash").revision(),
        at=when.time(_MS) if when else None,
        machine=machine.string() if machine else None,
    )
    columns = [column.string() for column in root.field("result_columns").elements()]
    count = 0
    for name, row in root.field("results").entries():
        if row.value is None:
            continue
        cells = dict(zip(columns, row.elements(), strict=False))
        for value in _of_asv(name, row, cells, origin):
            count += 1
            if count > _MOST_VALUES:
                raise root.wrong(f"it has more than {_MOST_VALUES:,} results; import it in parts.")
            yield value


def _of_asv(name: str, row: Place, cells: dict[str, Place], origin: ValueOrigin) -> Iterator[ImportedValue]:
    kind = name.rpartition(".")[2].partition("_")[0]
    unit = _ASV.get(kind) or ImportUnit("value")  # of a `track` benchmark the unit is in another file
    results, params, samples = (cells.get(column) for column in ("result", "params", "samples"))
    if results is None:
        raise row.wrong("there is no column result.")
    values = [each.amount() for each in results.elements()] if results.value is not None else [None] * _MOST_FAILED
    runs = list(samples.elements()) if samples and samples.value is not None else []
    axes = [[each.string() for each in axis.elements()] for axis in params.elements()] if params else []
    if len(axes) > _MOST_PARAMETERS:
        raise row.wrong(f"it has more than {_MOST_PARAMETERS} parameters.")
    for number, words in enumerate(itertools.islice(itertools.product(*axes), len(values))):
        kept = runs[number] if number < len(runs) else None
        amounts: Sequence[Amount] = kept.amounts() if kept and kept.value else [_failed(values[number])]
        yield imported(f"{name}({', '.join(words)})" if words else name, amounts, unit, origin=origin)


def _failed(amount: Amount) -> Amount:
    return Missing.FAILED if amount is None else amount
