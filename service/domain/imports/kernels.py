"""TritonBench, `triton.testing.perf_report` and Liger-Kernel: tables of kernels."""

import json
import re
from collections.abc import Iterator
from pathlib import PurePath

from service.domain.imports.tables import CsvRow, table
from service.domain.imports.units import ImportUnit, unit_named
from service.domain.imports.values import ImportedValue, ImportFile, ValueOrigin, imported, is_revision, moment
from service.domain.states import Better
from service.errors import BadInput

_RATIO = ImportUnit("ratio", better=Better.LARGER)
# What TritonBench measures, with its unit.  Columns that are no measurement, such as best_config, are not read.
_TRITONBENCH = {
    "latency": unit_named("ms"),
    "walltime": unit_named("ms"),
    "cpu_latency": unit_named("ms"),
    "compile_time": unit_named("ms"),
    "gbps": unit_named("GB/s"),
    "tflops": unit_named("TFLOP/s"),
    "speedup": _RATIO,
    "mem_footprint_compression_ratio": _RATIO,
    "gpu_peak_mem": unit_named("GB"),
    "cpu_peak_mem": unit_named("GB"),
}
_WITH_UNIT = re.compile(r"(.+)\(([^()]+)\)")


def tritonbench(source: ImportFile) -> Iterator[ImportedValue]:
    """`run.py --csv`: a row for each input, and a column for each provider and metric."""
    read = table(source)
    first, *columns = read.columns
    metrics = {
        column: (provider, metric)
        for column in columns
        for provider, _, metric in [column.rpartition("-")]
        if provider and metric in _TRITONBENCH
    }
    if not metrics:
        raise BadInput(f"{source.name}: line 1: no column is named PROVIDER-METRIC, such as liger-latency.")
    operator = PurePath(source.name).stem
    for row in read.rows:
        shape = row.cells[first].strip()
        if shape == "average":
            continue
        for column, (provider, metric) in metrics.items():
            name = f"{operator} {shape}" + ("" if metric == "latency" else f" {metric}")
            yield imported(name, [row.amount(column)], _TRITONBENCH[metric], origin=ValueOrigin(contender=provider))


def triton(source: ImportFile) -> Iterator[ImportedValue]:
    """What `perf_report` saves: columns of arguments, then one for each provider.

    Raises:
        BadInput: If neither the columns nor the caller name the unit.
    """
    read = table(source)
    matches = ((column, _WITH_UNIT.fullmatch(column)) for column in read.columns)
    named = {column: (match[1].rstrip(), match[2]) for column, match in matches if match}
    given = source.unit
    if not named and given is None:
        raise BadInput(f"{source.name}: line 1: the columns name no unit: give it, for example --unit GB/s.")
    providers = named or {column: (column, given or "") for column in read.columns[1:]}
    arguments = [column for column in read.columns if column not in providers]
    benchmark = PurePath(source.name).stem
    for row in read.rows:
        shape = " ".join(f"{column}={_whole(row, column)}" for column in arguments)
        for column, (provider, unit) in providers.items():
            of = unit_named(unit)
            yield imported(f"{benchmark} {shape}", [row.amount(column)], of, origin=ValueOrigin(contender=provider))


def _whole(row: CsvRow, column: str) -> str:
    """An argument as it was given: pandas writes 1024 as 1024.000000."""
    written = row.cells[column].strip()
    whole, _, rest = written.partition(".")
    return whole if whole and not rest.strip("0") else written


_LIGER = ("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_value")


def liger(source: ImportFile) -> Iterator[ImportedValue]:
    """`all_benchmark_data.csv` of Liger-Kernel: the median of every kernel, provider, mode, metric and size."""
    read = table(source, (*_LIGER, "y_value_50"))
    for row in read.rows:
        cells = row.cells
        release = cells.get("liger_version", "").strip()
        if release and not is_revision(release):
            raise row.wrong("liger_version", f"{release[:80]!r} is no release.")
        when = cells.get("timestamp", "").strip()
        if when and moment(when) is None:
            raise row.wrong("timestamp", f"{when[:80]!r} is no time.")
        origin = ValueOrigin(
            contender=cells["kernel_provider"],
            revision=release or None,
            at=moment(when) if when else None,
            machine=cells.get("gpu_name") or None,
        )
        words = [cells[name] for name in ("kernel_name", "kernel_operation_mode", "metric_name")]
        words += [f"{cells['x_name']}={_whole(row, 'x_value')}", *_config(row)]
        yield imported(" ".join(words), [row.amount("y_value_50")], unit_named(cells["metric_unit"]), origin=origin)


def _config(row: CsvRow) -> list[str]:
    """The fixed arguments, as `name=value`."""
    column = "extra_benchmark_config_str"
    written = row.cells.get(column, "").strip()
    try:
        config = json.loads(written, parse_int=str) if written else {}
    except (ValueError, RecursionError):
        raise row.wrong(column, "it is not JSON.") from None
    if not isinstance(config, dict):
        raise row.wrong(column, "expected a JSON object.")
    return [f"{key}={value}" for key, value in config.items()]
