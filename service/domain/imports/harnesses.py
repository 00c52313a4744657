"""pytest-benchmark, Google Benchmark, hyperfine and criterion: the result of one run, in seconds or nanoseconds."""

from collections.abc import Iterator
from pathlib import PurePath

from service.domain.imports.trees import Place, decoded, tree
from service.domain.imports.units import ImportUnit, unit_named
from service.domain.imports.values import Amount, ImportedValue, ImportFile, ValueOrigin, imported
from service.domain.ingest import BYTES, US
from service.domain.states import Better, Missing

_SECONDS, _NANOSECONDS = unit_named("s"), unit_named("ns")
_NO_COMMIT = ("unversioned", "unknown")  # what pytest-benchmark writes outside of a repository


def pytest_benchmark(source: ImportFile) -> Iterator[ImportedValue]:
    """`pytest --benchmark-json`: every round where `data` was saved, else the median."""
    root = tree(source.name, decoded(source.name, source.content))
    commit, machine, when = root.get("commit_info"), root.get("machine_info"), root.get("datetime")
    sha, node = commit and commit.get("id"), machine and machine.get("node")
    origin = ValueOrigin(
        revision=sha.revision() if sha and sha.value not in _NO_COMMIT else None,
        at=when.time() if when else None,
        machine=node.string() if node else None,
    )
    for benchmark in root.field("benchmarks").elements():
        name = benchmark.get("fullname") or benchmark.field("name")
        stats = benchmark.field("stats")
        rounds = stats.get("data")
        amounts = rounds.amounts() if rounds else []
        yield imported(name.string(), amounts or [stats.field("median").amount()], _SECONDS, origin=origin)


def google_benchmark(source: ImportFile) -> Iterator[ImportedValue]:
    """`--benchmark_format=json`: real time of every repetition; else of the aggregate `median`, or `mean`."""
    root = tree(source.name, decoded(source.name, source.content))
    context = root.get("context")
    when, host = (context.get("date"), context.get("host_name")) if context else (None, None)
    origin = ValueOrigin(at=when.time() if when else None, machine=host.string() if host else None)
    repetitions: dict[str, list[Place]] = {}
    aggregates: dict[str, dict[str, Place]] = {}
    for benchmark in root.field("benchmarks").elements():
        name = (benchmark.get("run_name") or benchmark.field("name")).string()
        aggregate = benchmark.get("aggregate_name")
        if aggregate is None:
            repetitions.setdefault(name, []).append(benchmark)
        else:
            aggregates.setdefault(name, {})[aggregate.string()] = benchmark
    for name in repetitions | aggregates:
        summary = aggregates.get(name, {})
        places = repetitions.get(name) or [summary[key] for key in ("median", "mean") if key in summary][:1]
        yield from _of_google(name, places, origin)


def _of_google(name: str, places: list[Place], origin: ValueOrigin) -> Iterator[ImportedValue]:
    """The time, and the rates that a benchmark sets."""
    if not places:
        return
    written = places[0].get("time_unit")
    unit = unit_named(written.string() if written else "ns")
    if unit.name != US and written:
        raise written.wrong(f"{written.string()!r} is no unit of time.")
    yield imported(name, [_or_failed(place, "real_time") for place in places], unit, origin=origin)
    for rate in ("bytes_per_second", "items_per_second"):
        if any(place.get(rate) for place in places):
            of = unit_named("B/s") if rate == "bytes_per_second" else ImportUnit("items/s", better=Better.LARGER)
            yield imported(f"{name} {rate}", [_or_failed(place, rate) for place in places], of, origin=origin)


def _or_failed(place: Place, key: str) -> Amount:
    failed, skipped = place.get("error_occurred"), place.get("skipped")
    if failed and failed.value is True:
        return Missing.FAILED
    return None if skipped and skipped.value is True else place.field(key).amount()


def hyperfine(source: ImportFile) -> Iterator[ImportedValue]:
    """`hyperfine --export-json`: every run of each command, and its memory where that was measured.

    A run that ended with another code than 0, which `--ignore-failure` lets through, failed.
    """
    root = tree(source.name, decoded(source.name, source.content))
    for result in root.field("results").elements():
        command = result.field("command").string()
        times, memory = result.get("times"), result.get("memory_usage_byte")
        amounts, codes = times.amounts() if times else [], result.get("exit_codes")
        if codes and len(codes.values()) == len(amounts):
            ended = zip(amounts, codes.values(), strict=True)
            amounts = [Missing.FAILED if code else amount for amount, code in ended]
        yield imported(command, amounts or [(result.get("median") or result.field("mean")).amount()], _SECONDS)
        if memory and memory.values():
            yield imported(f"{command} memory", memory.amounts(), ImportUnit(BYTES))


def criterion(source: ImportFile) -> Iterator[ImportedValue]:
    """`target/criterion/…/new/sample.json`, or `estimates.json` beside it.  The name is that of the folders."""
    root = tree(source.name, decoded(source.name, source.content))
    folders = PurePath(source.name).parts[:-1]
    if folders and folders[-1] in ("new", "base"):
        folders = folders[:-1]
    if "criterion" in folders:
        folders = folders[len(folders) - folders[::-1].index("criterion") :]
    name = "/".join(folders) or PurePath(source.name).stem
    times, iterations = root.get("times"), root.get("iters")
    if times and iterations:
        counts = iterations.amounts()
        if len(counts) != len(times.values()):
            raise iterations.wrong(f"{len(counts)} counts for {len(times.values())} times.")
        yield imported(name, [_each(*pair) for pair in zip(times.amounts(), counts, strict=True)], _NANOSECONDS)
        return
    if folders and folders[-1] == "change":
        raise root.wrong("it has changes, no times: import new/estimates.json beside it.")
    estimate = root.get("median") or root.field("mean")
    yield imported(name, [estimate.field("point_estimate").amount()], _NANOSECONDS)


def _each(time: Amount, count: Amount) -> Amount:
    if isinstance(time, float) and isinstance(count, float):
        return time / count if count > 0 else Missing.NOT_A_NUMBER
    return None
