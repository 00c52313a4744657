"""What the verdicts find, and what they invent, on this very GPU: planted slow-downs, and equal code against itself.

Power: slow-downs of 1, 2, 3 and 5 % are planted into a norm at sizes from some microseconds to some milliseconds,
beside cases in which nothing is: which are found, how large they are said to be, and what is named as the cause.
A/A: equal code on both sides, at as many cells as are asked for: whatever is told is false.

Everything is as in a run: fresh processes for each launch, the looks of the policy, the judge of the service.

    make bench-power ARGS="--out FOLDER"
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kernels import messages
from kernels.arena import Contender
from kernels.channel import Channel
from kernels.suites import SUITES
from kernels.words import Case, Role
from service import verdicts
from service.evidence import Taken, cells
from service.policy import Policy
from workers.device import DeviceHere, ask
from workers.launches import Launches
from workers.tally import Tally

SHARES = (0.01, 0.02, 0.03, 0.05)
# Rows and columns of what takes about 5 us, 10, 20, 40, 100, 270 us, 1 and 4 ms on an H200, bf16.
SIZES = (
    (2048, 1024),
    (8192, 1024),
    (8192, 2048),
    (16384, 2048),
    (32768, 3072),
    (65536, 4096),
    (131072, 8192),
    (524288, 8192),
)
STEP = 64  # rows more from one case to the next of a size, so that each is a case of its own
WITHOUT = 3  # cases of each size in which nothing is planted
BYTES_FROM = 32768  # rows: one per cent of fewer are too few programs to be seen
LARGEST = 1 << 27  # bytes of a call in the A/A part: what is larger takes long, and varies least
FROM = ("quack", "pr101", "models", "small", "awkward")
TRIAL = 0.03  # the share that is planted to learn what a delay does
ONCE = Policy(looks=(2,), confirms=(2,))
CONTENDERS = Path(messages.__file__).parent / "contender.py"


class Awake:
    """In place of a lease: nobody takes this session away."""

    def say(self, stage: str) -> None:
        pass

    def keep_going(self) -> None:
        pass


@dataclass(frozen=True)
class Plant:
    case: str
    size: tuple[int, int]
    share: float = 0.0  # of the time that is planted
    how: str = "nothing"  # "delay", "bytes"


@dataclass(frozen=True)
class Found:
    """What the judge said of one cell."""

    provider: str
    case: str
    base_us: float | None
    outcome: str
    suspected: bool
    ratio: float | None
    low: float | None
    high: float | None
    launches: int
    fresh: int
    p: float | None
    q: float | None
    smallest: float | None
    reason: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for every round, as JSON")
    parser.add_argument("--sessions", type=int, default=3, help="of planted slow-downs; 0 leaves them out")
    parser.add_argument("--cells", type=int, default=1000, help="comparisons of equal code; 0 leaves them out")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many sizes, the smallest first")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    here = ask()
    if here.name == "cpu":
        say("bench-power needs a GPU, and there is none: left out.")
        return
    say(f"{here.name}: {here.description}")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.sessions:
            power(Path(folder), here, chosen.sessions, SIZES[: chosen.sizes], chosen.seed, chosen.out)
        if chosen.cells:
            equal(Path(folder), here, chosen.cells, chosen.seed, chosen.out)


# -- planted ---------------------------------------------------------------------------------------------------------


def power(
    folder: Path, here: DeviceHere, sessions: int, sizes: Sequence[tuple[int, int]], seed: int, out: Path | None
) -> None:
    known = _calibrated(folder, here, sizes)
    wanted = [plant for plant in plants(sizes) if plant.size in known]
    by_case = {plant.case: plant for plant in wanted}
    head = _planted(folder, "head", {one.case: _recipe(one, known[one.size]) for one in wanted})
    parent = _planted(folder, "parent", {})
    contenders = [
        _contender(Role.HEAD, "planted", _CALLS, head, folder),
        _contender(Role.PARENT, "planted", _CALLS, parent, folder),
        _contender(Role.CONTROL, "planted", _CALLS, parent, folder),
    ]
    found: list[tuple[Plant, Found]] = []
    for number in range(sessions):
        judged, taken = _session(contenders, tuple(map(Case.parse, by_case)), here, seed * 1000 + number, {})
        found += [(by_case[one.case], one) for one in judged]
        _keep(out, f"power-{number}.json", judged, taken)
    _table(found)
    if out:
        both = [{**asdict(plant), **asdict(one)} for plant, one in found]
        (out / "power.json").write_text(json.dumps(both, indent=1))


def plants(sizes: Sequence[tuple[int, int]]) -> list[Plant]:
    """Every share at every size, by delay and where there are programs enough by bytes, and cases without."""
    found = []
    for rows, cols in sizes:
        kinds = [(share, "delay") for share in SHARES]
        if rows >= BYTES_FROM:
            kinds += [(share, "bytes") for share in SHARES]
        kinds += [(0.0, "nothing")] * WITHOUT
        for number, (share, how) in enumerate(kinds):
            case = f"rmsnorm.fwd.{rows + STEP * number}x{cols}.bf16-fp32"
            found.append(Plant(case, (rows, cols), share, how))
    return found


_CALLS = {"rmsnorm.fwd": "planted:forward"}


@dataclass(frozen=True)
class Known:
    """What was measured of a case with nothing and with a trial delay planted in it."""

    us: float
    mhz: float  # of the SM
    stretch: float  # by how much the kernel is longer for each unit of delay in its last programs


def _calibrated(folder: Path, here: DeviceHere, sizes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Known]:
    """Of each size.  A delay hides behind other programs, or adds up, so a trial one is measured."""
    cases = {Case.parse(f"rmsnorm.fwd.{rows}x{cols}.bf16-fp32"): (rows, cols) for rows, cols in sizes}
    parent = _contender(Role.PARENT, "planted", _CALLS, _planted(folder, "parent", {}), folder)
    _, taken = _session([parent], tuple(cases), here, 0, {}, ONCE)
    plain = {one.case: (one.median, float(one.facts.get("sm_mhz") or 0)) for one in taken}
    tried = {str(case): {"delay": round(TRIAL * us * mhz)} for case, (us, mhz) in plain.items() if us and mhz}
    head = _contender(Role.HEAD, "planted", _CALLS, _planted(folder, "trial", tried), folder)
    judged, _ = _session([head, parent], tuple(cases), here, 1, {}, ONCE)
    known = {}
    for one in judged:
        case = Case.parse(one.case)
        us, mhz = plain.get(case, (None, 0.0))
        if us and mhz and one.ratio and one.ratio > 1:
            known[cases[case]] = Known(us, mhz, (one.ratio - 1) / TRIAL)
            say(f"  {one.case}: {us:.1f} us, a delay lengthens it by {known[cases[case]].stretch:.2f} times itself")
    return known


def _recipe(plant: Plant, known: Known) -> dict[str, int]:
    if plant.how == "delay":
        return {"delay": round(plant.share * known.us * known.mhz / known.stretch)}
    return {"rows": round(plant.share * Case.parse(plant.case).rows)} if plant.how == "bytes" else {}


def _planted(folder: Path, name: str, planted: Mapping[str, Mapping[str, int]]) -> Path:
    """A folder with the norm and what is planted in it, to import from."""
    place = folder / name
    place.mkdir(exist_ok=True)
    shutil.copy(CONTENDERS.parent / "studies" / "planted.py", place)
    sizes = {case.split(".")[2]: plant for case, plant in planted.items() if plant}
    (place / "planted.json").write_text(json.dumps(sizes))
    return place


def _table(found: Sequence[tuple[Plant, Found]]) -> None:
    """What became of each share at each size, over the sessions."""
    say(f"\n{'base':>9} {'planted':>8} {'how':>8} {'found':>6} {'of':>3} {'said':>7} {'launches':>9}  others")
    groups: dict[tuple[tuple[int, int], str, float], list[Found]] = {}
    for plant, one in found:
        groups.setdefault((plant.size, plant.how, plant.share), []).append(one)
    for (_, how, share), ones in sorted(groups.items(), key=lambda group: (_base(group[1]) // 1.05, group[0])):
        told = [one for one in ones if one.outcome == "regression"]
        sizes = [one.ratio - 1 for one in ones if one.ratio]
        others = ", ".join(sorted(one.outcome for one in ones if one.outcome != "regression"))
        launches = median([one.launches + one.fresh for one in ones])
        say(
            f"{_base(ones):6.1f} us {share:8.1%} {how:>8} {len(told):6} {len(ones):3} "
            f"{median(sizes) if sizes else float('nan'):7.2%} {launches:9.0f}  {others}"
        )
    none = [one for plant, one in found if plant.how == "nothing"]
    false = [one for one in none if one.outcome in ("regression", "improvement")]
    say(f"\nnothing planted: {len(none)} comparisons, {len(false)} told as a change")


def _base(ones: Sequence[Found]) -> float:
    return median([one.base_us for one in ones if one.base_us] or [0.0])


# -- equal -----------------------------------------------------------------------------------------------------------


def equal(folder: Path, here: DeviceHere, wanted: int, seed: int, out: Path | None) -> None:
    """Sessions of equal code until so many cells were judged."""
    calls = {
        f"{norm}.{way}": f"kernels.norms.adapters:{norm}{'_backward' * (way == 'bwd')}"
        for norm in ("rmsnorm", "layernorm")
        for way in ("fwd", "bwd")
    }
    root = CONTENDERS.parent.parent
    names = ("a", "b", "c")
    contenders = [_contender(role, name, calls, root, folder) for name in names for role in (Role.HEAD, Role.PARENT)]
    contenders.append(_contender(Role.CONTROL, names[0], calls, root, folder))
    cases = _equal_cases()
    found: list[Found] = []
    number, began = 0, time.monotonic()
    while len(found) < wanted:
        judged, taken = _session(contenders, cases, here, seed * 1000 + 500 + number, {"same_code": False})
        if not judged:
            say("nothing was measured: given up")
            break
        found += judged
        _keep(out, f"equal-{number}.json", judged, taken)
        number += 1
    counts = {outcome: sum(one.outcome == outcome for one in found) for outcome in {one.outcome for one in found}}
    say(f"\nEqual code: {len(found)} comparisons in {number} sessions, {time.monotonic() - began:.0f} s: {counts}")
    say(f"  suspected at first: {sum(one.suspected for one in found)}")
    for one in found:
        if one.suspected or one.outcome not in ("steady", "new"):
            say(f"  {one.provider} {one.case}: {one.outcome} {one.ratio}: {one.reason}")
    if out:
        (out / "equal.json").write_text(json.dumps([asdict(one) for one in found], indent=1))


def _equal_cases() -> tuple[Case, ...]:
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite])
    parsed = (Case.parse(text) for text in texts)
    known = [case for case in parsed if case.op in ("rmsnorm", "layernorm") and case.direction in ("fwd", "bwd")]
    return tuple(case for case in known if case.least_bytes <= LARGEST and not case.stride and case.lane == "kernel")


# -- a session -------------------------------------------------------------------------------------------------------


def _contender(role: Role, name: str, calls: Mapping[str, str], imports: Path, folder: Path) -> Contender:
    from kernels.studies.launching import open_process  # beside torch, which the service does without

    spec = messages.targets_own(name, calls)
    log = folder / f"{role}-{name}.log"

    def start() -> Channel:
        return open_process([str(CONTENDERS), json.dumps(spec)], log, imports)

    return Contender(f"{role}:{name}", role, spec, start)


def _session(
    contenders: Sequence[Contender],
    cases: tuple[Case, ...],
    here: DeviceHere,
    seed: int,
    known: Mapping[str, Any],
    policy: Policy = Policy(),  # noqa: B008  it is frozen
) -> tuple[list[Found], tuple[Taken, ...]]:
    """One session to its end, and what the judge says of it; `known` is put into every cell."""
    began = time.monotonic()
    tally = Tally(contenders, cases)
    launches = Launches(tally, contenders, policy, here, Awake(), seed=seed)
    launches.until_decided(cases)
    taken = tally.taken()
    of_head = {(one.provider, str(one.case)): one for one in taken if one.role is Role.HEAD}
    base = {(one.provider, str(one.case)): one.median for one in taken if one.role is Role.PARENT}
    judged = verdicts.judge([replace(cell, **known) for cell in cells(taken)], policy)
    spent = ", ".join(f"{one['what']} {sum(one['seconds'].values()):.0f} s" for one in launches.spent)
    say(f"session {seed}: {len(cases)} cases, {len(contenders)} contenders, {time.monotonic() - began:.0f} s ({spent})")
    found = []
    for (provider, case), verdict in judged.items():
        head, seen = of_head[provider, case], verdict.comparison
        found.append(
            Found(
                provider,
                case,
                base.get((provider, case)),
                verdict.outcome.value,
                verdict.suspected,
                seen.ratio if seen else None,
                seen.low if seen else None,
                seen.high if seen else None,
                sum(bool(rounds) for rounds in head.looked),
                sum(bool(rounds) for rounds in head.confirmed),
                verdict.p,
                verdict.q,
                verdict.smallest,
                verdict.reason,
            )
        )
    return found, taken


def _keep(out: Path | None, name: str, judged: Sequence[Found], taken: Sequence[Taken]) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    rounds = [{**asdict(one), "case": str(one.case)} for one in taken]
    (out / name).write_text(json.dumps({"judged": [asdict(one) for one in judged], "taken": rounds}))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  what a study is for


if __name__ == "__main__":
    main()
