"""Write the results of the study of dweight: figures, tables and pictures.  Torch-free."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.kernels import charts
from benchmarks.kernels.dweight.sums import GROUPS, Measured, choice, geometric_mean
from kernels.cases import Case
from kernels.norms.plans import Sum

SEPARATE = str(Sum.SEPARATE)
FUSED = (str(Sum.LAST), *(f"{Sum.TREE} of {group}" for group in GROUPS))
AGAIN = f"{SEPARATE}, again"

Record = Mapping[str, Any]  # of a case, from the study
Times = Mapping[str, Sequence[float]]  # microseconds of each round by way, for one number of programs


def write(out: Path, kept: Mapping[str, Any]) -> None:
    (out / "dweight.json").write_text(json.dumps(kept))
    (out / "dweight.md").write_text(page(kept))
    for op in _ops(kept):
        shapes = _shapes(kept, op)
        suffix = "" if op == "rmsnorm" else f"-{op}"
        cols = sorted({shape["cols"] for shape in shapes})
        for name, which, series in (
            ("crossover", "the best fused way", by_rows(shapes, cols)),
            ("ways", "each way, mean over rows", by_way(shapes, cols)),
        ):
            if any(y for ys in series.values() for y in ys):
                charts.lines(
                    out / f"{name}{suffix}.svg",
                    f"dweight of {op}: {which}",
                    cols,
                    series,
                    "time with a separate kernel / fused",
                    limit=(f"even ± {noise(shapes):.1%}", 1.0),
                )


def page(kept: Mapping[str, Any]) -> str:
    stack = kept["stack"]
    lines = [f"{stack['device']}, torch {stack['torch']}, Triton {stack['triton']}.", ""]
    for op in _ops(kept):
        shapes = _shapes(kept, op)
        lines += [f"## {op}", "", *_times(shapes), "", *_costs(shapes), "", *_choice(shapes), ""]
    wrong = [
        f"- {shape['case']}, {way['name']}, {way['programs']} programs: {time['wrong']}"
        for shape in kept["shapes"]
        for way, time in zip(shape["ways"], shape["times"], strict=True)
        if time["wrong"]
    ]
    lines += ["Wrong or not launched:", "", *wrong, ""] if wrong else []
    if kept["left_out"]:
        lines += ["Not measured:", "", *(f"- {case}: {why}" for case, why in kept["left_out"].items()), ""]
    return "\n".join(lines)


def times_of(shape: Record, programs: int) -> Times:
    both = zip(shape["ways"], shape["times"], strict=True)
    return {way["name"]: time["samples_us"] for way, time in both if way["programs"] == programs and time["samples_us"]}


def ratio(times: Times, name: str) -> float | None:
    """Time over that of the separate way in the same round, median of the rounds; None if one is missing."""
    if name not in times or SEPARATE not in times:
        return None
    return _over(times[name], times[SEPARATE])


def _over(samples: Sequence[float], others: Sequence[float]) -> float:
    return median(mine / its for mine, its in zip(samples, others, strict=True))


def noise(shapes: Sequence[Record]) -> float:
    """The largest difference of equal code: the second separate kernel from the first."""
    ratios = [ratio(times_of(shape, shape["plan"]["programs"]), AGAIN) for shape in shapes]
    return max((abs(value - 1) for value in ratios if value is not None), default=0.0)


def measured(shapes: Sequence[Record]) -> list[Measured]:
    found = []
    for shape in shapes:
        for programs, parts in _programs(shape).items():
            if ratios := _ratios(times_of(shape, programs)):
                found.append(Measured(shape["rows"], shape["cols"], parts, ratios))
    return found


# -- pictures: at the plan's own number of programs --------------------------------------------------------------------


def by_rows(shapes: Sequence[Record], cols: Sequence[int]) -> dict[str, list[float | None]]:
    found = {(shape["rows"], shape["cols"]): _ahead(shape).values() for shape in shapes}
    rows = sorted({shape["rows"] for shape in shapes})
    return {f"{row} rows": [max(found.get((row, col), ()), default=None) for col in cols] for row in rows}


def by_way(shapes: Sequence[Record], cols: Sequence[int]) -> dict[str, list[float | None]]:
    series: dict[str, list[float | None]] = {name: [] for name in FUSED}
    for col in cols:
        ahead = [_ahead(shape) for shape in shapes if shape["cols"] == col]
        for name, ys in series.items():
            values = [each[name] for each in ahead if name in each]
            ys.append(geometric_mean(values) if values else None)
    return series


def _ahead(shape: Record) -> dict[str, float]:
    """The separate way's time over that of each fused one."""
    return {name: 1 / value for name, value in _ratios(times_of(shape, shape["plan"]["programs"])).items()}


def _ratios(times: Times) -> dict[str, float]:
    return {name: value for name in FUSED if (value := ratio(times, name)) is not None}


# -- tables ----------------------------------------------------------------------------------------------------------


def _times(shapes: Sequence[Record]) -> list[str]:
    names = (SEPARATE, *_variants(shapes), *FUSED)
    lines = [
        "Microseconds of a separate kernel, with the interquartile range; for the other ways the ratio of times, above "
        "1 if they are faster. *Again* is a second copy of the separate kernel: equal code differed by up to "
        f"{noise(shapes):.1%}. Bold: the plan's own number of programs. The columns after *best* compare *separate* "
        "and the fused ways; the last one compares the best with *separate* at the plan's number of programs.",
        "",
        f"| shape | programs an SM | parts | {' | '.join(names)} | best | faster by | than the plan's |",
        f"|---|--:|--:|{'--:|' * len(names)}---|--:|--:|",
    ]
    for shape in shapes:
        usual = times_of(shape, shape["plan"]["programs"]).get(SEPARATE, ())
        for programs, parts in _programs(shape).items():
            times = times_of(shape, programs)
            ratios = {SEPARATE: 1.0} | _ratios(times)
            best = min(ratios, key=lambda name: ratios[name])
            own = f"**{programs}**" if programs == shape["plan"]["programs"] else programs
            cells = [_us(times.get(SEPARATE)), *(_inverse(ratio(times, name)) for name in names[1:])]
            lines.append(
                f"| {_label(shape)} | {own} | {parts} | {' | '.join(cells)} | {best} | "
                f"{1 / ratios[best] - 1:.1%} | {_faster(usual, times.get(best, ()))} |"
            )
    return lines


def _costs(shapes: Sequence[Record]) -> list[str]:
    """Only for the plan's own number of programs."""
    lines = [
        "Cost of the parts: bytes written and read, and additional microseconds of a way compared with the separate "
        "one (predicted lower bound → measured).",
        "",
        f"| shape | parts | {SEPARATE} | last | trees | {' | '.join(FUSED)} |",
        f"|---|--:|--:|--:|--:|{'--:|' * len(FUSED)}",
    ]
    for shape in shapes:
        programs = shape["plan"]["programs"]
        times = times_of(shape, programs)
        ways = {way["name"]: way for way in shape["ways"] if way["programs"] == programs}
        trees = [_moved(way) for name, way in ways.items() if way["sum"] == Sum.TREE]
        cells = []
        for name in FUSED:
            value = ratio(times, name)
            if name not in ways or value is None:
                cells.append("–")
                continue
            predicted = ways[name]["cost"]["us"] - ways[SEPARATE]["cost"]["us"]
            cells.append(f"{predicted:+.1f} → {(value - 1) * median(times[SEPARATE]):+.1f}")
        lines.append(
            f"| {_label(shape)} | {ways[SEPARATE]['parts']} | {_mb(_moved(ways[SEPARATE]))} | "
            f"{_mb(_moved(ways[str(Sum.LAST)]))} | {f'{_mb(min(trees))} to {_mb(max(trees))}' if trees else '–'} | "
            f"{' | '.join(cells)} |"
        )
    return lines


def _variants(shapes: Sequence[Record]) -> list[str]:
    """Variants of the separate kernel."""
    return list(
        dict.fromkeys(
            way["name"]
            for shape in shapes
            for way in shape["ways"]
            if way["sum"] == Sum.SEPARATE and way["name"] != SEPARATE
        )
    )


def _choice(shapes: Sequence[Record]) -> list[str]:
    found = choice(measured(shapes))
    lines = [
        "The way to choose, compared with *separate* and not with its variants:",
        "",
        "| columns | parts | way |",
        "|--:|--:|---|",
    ]
    return lines + [f"| {cols} | {parts} | {way} |" for (cols, parts), way in found.items()]


def _programs(shape: Record) -> dict[int, int]:
    """Parts by number of programs, fewest first."""
    return dict(sorted({way["programs"]: way["parts"] for way in shape["ways"]}.items()))


def _ops(kept: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(Case.parse(shape["case"]).op for shape in kept["shapes"]))


def _shapes(kept: Mapping[str, Any], op: str) -> list[Record]:
    shapes = [shape for shape in kept["shapes"] if Case.parse(shape["case"]).op == op]
    return sorted(shapes, key=lambda shape: (shape["cols"], shape["rows"]))


def _label(shape: Record) -> str:
    return f"{shape['rows']}x{shape['cols']}"


def _us(samples: Sequence[float] | None) -> str:
    if not samples:
        return "–"
    middle = median(samples)
    low, _, high = quantiles(samples) if len(samples) > 1 else (middle, middle, middle)
    return f"{middle:.2f} ± {(high - low) / middle:.1%}"


def _faster(usual: Sequence[float], samples: Sequence[float]) -> str:
    return f"{_over(usual, samples) - 1:+.1%}" if usual and samples else "–"


def _inverse(value: float | None) -> str:
    return "–" if value is None else f"{1 / value:.3f}"


def _moved(way: Mapping[str, Any]) -> int:
    return int(way["cost"]["written"]) + int(way["cost"]["read"])


def _mb(moved: int) -> str:
    return f"{moved / 1e6:.1f} MB"
