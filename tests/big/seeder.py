"""Writes rows of the large database through the models: targets, revisions, runs, and the mainline that they make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db import models as m
from service.domain.states import OPEN_STATES, Priority, RunState, TargetKind
from service.domain.verdicts.totals import Summary
from tests.big.bulk import Bulk
from tests.big.numbers import Measured, fill
from tests.big.story import AUTHORS, DAY, GAP_H, HOUR, Story

DEVICES = {"h200": 10**9, "h100": 60, "b200": 38}  # the newest revisions that are measured on it
OPS = ("rmsnorm", "layernorm", "rmsnorm_residual", "layernorm_residual")
BUILD_LOG = (
    "\n".join(
        f"[{n}/300] compiling norms_{n}.cu \x1b[31m<script>alert({n})</script>\x1b[0m " + "x" * (400 if n == 7 else 10)
        for n in range(1, 301)
    )
    + "\nSyntaxError: '(' was never closed"
)


@dataclass
class Places:
    """Where things are, for pages that show them."""

    target: str = "norms"
    hostile_target: str = ""
    newest: int = 0  # the newest finished run of the mainline
    worst: int = 0  # the run with most regressions
    failed: int = 0
    running: int = 0
    pull: int = 0  # a run of pull request `pull_number`, with many regressions
    pull_number: int = 0
    hostile: int = 0
    regression: int = 0
    incident: int = 0
    bisection: int = 0
    case: str = ""  # one that regressed twice
    shas: tuple[str, str] = ("", "")  # two measured revisions of the mainline
    measurements: int = 0


def recipe_text(cases: Sequence[str]) -> str:
    calls = "".join(f'{op}.{way} = "norms.{op}:{way}"\n' for op in OPS for way in ("fwd", "bwd", "fwdbwd"))
    listed = "".join(f'  "{case}",\n' for case in cases)
    return f"""devices = ["h200", "h100", "b200"]
sota = "quack"
suite = "all"
baselines = ["inductor"]

[providers.norms]
{calls}
[suites]
all = [
{listed}]

[policy]
smallest_change = 0.02
"""


@dataclass
class Seeder:
    """Writes the story with rows of the models, and what is many in bulk."""

    session: Session
    story: Story
    now: float
    bulk: Bulk
    places: Places = field(default_factory=Places)
    policy_id: int = 0
    stacks: list[int] = field(default_factory=list)
    norms: m.Target = field(init=False)
    recipe: m.RecipeRow = field(init=False)
    line: list[m.Revision] = field(default_factory=list)
    runs: dict[tuple[int, str], m.Run] = field(default_factory=dict)  # of the mainline, by ordinal and device
    levels: dict[str, float] = field(default_factory=dict)  # of the newest revision, by case

    def add(self, row: m.Base) -> Any:
        self.session.add(row)
        self.session.flush()
        return row

    def target(self, name: str, **columns: Any) -> m.Target:
        usual = {"kind": TargetKind.GIT, "location": f"https://github.com/example/{name}", "branch": "main"}
        usual |= {"created_at": self.now - 200 * DAY, "poll_at": self.now + 60}
        made: m.Target = self.add(m.Target(name=name, **usual | columns))
        return made

    def give_recipe(self, target: m.Target, text: str) -> m.RecipeRow:
        digest = f"{target.id:064x}"
        made: m.RecipeRow = self.add(
            m.RecipeRow(target_id=target.id, digest=digest, text=text, adapters={}, created_at=target.created_at)
        )
        target.recipe_id = made.id
        return made

    def revision(self, target: m.Target, **columns: Any) -> m.Revision:
        usual = {"sha": self.story.sha(), "author": self.story.chance.choice(AUTHORS), "paths": ["norms/forward.py"]}
        made: m.Revision = self.add(m.Revision(target_id=target.id, **usual | columns))
        return made

    def run(self, revision: m.Revision, device: str, state: RunState = RunState.DONE, **columns: Any) -> m.Run:
        """A run, with its attempt where a worker took it.  The recipe is that of `norms` unless another is given."""
        chance = self.story.chance
        over, open_ = state in (RunState.DONE, RunState.FAILED), state in OPEN_STATES
        begun = over or state is RunState.LEASED
        at = columns.get("created_at", revision.committed_at + 600)
        usual = {
            "dedupe": f"{revision.id}:{device}:{chance.getrandbits(64):x}",
            "target_id": revision.target_id,
            "baseline": revision.parent,
            "recipe_id": self.recipe.id,
            "suite": "all",
            "trusted": True,
            "priority": Priority.MAINLINE,
            "attempt": int(begun),
            "worker": f"{device}-box-{revision.id % 6}" if begun else None,
            "created_at": at,
            "started_at": at + 20 if begun else None,
            "finished_at": at + 480 + 200 * chance.random() if over else None,
            "sandboxed": True if begun else None,
            "stack_id": self.stacks[revision.committed_at > self.now - 60 * DAY] if over else None,
            "notified_state": "" if open_ else state.value,
            "scanned_at": at + 900 if over else None,
        }
        columns |= {"revision_id": revision.id, "device": device, "state": state}
        made: m.Run = self.add(m.Run(**usual | columns))
        if begun and made.worker:
            outcome = state.value if over else None
            times = {"started_at": at + 20, "finished_at": made.finished_at}
            self.add(m.Attempt(run_id=made.id, attempt=1, worker=made.worker, outcome=outcome, **times))
        return made

    def measure(self, run: m.Run, levels: Mapping[str, float], changes: Mapping[str, float], **rest: Any) -> None:
        usual: dict[str, Any] = {"cases": self.story.cases, "parent": run.baseline, "policy_id": self.policy_id}
        usual |= {"run_id": run.id, "device": run.device, "levels": levels, "changes": changes}
        fill(self.bulk, Measured(**usual | rest), self.story.chance)

    # -- the mainline

    def mainline(self) -> None:
        """The target `norms`: its revisions, and their runs on each device."""
        story, size = self.story, self.story.size
        self.norms = self.target("norms", forge="example/norms", trusted=True, poll_at=self.now + 40)
        self.recipe = self.give_recipe(self.norms, recipe_text(story.cases))
        self.levels = dict.fromkeys(story.cases, 1.0)
        since = dict.fromkeys(story.cases, 1.0)  # over the time at the last good revision
        last_good = max((ordinal for ordinal in story.steps if size.revisions - 1 - ordinal == 90), default=0)
        for ordinal in range(size.revisions):
            ago = size.revisions - ordinal
            at = self.now - ago * GAP_H * HOUR
            before = self.line[-1].sha if self.line else None
            made = self.revision(
                self.norms, parent=before, ordinal=ordinal, subject=story.subject(ordinal), committed_at=at
            )
            self.line.append(made)
            step = story.steps.get(ordinal)
            changes = dict.fromkeys(step.cases, step.factor) if step else {}
            for device, newest in DEVICES.items():
                if ago <= newest:
                    first = ordinal == max(0, size.revisions - newest)
                    slow = since if ordinal > last_good and ordinal % 10 == 9 else None
                    self._at(made, device, ordinal, changes, first=first, slow_since=slow)
            for case, factor in changes.items():
                self.levels[case] *= factor
                since[case] *= factor if ordinal >= last_good else 1
            if ordinal % 100 == 99:
                self.session.flush()

    def _at(self, made: m.Revision, device: str, ordinal: int, changes: Mapping[str, float], **rest: Any) -> None:
        story, newest = self.story, ordinal == self.story.size.revisions - 1
        if ordinal in story.skipped:
            self.runs[ordinal, device] = self.run(made, device, RunState.SKIPPED, reason="only README.md changed")
        elif ordinal in story.failed:
            why = "`sh -c 'python setup.py build'` ended with 1"
            failed = self.run(made, device, RunState.FAILED, reason=why, log=BUILD_LOG)
            self.runs[ordinal, device] = failed
            self.places.failed = failed.id
        elif newest and device == "b200":
            state = {"stage": f"measuring: trial 2, case 73 of {story.size.cases}", "lease_until": self.now + 3600}
            self.runs[ordinal, device] = self.run(made, device, RunState.LEASED, **state)
            self.places.running = self.runs[ordinal, device].id
        elif newest and device == "h100":
            self.runs[ordinal, device] = self.run(made, device, RunState.QUEUED)
        else:
            good = self.line[ordinal - 1].sha if rest["slow_since"] and ordinal else None
            recent = ordinal > story.size.revisions - 14
            readings = story.cases[: story.size.readings if recent else 2]
            done = self.run(
                made, device, telemetry=self.telemetry(readings), last_good=good, summary=self._summary(changes)
            )
            self.runs[ordinal, device] = done
            invalid = story.invalid.get(ordinal, ())
            self.measure(done, self.levels, changes, ordinal=ordinal, invalid=invalid, good=good, **rest)

    def _summary(self, changes: Mapping[str, float]) -> list[Any]:
        """Geometric means of the changes, by op and direction."""
        found = []
        for op in OPS:
            for way in ("fwd", "bwd"):
                cases = [case for case in self.story.cases if case.startswith(f"{op}.{way}.")]
                if cases:
                    mean = math.exp(sum(math.log(changes.get(case, 1.0)) for case in cases) / len(cases))
                    ends = (mean - 0.004, mean + 0.004)
                    found.append(Summary("norms", op, way, Metric.KERNEL, len(cases), mean, *ends, 3).as_json())
        return found

    def telemetry(self, cases: Sequence[str]) -> dict[str, Any]:
        chance = self.story.chance

        def gpu() -> dict[str, Any]:
            moving = {"sm_mhz": 1980 - chance.choice((0, 15, 30)), "temperature_c": 40 + chance.randrange(9)}
            fixed = {"uuid": "GPU-11111111-2222", "driver": "590.44", "throttle": ["idle"], "memory_mhz": 3201}
            return fixed | moving | {"power_w": 310.5, "pstate": 0, "ecc": True, "mig": False}

        seconds = {"start": 12.5, "ceilings": 0.4, "prepare": 38.25, "rounds": 63.5, "timed": 52.25, "check": 4.5}
        host = {"load": [1.5, 1, 0.5], "cores": [0, 1]}
        return {
            "worker": "h200-box-0",
            "began": self.now,
            "load_before": [1.5, 1.0, 0.5],
            "device": {"name": "NVIDIA H200", "sms": 132, "l2_bytes": 62914560},
            "ceilings": {"copy_gb_s": 4258.0, "matmul_tflop_s": 790.0},
            "trials": [
                {
                    "what": f"trial {trial}",
                    "seconds": seconds,
                    "telemetry": [
                        {"when": f"{when} {case}", "host": host, "gpu": gpu()}
                        for case in cases
                        for when in ("before", "after")
                    ],
                }
                for trial in (1, 2, 3)
            ],
        }
