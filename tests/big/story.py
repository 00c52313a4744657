"""What happened in the large database: how much of it, which cases moved when, and texts that attack a page.  Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from kernels.cases import Case, Metric
from kernels.suites import SUITES

HOUR, DAY = 3600.0, 86400.0
GAP_H = 12  # hours between two commits of the mainline
ROLES = 5  # contenders of a run: head, parent, control, SOTA, rival

HOSTILE_BRANCH = '"><img src=x onerror=alert(1)>'
BIDI = (
    "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202cfix "
    "\U0001f525\U0001f468\u200d\U0001f469\u200d\U0001f467 kernels"
)
UNBROKEN = "Refactor_the_backward_reduction_without_any_space_to_break_at_" * 5
WORDY = (
    "Reduce the partial sums of dweight in two passes when the number of programs exceeds the number of SMs, because "
    "one pass leaves most of the device idle for short and wide inputs and the tail effect of the last wave is larger "
    "than what the second launch costs on every device that we own, see the table in the pull request"
)
LONG_KERNEL = ("triton_per_fused__to_copy_add_div_mean_mul_native_layer_norm_backward_pow_rsqrt_select_sum_view_" * 3)[
    :200
]
SCRIPT = "<script>alert(document.domain)</script> {{7*7}} ${7*7} `x` **y** | z | <!-- kw -->"
SUBJECTS = (
    "Name the block sizes",
    "One program per row below 4096 columns",
    "Drop the mask where columns divide the block",
    "Load the weight once per program",
    "Use the new descriptor loads on Hopper",
    "Tune num_warps for 8192",
    "Two-pass dweight for wide rows",
    "Sum in fp32 whatever the input",
    "Docs: how to call them",
    "Fix eps for fp16",
    "Unroll the column loop by two",
    "Cache policies: evict_first for x",
    "Pin triton to 3.7",
    "CI: run on b200 as well",
    "Persistent backward kernel",
    "Remove dead autotune configs",
    "Refactor: the reduction is a function",
    "Merge pull request #{n} from fork/feature-{n}",
    'Revert "Persistent backward kernel"',
    "Bump version to 0.{n}",
)
AUTHORS = (
    "Ada Example",
    "Grace H.",
    "Tri D.",
    "\u0645\u062d\u0645\u062f \u0639\u0644\u064a",
    "dependabot[bot]",
    "O'Brien <b>bold</b>",
)
# Subjects of the newest revisions, by how many came after them.
LATEST_SUBJECTS = {
    0: "Tune num_warps for 8192 columns",
    1: UNBROKEN,
    2: WORDY,
    3: BIDI,
    4: SCRIPT,
    11: "layernorm: recompute the mean in the backward pass \u2028 second line",
}


def _all_cases() -> list[str]:
    """The cases of the suites, and some with a residual: 206 in all."""
    names = dict.fromkeys(
        case for suite in ("quack", "pr101", "models", "small", "awkward", "metrics") for case in SUITES[suite]
    )
    for shape in ("32768x4096", "8192x8192", "4096x16384", "32768x1024", "8192x4096", "4096x7168"):
        for direction in ("fwd", "bwd"):
            for op in ("rmsnorm_residual", "layernorm_residual"):
                names.setdefault(f"{op}.{direction}.{shape}.bf16-fp32")
    return list(names)[:206]


@dataclass(frozen=True)
class Size:
    """How much there is: by default some 430,000 measurements."""

    revisions: int = 300
    cases: int = 206
    teams: int = 10
    team_revisions: int = 12
    team_cases: int = 20
    pulls: int = 40
    queued: int = 350
    nights: int = 60
    readings: int = 206  # cases with telemetry, of each trial of the newest runs


SMALL = Size(
    revisions=40, cases=24, teams=10, team_revisions=2, team_cases=3, pulls=12, queued=30, nights=6, readings=4
)


@dataclass(frozen=True)
class Step:
    """A revision of the mainline that changes how long some cases take."""

    ago: int  # revisions after it
    factor: float
    cases: tuple[str, ...]
    text: str | None = None  # its cause, as an incident shows it


@dataclass(frozen=True)
class Story:
    """Which cases there are, and which revision moved which of them."""

    size: Size
    chance: random.Random = field(default_factory=lambda: random.Random(20261122))

    @cached_property
    def cases(self) -> list[str]:
        every = _all_cases()
        return every[:: max(1, len(every) // self.size.cases)][: self.size.cases]

    @cached_property
    def steps(self) -> dict[int, Step]:
        """By ordinal.  Steps that are older than the mainline did not happen."""
        wide = self._which(lambda case: case.direction == "bwd" and case.cols >= 4096 and case.metric is Metric.KERNEL)
        few_rows = self._which(lambda case: case.rows <= 64)
        layernorm = self._which(lambda case: case.op == "layernorm" and case.direction == "bwd")
        forward = self._which(lambda case: case.op == "rmsnorm" and case.direction == "fwd")
        spills = "slower because the kernel now spills 50 registers"
        found = (
            Step(260, 1.08, wide[:20], spills),
            Step(245, 1 / 1.08, wide[:20]),
            *(Step(ago, 1.012, tuple(self.cases[::7])) for ago in (180, 167, 154)),
            Step(90, 1.21, wide[:34], f"{spills} at N=4096, 8192 and 14 other widths"),
            Step(64, 1.31, few_rows[:9], "slower because it launches 2 kernels, not 1"),
            Step(50, 0.82, wide[:12]),
            Step(29, 1.034, tuple(self.cases[3:60:5]), "not certain: no fact of the code explains it"),
            Step(12, 1.06, layernorm[:18], "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster"),
            Step(4, 1.45, forward[:3], f"slower because {LONG_KERNEL} runs at 25 % occupancy, limited by registers"),
        )
        last = self.size.revisions - 1
        return {last - step.ago: step for step in found if step.ago < last and step.cases}

    @cached_property
    def failed(self) -> set[int]:
        """Revisions that do not build."""
        return self._ordinals(238, 237, 144, 52, 21)

    @cached_property
    def skipped(self) -> set[int]:
        return self._ordinals(282, 266, 209, 208, 207, 119, 77, 33, 18)

    @cached_property
    def invalid(self) -> dict[int, list[str]]:
        """The cases of a revision with a wrong result."""
        return dict.fromkeys(self._ordinals(7), self.cases[10:14])

    def subject(self, ordinal: int) -> str:
        ago = self.size.revisions - 1 - ordinal
        return LATEST_SUBJECTS.get(ago) or self.chance.choice(SUBJECTS).format(n=ordinal)

    def sha(self) -> str:
        return f"{self.chance.getrandbits(160):040x}"

    def _ordinals(self, *ago: int) -> set[int]:
        return {self.size.revisions - 1 - one for one in ago if one < self.size.revisions - 1}

    def _which(self, fits: Callable[[Case], bool]) -> tuple[str, ...]:
        return tuple(case for case in self.cases if fits(Case.parse(case)))
