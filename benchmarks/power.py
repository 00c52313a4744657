"""What the verdicts find, and what they invent, on this very GPU: planted slow-downs, and equal code against itself.

Power: slow-downs of 1, 2, 3 and 5 % are planted into a norm at sizes from some microseconds to some milliseconds,
beside cases in which nothing is: which are found, how large they are said to be, and what is named as the cause.
A/A: equal code on both sides, at as many cells as are asked for: whatever is told is false.

Everything is as in a run: fresh processes for each trial, the looks of the policy, the judge of the service.

    make bench-power ARGS="--out FOLDER"
    make bench-power ARGS="--again FOLDER"    judge what was measured there once more; needs no GPU
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.trials import open_process, say
from benchmarks.power_judged import Plant, keep, told
from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender
from kernels.cases import Case, Role
from kernels.suites import SUITES
from service.domain.policy.policy import Policy
from service.domain.verdicts.samples import compare
from service.domain.verdicts.session_result import ContenderResult, cells
from workers.machine.device import DeviceHere, ask
from workers.run.trials import OnDevice, Tally, Trials

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
    (524288, 8192),  # 17 GB a call: three contenders do not fit into 140 GB, so it has a session without a copy
)
COPIED = 1 << 33  # bytes of a call up to which a session has an A/A copy
STEP = 64  # rows more from one case to the next of a size, so that each is a case of its own
WITHOUT = 3  # cases of each size in which nothing is planted
BYTES_FROM = 32768  # rows: one per cent of fewer are too few programs to be seen
LARGEST = 1 << 27  # bytes of a call in the A/A part: what is larger takes long, and varies least
FROM = ("quack", "pr101", "models", "small", "awkward")
TRIAL = 0.03  # the share that is planted to learn what a delay does
ONCE = Policy(screening=(2,), confirmation=(2,))


class Awake:
    """A fake lease that is never lost."""

    def say(self, stage: str) -> None:
        pass

    def keep_going(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for every round, as JSON")
    parser.add_argument("--again", type=Path, help="judge the rounds of such a folder")
    parser.add_argument("--sessions", type=int, default=2, help="of planted slow-downs; 0 leaves them out")
    parser.add_argument("--cells", type=int, default=1000, help="comparisons of equal code; 0 leaves them out")
    parser.add_argument("--sizes", default="", help="which of the sizes, e.g. 0,1,7; by default all")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.again:
        told(chosen.again)
        return
    here = ask()
    if here.name == "cpu":
        say("bench-power needs a GPU, and there is none: left out.")
        return
    say(f"{here.name}: {here.description}")
    sizes = [SIZES[int(number)] for number in chosen.sizes.split(",")] if chosen.sizes else list(SIZES)
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.out or Path(folder) / "out"
        out.mkdir(parents=True, exist_ok=True)
        if chosen.sessions:
            power(Path(folder), here, chosen.sessions, sizes, chosen.seed, out)
        if chosen.cells:
            equal(Path(folder), here, chosen.cells, chosen.seed, out)
        told(out)


# -- planted ---------------------------------------------------------------------------------------------------------


def power(
    folder: Path, here: DeviceHere, sessions: int, sizes: Sequence[tuple[int, int]], seed: int, out: Path
) -> None:
    for number in range(sessions):
        for copied in (True, False):
            some = [(rows, cols) for rows, cols in sizes if (4 * rows * cols <= COPIED) is copied]
            if some:
                name = f"power-{number}{'' if copied else '-large'}"
                _planted_session(folder, here, some, seed * 1000 + number, out / f"{name}.json", copied)


def _planted_session(
    folder: Path, here: DeviceHere, sizes: Sequence[tuple[int, int]], seed: int, out: Path, copied: bool
) -> None:
    known = _calibrated(folder, here, sizes)
    wanted = [plant for plant in plants(sizes) if plant.size in known]
    head = _planted(folder, "head", {one.case: _recipe(one, known[one.size]) for one in wanted})
    parent = _planted(folder, "parent", {})
    contenders = [
        _contender(Role.HEAD, "planted", _CALLS, head, folder),
        _contender(Role.PARENT, "planted", _CALLS, parent, folder),
    ]
    if copied:
        contenders.append(_contender(Role.CONTROL, "planted", _CALLS, parent, folder))
    taken = _session(contenders, tuple(Case.parse(one.case) for one in wanted), here, seed)
    keep(out, taken, wanted)


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
    taken = _session([parent], tuple(cases), here, 0, ONCE)
    plain = {one.case: (one.median, float(one.facts.get("sm_mhz") or 0)) for one in taken}
    tried = {str(case): {"delay": round(TRIAL * us * mhz)} for case, (us, mhz) in plain.items() if us and mhz}
    head = _contender(Role.HEAD, "planted", _CALLS, _planted(folder, "trial", tried), folder)
    known = {}
    for cell in cells(_session([head, parent], tuple(cases), here, 1, ONCE)):
        case, seen = Case.parse(cell.case), compare(cell.screened, ONCE.confidence)
        us, mhz = plain.get(case, (None, 0.0))
        if us and mhz and seen and seen.ratio > 1:
            known[cases[case]] = Known(us, mhz, (seen.ratio - 1) / TRIAL)
            say(f"  {case}: {us:.1f} us, a delay lengthens it by {known[cases[case]].stretch:.2f} times itself")
    return known


def _recipe(plant: Plant, known: Known) -> dict[str, int]:
    if plant.how == "delay":
        return {"delay": round(plant.share * known.us * known.mhz / known.stretch)}
    return {"rows": round(plant.share * Case.parse(plant.case).rows)} if plant.how == "bytes" else {}


def _planted(folder: Path, name: str, planted: Mapping[str, Mapping[str, int]]) -> Path:
    """A folder with the norm and what is planted in it, to import from."""
    place = folder / name
    place.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parent / "kernels" / "planted.py", place)
    sizes = {case.split(".")[2]: plant for case, plant in planted.items() if plant}
    (place / "planted.json").write_text(json.dumps(sizes))
    return place


# -- equal -----------------------------------------------------------------------------------------------------------


def equal(folder: Path, here: DeviceHere, wanted: int, seed: int, out: Path) -> None:
    """Sessions of equal code until so many cells were judged."""
    calls = {
        f"{norm}.{way}": f"kernels.norms.adapters:{norm}{'_backward' * (way == 'bwd')}"
        for norm in ("rmsnorm", "layernorm")
        for way in ("fwd", "bwd")
    }
    root = protocol.KERNELS.parent
    names = ("a", "b", "c")
    contenders = [_contender(role, name, calls, root, folder) for name in names for role in (Role.HEAD, Role.PARENT)]
    contenders.append(_contender(Role.CONTROL, names[0], calls, root, folder))
    cases = _equal_cases()
    for number in range(-(-wanted // (len(names) * len(cases)))):
        keep(out / f"equal-{number}.json", _session(contenders, cases, here, seed * 1000 + 500 + number))


def _equal_cases() -> tuple[Case, ...]:
    texts = dict.fromkeys(text for suite in FROM for text in SUITES[suite])
    parsed = (Case.parse(text) for text in texts)
    known = [case for case in parsed if case.op in ("rmsnorm", "layernorm") and case.direction in ("fwd", "bwd")]
    return tuple(case for case in known if case.least_bytes <= LARGEST and not case.stride and case.metric == "kernel")


# -- a session -------------------------------------------------------------------------------------------------------


def _contender(role: Role, name: str, calls: Mapping[str, str], imports: Path, folder: Path) -> Contender:
    spec = protocol.targets_own(name, calls)
    log = folder / f"{role}-{name}.log"

    def start() -> Channel:
        return open_process([str(protocol.CONTENDER), json.dumps(spec)], log, imports)

    return Contender(f"{role}:{name}", role, spec, start)


def _session(
    contenders: Sequence[Contender],
    cases: tuple[Case, ...],
    here: DeviceHere,
    seed: int,
    policy: Policy = Policy(),  # noqa: B008  it is frozen
) -> tuple[ContenderResult, ...]:
    """One session to its end."""
    began = time.monotonic()
    tally = Tally(contenders, cases)
    trials = Trials(tally, [OnDevice(here, contenders)], policy, Awake(), seed=seed)
    trials.until_decided(cases)
    spent = ", ".join(f"{one['what']} {sum(one['seconds'].values()):.0f} s" for one in trials.spent)
    say(f"session {seed}: {len(cases)} cases, {len(contenders)} contenders, {time.monotonic() - began:.0f} s ({spent})")
    return tally.taken()


if __name__ == "__main__":
    main()
