"""A revision that is a release of torch, Triton, Quack or Liger: it is imported instead of the one in the stack."""

import json
import os
import subprocess
import sys

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.pool import Contender
from kernels.cases import Case, Role
from kernels.contender.server import Tree
from tests.fakes.wheels import files_of_torch, write_tree

CASE = Case.parse("rmsnorm.fwd.16x64.fp32")
EAGER = protocol.of_revision("eager-of-release", "eager")


@pytest.fixture
def opened(tmp_path):
    """Start a contender that knows its provider, in the environment of a tree."""
    channels = []

    def start(provider, **environment):
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        log = tmp_path / f"log-{len(channels)}"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", str(protocol.CONTENDER), json.dumps(provider)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=tmp_path,
                env={**kept, "OMP_NUM_THREADS": "1", **environment},
                start_new_session=True,
            )
        channels.append(Channel(process, log))
        return channels[-1]

    yield start
    for channel in channels:
        channel.close()


def test_releases_are_imported_from_their_trees_and_the_stack_from_its_own(opened, tmp_path):
    found = {}
    for version, extra in (("2.13.1", 0), ("2.14.0", 20)):
        tree = write_tree(tmp_path / version, files_of_torch(version, extra))
        channel = opened(EAGER, KERNELWATCH_TREE=str(tree))
        ready = channel.ask(protocol.start(EAGER, "cpu", 1, None), 120)
        prepared = channel.ask(protocol.prepare(CASE, 1), 120)
        assert (prepared["state"], prepared["reason"]) == ("measured", None)
        found[version] = min(channel.ask(protocol.turn(1, 3), 60)["samples"])
        assert (ready["stack"]["torch"], ready["replaced"]) == (version, {"torch": version})
        channel.close()
    base = opened(protocol.built_in("eager"))
    ready = base.ask(protocol.start(protocol.built_in("eager"), "cpu", 1, None), 120)

    assert (ready["stack"]["torch"], ready["replaced"]) == (torch.__version__, {})
    assert found["2.14.0"] > 3 * found["2.13.1"]


def test_a_stack_that_imports_torch_before_the_release_is_refused_with_what_to_look_for(opened, tmp_path):
    tree = write_tree(tmp_path / "tree", files_of_torch("2.14.0"))
    site = write_tree(tmp_path / "site", {"sitecustomize.py": "import torch\n"})

    channel = opened(EAGER, KERNELWATCH_TREE=str(tree), PYTHONPATH=str(site))
    ready = channel.ask(protocol.start(EAGER, "cpu", 1, None), 120)

    assert ready["ready"] is False
    assert ready["reason"].startswith(f"torch is imported from {os.path.dirname(torch.__file__)}/__init__.py, although")
    assert "sitecustomize" in ready["reason"]


def test_a_tree_replaces_what_it_can_be_imported_for(tmp_path):
    files = {
        "liger_kernel/__init__.py": "",
        "liger_kernel-0.6.0.dist-info/METADATA": "Name: liger-kernel\nVersion: 0.6.0\n",
    }
    release = write_tree(tmp_path / "release", files)
    checkout = write_tree(tmp_path / "checkout", {"src/quack/__init__.py": "", "triton/kernels.py": ""})

    assert Tree.of("").replaces == frozenset()
    assert Tree.of(str(release)).replaces == {"liger"}
    assert Tree.of(str(release)).versions == {"liger": "0.6.0"}
    assert Tree.of(f"{checkout}:{checkout}/src").replaces == {"quack"}, "a folder without __init__.py is no package"
    assert Tree.of(f"{checkout}/src").versions == {}


@pytest.mark.parametrize(
    ("provider", "trusted"),
    [
        (protocol.built_in("eager"), True),
        (protocol.of_revision("eager", "eager"), False),
        (protocol.targets_own("norms", {"rmsnorm.fwd": "norms:norm"}), False),
    ],
)
def test_only_a_built_in_provider_in_the_base_stack_runs_no_code_of_the_target(provider, trusted):
    assert Contender("one", Role.HEAD, provider, lambda: None).trusted is trusted
