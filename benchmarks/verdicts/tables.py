"""The tables of docs/measurements/2026-11-24-cpu-power/errors.md from the counts of simulated runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import betaincinv

from benchmarks.verdicts.simulated import NOISES

LENGTHS = {"tiny": "below 2.5 us", "short": "2.5 to 100 us", "long": "from 100 us"}
KINDS = ("steady", "reported", "inconclusive", "inconclusive suspected")
SAYS = {noise.name: noise.says for noise in NOISES}


def tables(kept: Sequence[Mapping[str, Any]]) -> str:
    parts = [alarms(kept), power(kept), coverage(kept)]
    return "\n".join(parts)


def at_most(seen: int, of: int) -> float:
    """The upper 95 % limit of a share (Clopper & Pearson 1934)."""
    return float(betaincinv(seen + 1, max(of - seen, 1), 0.95))


def alarms(kept: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| noise | cases | families | with a false report | 95 % at most | false of those reported "
        "| suspected | steady | inconclusive | trials per case |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in kept:
        seen = Counter(one["counts"])
        families, alarmed = seen["families"], seen["alarmed"]
        cases = _all(seen, "cases")
        shares = [f"{_all(seen, key) / cases:.4f}" for key in ("suspected", "steady", "inconclusive")]
        figures = (
            f"{alarmed}",
            f"{at_most(alarmed, families):.4f}",
            f"{seen['fdp'] / 1e6 / families:.4f}" if one["truth"] in ("planted", "mixed") else "",
            *shares,
            f"{_all(seen, 'trials') / cases:.2f}",
        )
        lines.append(f"| {_says(one)}, {one['truth']} | {cases // families} | {families} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def power(kept: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| noise | cases | length | planted of each size | 1 % in 8 trials | in 16 | 2 % in 8 | in 16 "
        "| 3 % in 8 | 5 % in 8 | 1 %, 2 % called steady |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in kept:
        seen = Counter(one["counts"])
        for length, says in LENGTHS.items() if one["truth"] in ("planted", "mixed") else ():
            many = [seen[f"{size} {length} cases"] for size in ("1%", "2%", "3%", "5%")]
            if min(many) == 0:
                continue
            asked = ("1% 8", "1% 16", "2% 8", "2% 16", "3% 8", "5% 8")
            shares = [_share(seen, f"{key.split()[0]} {length}", f"within {key.split()[1]}") for key in asked]
            steady = " ".join(_share(seen, f"{size} {length}", "steady") for size in ("1%", "2%"))
            cases = _all(seen, "cases") // seen["families"]
            lines.append(f"| {_says(one)} | {cases} | {says} | {min(many)} | {' | '.join(shares)} | {steady} |")
    return "\n".join(lines) + "\n"


def coverage(kept: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| noise | cases | truth | steady | reported | inconclusive, never suspected "
        "| inconclusive after a suspicion |",
        "|---|--:|---|---|---|---|---|",
    ]
    for one in kept:
        seen = Counter(one["counts"])
        shares = [f"{_share(seen, '', kind, 'inside', 'interval')} of {seen[f'interval {kind}']}" for kind in KINDS]
        cases = _all(seen, "cases") // seen["families"]
        lines.append(f"| {_says(one)} | {cases} | {one['truth']} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def _share(seen: Counter[str], of: str, key: str, what: str = "", among: str = "") -> str:
    part, whole = (f"{what} {key}", f"{among} {key}") if what else (f"{of} {key}", f"{of} cases")
    return f"{seen[part] / seen[whole]:.3f}" if seen[whole] else "–"


def _says(one: Mapping[str, Any]) -> str:
    if "unit" in one:
        return str(one["unit"])
    known = f"{one['past']} sessions known" if one["past"] else "nothing known"
    if one.get("sessions", 1) > 1:
        known += ", a second session where it could decide"
    if one["share"] != 1:
        part = "" if one["part"] == 1 else "half of the cases "
        known += f", {part}{one['share']:g} as noisy"
    return f"{SAYS[one['noise']]}; {known}"


def _all(seen: Counter[str], key: str) -> int:
    return sum(number for name, number in seen.items() if name.endswith(f" {key}") and not name.startswith("in"))
