"""Real contenders: build a revision, start its process in the sandbox, send it requests, and end it."""

import os

import pytest

from kernels.arena import protocol
from kernels.arena.channel import ContenderLost
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case, Role
from service.domain.codefacts.compiled import calls_of
from service.domain.policy import recipes
from service.settings import settings
from tests import needs
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.run.baselines import contender
from workers.run.trials import Tally
from workers.sandbox import sandbox

SANDBOXED = sandbox.self_test() is None
CPU = DeviceHere("cpu", "the processor")
CASE = Case.parse("rmsnorm.fwd.64x128.fp32")
LIMIT_S = 120
RECIPE = recipes.parse('devices = ["cpu"]\n[providers.norms]\nrmsnorm.fwd = "adapter:rms"\n')
ADAPTER = {"adapter.py": "from norms import rms_norm as rms\n"}
NORMS = '''"""A norm as a target would have it."""
import torch


def rms_norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)
'''
OWN = protocol.targets_own("norms", {"rmsnorm.fwd": "adapter:rms"})


def own(norms, tmp_path, source: str = NORMS, label: str = "head:norms", sandboxed: bool = SANDBOXED, **spec):
    """A contender of the target's own code at a new commit."""
    sha = norms.commit({"norms.py": source})
    made = environments.build(norms.source, sha, RECIPE, ADAPTER, kind="git", sandboxed=sandboxed)
    return contender(label, Role.HEAD, {**OWN, **spec}, made, CPU, sandboxed=sandboxed, scratch=tmp_path / "scratch")


@pytest.mark.parametrize("sandboxed", [pytest.param(True, marks=needs.skip_unless(SANDBOXED, "bubblewrap")), False])
def test_head_and_sota_are_measured_side_by_side(norms, tmp_path, sandboxed):
    head = own(norms, tmp_path, sandboxed=sandboxed)
    stack = environments.stack("host")
    scratch = tmp_path / "scratch"
    spec = protocol.built_in("eager")
    sota = contender("sota:eager", Role.SOTA, spec, stack, CPU, sandboxed=sandboxed, scratch=scratch)

    trial = run_trial([head, sota], [CASE], Pace(rounds=2), device="cpu", seed=1)

    tally = Tally([head, sota], [CASE])
    tally.add(trial, confirming=False)
    for one, recorded in zip((head, sota), tally.taken(), strict=True):
        cell = trial.cells[one.label, CASE]
        assert (cell.state, cell.reason) == ("measured", None)
        assert len(cell.samples) == 2
        assert trial.stacks[one.label]["torch"]
        # What is recorded of the timing must not replace what is recorded of the code.
        assert recorded.facts["calls"] > 0
        assert calls_of(recorded.facts["operators"])
        assert all(call.bytes for call in calls_of(recorded.facts["operators"]))


@needs.skip_unless(SANDBOXED, "bubblewrap")
def test_a_compiled_contender_compiles_into_the_cache_of_its_environment(norms, tmp_path):
    head = own(norms, tmp_path, compile=protocol.DEFAULT_COMPILE)
    [caches] = (settings().state / "caches").iterdir()

    channel = head.start()
    try:
        channel.ask(protocol.start(head.provider, "cpu", 1, None), LIMIT_S)
        prepared = channel.ask(protocol.prepare(CASE, 1), LIMIT_S)
    finally:
        channel.close()

    assert prepared["state"] == "measured", prepared
    assert [path for path in (caches / "inductor").rglob("*") if path.suffix in (".so", ".cpp")]


@needs.skip_unless(SANDBOXED, "bubblewrap")
def test_a_contender_sees_its_revision_and_nothing_of_the_service(norms, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    spy = (
        "import os, sys\n"
        f"state = {str(settings().state)!r}\n"
        "env = ' '.join(os.environ.values())\n"
        "sys.stderr.write('secret ' + str('ghp_secret' in env) + '\\n')\n"
        "sys.stderr.write('state ' + ' '.join(sorted(os.listdir(state))) + '\\n')\n"
        "sys.stderr.write('home ' + os.getcwd() + '\\n')\n"
        "try: open(os.path.join(os.path.dirname(__file__), 'new'), 'w')\n"
        "except OSError as error: sys.stderr.write('write ' + error.strerror + '\\n')\n"
        "sys.stderr.flush(); os._exit(7)\n"
    )
    channel = own(norms, tmp_path, spy).start()
    try:
        with pytest.raises(ContenderLost) as lost:
            channel.ask(protocol.start(OWN, "cpu", 1, None), LIMIT_S)
        [log] = (tmp_path / "scratch").glob("*/stderr.log")
        said = dict(line.split(" ", 1) for line in log.read_text().splitlines() if " " in line)
    finally:
        channel.close()
    assert said["secret"] == "False"
    assert "mirrors" not in said["state"]
    assert said["home"].startswith(str(tmp_path / "scratch"))
    assert said["write"] == "Read-only file system"
    assert "status 7" in str(lost.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise RuntimeError('no such kernel')", "no such kernel"),
        ("import torch; return torch.full_like(x, float('nan'))", None),
    ],
)
def test_a_kernel_that_crashes_or_lies_is_failed_or_invalid_and_others_go_on(norms, tmp_path, body, reason):
    bad = own(norms, tmp_path, f"def rms_norm(x, weight, eps):\n    {body}\n", label="head:bad")
    good = own(norms, tmp_path, label="parent:norms")

    trial = run_trial([bad, good], [CASE], Pace(rounds=2), device="cpu", seed=1)

    cell = trial.cells["head:bad", CASE]
    assert cell.state == ("failed" if reason else "invalid")
    assert not cell.samples
    assert (reason or "") in (cell.reason or "")
    assert trial.cells["parent:norms", CASE].state == "measured"


def test_a_kernel_that_hangs_is_ended_in_time(norms, tmp_path):
    hanging = own(norms, tmp_path, "import time\ndef rms_norm(x, weight, eps):\n    time.sleep(3600)\n")
    pace = Pace(rounds=2, prepare_limit_s=2)
    trial = run_trial([hanging], [CASE], pace, device="cpu", seed=1)
    cell = trial.cells["head:norms", CASE]
    assert cell.state == "failed"
    assert "2 s" in (cell.reason or "")


def test_a_contender_leaves_nothing_behind_when_it_ends_and_keeps_its_environment_in_use(norms, tmp_path):
    head = own(norms, tmp_path)
    for used in (*settings().state.glob("caches/*"), *settings().state.glob("environments/*/whole")):
        os.utime(used, (0, 0))
    together = [head.start() for _ in range(3)]
    folders = list((tmp_path / "scratch").iterdir())
    assert [list((folder / "home").iterdir()) for folder in folders] == [[]] * 3
    (folders[0] / "home" / "large").touch()
    for channel in together:
        channel.close()
    assert not list((tmp_path / "scratch").iterdir())
    assert not environments.evict(0)


def test_what_a_revision_keeps_among_its_compiled_things_counts_at_its_next_start(norms, tmp_path, monkeypatch):
    monkeypatch.setattr("workers.run.baselines.SCRATCH_DISK", 24 << 20)
    monkeypatch.setattr("workers.run.baselines.MIN_DISK", 4 << 20)
    keeps = "import os\nopen(os.environ['TMPDIR'] + f'/{os.urandom(8).hex()}', 'wb').write(bytes(12 << 20))\n"
    head = own(norms, tmp_path, NORMS + keeps)
    answers = []
    for _ in range(3):
        channel = head.start()
        channel.ask(protocol.start(OWN, "cpu", 1, None), LIMIT_S)
        answers.append(channel.ask(protocol.prepare(CASE, 1), LIMIT_S))
        channel.close()
    assert answers[0]["state"] == "measured", answers
    assert "File too large" in str(answers[2]), answers
