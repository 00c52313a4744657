"""Environments of revisions: what is in them, when they are made anew, and what a build that misbehaves gets."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.domain.policy.recipes import Recipe, parse
from service.errors import BadInput, BuildFailed, Conflict, NotFound
from service.settings import settings
from tests import needs
from tests.fakes import wheels
from workers.machine import environments
from workers.machine.environments import Environment
from workers.sandbox import sandbox, usage

SANDBOXED = sandbox.self_test() is None
MIB = 1 << 20


def recipe(*commands: str, import_paths: tuple[str, ...] = (".",)) -> Recipe:
    build = f"[build]\ncommands = {[*commands]!r}\nimport_paths = {[*import_paths]!r}\n"
    return parse(f'devices = ["cpu"]\n{build}[providers.norms]\nrmsnorm.fwd = "norms:rms_norm"\n')


def build(norms, sha: str, wanted: Recipe, adapters: dict[str, str] | None = None, **more) -> Environment:
    return environments.build(norms.source, sha, wanted, adapters or {}, kind="git", sandboxed=SANDBOXED, **more)


def test_an_environment_holds_the_built_tree_and_the_adapters(norms):
    sha = norms.commit({"src/norms.py": "x = 1\n"})
    made = build(norms, sha, recipe("echo 'y = 2' > src/built.py", import_paths=("src",)), {"adapter.py": "z = 3\n"})

    adapters, source = made.tree
    assert (adapters / "adapter.py").read_text() == "z = 3\n"
    assert (source / "norms.py").read_text() == "x = 1\n"
    assert (source / "built.py").read_text() == "y = 2\n"
    assert made.python == Path(sys.executable)
    assert adapters.parent in made.read_only


def test_commands_run_with_the_stacks_python_where_the_tree_will_stay(norms):
    sha = norms.commit({"norms.py": ""})
    made = build(norms, sha, recipe("python -c 'import sys, os; print(sys.prefix, os.getcwd())' > where"))
    tree = made.tree[1]
    prefix, place = (tree / "where").read_text().split()
    assert prefix == sys.prefix
    assert place == str(tree) or not SANDBOXED


def test_modules_of_a_tree_have_byte_code_which_its_processes_could_not_write(norms):
    sha = norms.commit({"src/norms.py": "x = 1\n", "src/draft.py": "x =\n"})
    _, source = build(norms, sha, recipe("echo 'y = 2' > src/built.py", import_paths=("src",))).tree
    compiled = sorted(one.name.partition(".")[0] for one in (source / "__pycache__").iterdir())
    assert compiled == ["built", "norms"], "a draft that does not compile fails nothing"


def test_the_same_is_not_built_again_and_anything_else_is(norms):
    first = norms.commit({"norms.py": "1"})
    other = norms.commit({"norms.py": "2"})
    again = norms.commit({"norms.py": "1"})
    wanted = recipe("date +%N > built")

    one = build(norms, first, wanted)
    stamp = (one.tree[1] / "built").read_text()
    assert build(norms, again, wanted) == one, "a revert has the tree that was built already"
    assert (one.tree[1] / "built").read_text() == stamp
    keys = {
        build(norms, other, wanted).key,
        build(norms, first, recipe("true")).key,
        build(norms, first, wanted, {"a.py": ""}).key,
        one.key,
    }
    assert len(keys) == 4


def test_builds_of_one_source_apart_share_neither_path_nor_caches_nor_hash_seed(norms):
    sha = norms.commit({"norms.py": "1"})
    wanted = recipe('echo "$PYTHONHASHSEED" > seed')
    first, second = (build(norms, sha, wanted, apart=number) for number in (7, 8))
    assert len({first.key, second.key, build(norms, sha, wanted).key}) == 3
    assert environments.cache_of(first.key) != environments.cache_of(second.key)
    assert [(one.tree[1] / "seed").read_text().strip() for one in (first, second)] == ["7", "8"]
    assert (first.hash_seed, second.hash_seed) == (7, 8)


def test_an_environment_is_read_only_and_appears_as_a_whole(norms):
    sha = norms.commit({"folder/norms.py": "1"})
    made = build(norms, sha, recipe())
    file = made.tree[1] / "folder" / "norms.py"
    for path in (file, file.parent, file.parent.parent):
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    with pytest.raises(BuildFailed):
        build(norms, sha, recipe("echo half > done; false"))
    left = [path for path in (settings().state / "environments").iterdir() if path.name != made.key]
    assert left == []


def test_a_build_that_fails_shows_the_last_lines_of_its_log(norms):
    sha = norms.commit({"norms.py": "def broken(:\n"})
    with pytest.raises(BuildFailed) as failed:
        build(norms, sha, recipe("seq 1 100", "python -m py_compile norms.py", "echo never"))
    assert str(failed.value) == "The build failed at `python -m py_compile norms.py`: it exited with 1."
    lines = failed.value.log.splitlines()
    assert len(lines) == environments.LOG_LINES
    assert any("SyntaxError" in line for line in lines)
    assert "never" not in failed.value.log


def test_a_build_that_fails_on_a_full_disk_is_not_the_revisions_fault(norms, monkeypatch):
    sha = norms.commit({"norms.py": "1"})
    norms.source.refresh()
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=MIB))
    with pytest.raises(OSError, match="No space left on device"):
        build(norms, sha, recipe("echo 'No space left on device' >&2; false"))


def test_a_build_that_fails_tells_what_was_left_out_of_the_tree(norms):
    norms.link("data", "/etc/passwd")
    sha = norms.commit({"weights": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"})
    with pytest.raises(BuildFailed) as failed:
        build(norms, sha, recipe("cat data"))
    assert "link data -> /etc/passwd leads out of the tree" in str(failed.value)
    assert "1 file is only a Git LFS pointer" in str(failed.value)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sleep 100", "took longer than 1 s"),
        ("while :; do :; done", "took longer than 1 s"),
        ("setsid sleep 100 & sleep 100", "took longer than 1 s"),
        ("head -c 100M /dev/zero > a; head -c 100M /dev/zero > b", "it wrote"),
        ("kill -SEGV $$", "SIGSEGV"),
    ],
)
def test_a_build_that_misbehaves_ends_with_a_reason(norms, monkeypatch, command, reason):
    monkeypatch.setenv("KERNELWATCH_BUILD_LIMIT_S", "1" if "longer" in reason else "60")
    monkeypatch.setenv("KERNELWATCH_BUILD_DISK", str(20 * MIB))
    settings.cache_clear()
    sha = norms.commit({"norms.py": "1"})
    began = time.monotonic()
    with pytest.raises(BuildFailed, match=reason):
        build(norms, sha, recipe(command))
    assert time.monotonic() - began < 90  # and not 100
    assert list((settings().state / "environments").iterdir()) == []


def test_a_build_ends_when_its_run_is_taken_away(norms):
    class LeaseLost(Exception): ...

    def keep_going() -> None:
        raise LeaseLost

    sha = norms.commit({"norms.py": "1"})
    with pytest.raises(LeaseLost):
        build(norms, sha, recipe("sleep 100"), keep_going=keep_going)


@needs.skip_unless(SANDBOXED, "bubblewrap")
def test_a_build_sees_neither_the_service_nor_the_network(norms, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "s3cret")
    sha = norms.commit({"norms.py": "1"})
    made = build(norms, sha, recipe(f"env > seen; ls {settings().state} >> seen; ls /sys/class/net >> seen || true"))
    seen = (made.tree[1] / "seen").read_text()
    assert "s3cret" not in seen
    assert "mirrors" not in seen
    assert "eth" not in seen


@pytest.mark.parametrize("name", ["../outside.py", "/etc/cron.d/x", "a/b.py", ".hidden", ""])
def test_an_adapter_that_is_no_plain_file_name_is_refused(norms, name):
    sha = norms.commit({"norms.py": "1"})
    with pytest.raises(BadInput, match="cannot be an adapter"):
        build(norms, sha, recipe(), {name: "1"})


def test_the_longest_unused_environments_go_first(norms):
    wanted = recipe("head -c 2M /dev/urandom > big; mkdir locked; touch locked/x; chmod 000 locked")
    made = [build(norms, norms.commit({"norms.py": str(n)}), wanted) for n in range(3)]
    for age, one in zip((5, 7, 0), made, strict=True):
        (environments.cache_of(one.key) / "compiled").write_bytes(b"x" * MIB)
        then = time.time() - age * 3600
        os.utime(settings().state / "environments" / one.key / "whole", (then, then))
        os.utime(settings().state / "caches" / one.key, (then, then))

    assert environments.evict(100 * MIB) == []
    assert environments.evict(7 * MIB) == [made[1].key]
    assert environments.evict(0) == [made[0].key], "what was used lately stays, whatever the limit"
    assert [path.name for path in (settings().state / "environments").iterdir()] == [made[2].key]
    assert [path.name for path in (settings().state / "caches").iterdir()] == [made[2].key]


def test_on_a_full_disk_what_is_unused_goes_although_the_limit_is_kept(norms, monkeypatch):
    old, new = (build(norms, norms.commit({"norms.py": str(n)}), recipe()).key for n in range(2))
    os.utime(settings().state / "environments" / old / "whole", (0, 0))
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=MIB))
    assert environments.evict(100 * MIB) == [old]
    assert [path.name for path in (settings().state / "environments").iterdir()] == [new]


def test_what_was_removed_only_by_half_is_built_again(norms):
    sha = norms.commit({"norms.py": "1"})
    made = build(norms, sha, recipe())
    (settings().state / "environments" / made.key / "whole").unlink()
    assert build(norms, sha, recipe()) == made
    assert (made.tree[1] / "norms.py").read_text() == "1"
    assert [path.name for path in (settings().state / "environments").iterdir()] == [made.key]


def test_what_a_worker_died_removing_goes_at_the_next_eviction(norms):
    build(norms, norms.commit({"norms.py": "1"}), recipe())
    for folder in ("environments", "caches"):
        (settings().state / folder / f"{environments._REMOVING}dead" / "tree").mkdir(parents=True)
    assert environments.evict(100 * MIB) == []
    assert not [*settings().state.glob(f"*/{environments._REMOVING}*")]


def test_a_build_that_nests_folders_too_deep_for_recursion_is_kept_and_evicted(norms):
    deep = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    made = build(norms, norms.commit({"deep.py": deep}), recipe("python deep.py"))
    os.utime(settings().state / "environments" / made.key / "whole", (0, 0))
    assert environments.evict(0) == [made.key]
    assert [*(settings().state / "environments").iterdir()] == []


def test_half_built_leftovers_of_a_dead_worker_go_as_well(norms):
    build(norms, norms.commit({"norms.py": "1"}), recipe())
    left = settings().state / "environments" / f"{environments._BUILDING}dead"
    left.mkdir()
    environments.evict(100 * MIB)
    assert left.exists()
    os.utime(left, (0, 0))
    environments.evict(100 * MIB)
    assert not left.exists()


def test_a_stack_that_is_not_there_says_which_are_and_how_to_make_it(norms):
    with pytest.raises(
        NotFound, match=r"No stack torch28\. Known: host\. Create it with `kernelwatch stack create torch28`"
    ):
        environments.stack("torch28")
    assert [one.name for one in environments.list_stacks()] == ["host"]


def test_a_stack_that_is_just_being_made_is_left_alone(norms, monkeypatch):
    def meanwhile(folder: Path, **_: object) -> None:
        with pytest.raises(Conflict, match="creating stack torch28"):
            environments.create_stack("torch28", [])
        (folder / "bin").mkdir()
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(environments.venv, "create", meanwhile)
    monkeypatch.setattr(environments.torch_install, "install", lambda *_: None)
    assert environments.create_stack("torch28", []).name == "torch28"
    assert [one.name for one in environments.list_stacks()] == ["host", "torch28"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_stacks_name_is_plain(norms, name):
    with pytest.raises(BadInput, match="cannot be a stack's name"):
        environments.adopt_stack(name, Path(sys.executable), [])


def test_a_locked_stack_has_what_the_file_lists_and_nothing_that_differs(norms, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    about = "layers-1.0.dist-info"
    files = {
        "layers.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: layers\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    wheel = wheels.write_wheel(tmp_path / "wheels", "layers", "1.0", files)
    lock = tmp_path / "stack.lock"
    lock.write_text(f"layers==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    made = environments.create_stack("locked", [], lock)
    assert any((folder / "layers.py").exists() for folder in made.folders)

    wheels.write_wheel(tmp_path / "wheels", "layers", "1.0", {**files, "layers.py": "changed = 1"})
    with pytest.raises(BuildFailed, match="DO NOT MATCH THE HASHES"):
        environments.create_stack("other", [], lock)
    assert [one.name for one in environments.list_stacks()] == ["host", "locked"]


def test_what_is_no_interpreter_is_not_adopted(norms, tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        environments.adopt_stack("other", tmp_path / "missing", [])
    with pytest.raises(BadInput, match="is not a Python interpreter"):
        environments.adopt_stack("other", Path("/bin/false"), [])


def test_more_folders_of_a_stack_are_imported_from_and_change_its_key(norms, tmp_path):
    (tmp_path / "bundle" / "quack_kernels-0.6.5.dist-info").mkdir(parents=True)
    more = environments.adopt_stack("more", Path(sys.executable), [tmp_path / "bundle"])
    plain = environments.stack("host")
    assert more.paths == (tmp_path / "bundle",)
    assert tmp_path / "bundle" in more.read_only
    assert more.version == plain.version == sys.version_info[:2]
    assert more.key != plain.key == environments.stack("host").key
    (tmp_path / "bundle" / "liger_kernel-0.8.5.dist-info").mkdir()
    assert environments.stack("more").key != more.key or more.key == environments.stack("more").key


def executable(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("compiler", ["cc", "c++", "nvcc"])
def test_what_is_compiled_is_built_again_by_another_compiler(norms, tmp_path, compiler):
    python = executable(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    environments.adopt_stack("host", python, [])
    sha = norms.commit({"norms.py": "1"})
    plain, compiled, keys = recipe(), recipe("true"), list[tuple[str, str]]()
    for number, version in enumerate(("13.0", "13.0", "13.1")):
        file = executable(python.with_name(compiler), f"echo {compiler} {version}")
        os.utime(file, (number, number))
        keys.append((build(norms, sha, plain).key, build(norms, sha, compiled).key))
    assert keys[0] == keys[1]
    assert (keys[2][0] == keys[0][0], keys[2][1] == keys[0][1]) == (True, False)


def test_a_compiler_that_does_not_run_is_no_obstacle(norms, tmp_path):
    python = executable(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    environments.adopt_stack("host", python, [])
    executable(python.with_name("c++"), "exit 1")
    assert build(norms, norms.commit({"norms.py": "1"}), recipe("true")).key


def test_another_version_of_the_interpreter_or_a_distribution_in_either_folder_changes_the_key(tmp_path):
    python, keys = tmp_path / "python", set[str]()
    for version, distribution in (("3.11.4", None), ("3.11.9", None), ("3.11.9", "pure"), ("3.11.9", "plat")):
        places = ["/prefix", "/base", str(tmp_path / "pure"), str(tmp_path / "plat"), version]
        executable(python, f"echo '{json.dumps(places)}'")
        if distribution:
            (tmp_path / distribution / f"{distribution}-1.dist-info").mkdir(parents=True)
        environments._places.cache_clear()
        keys.add(environments.BaseStack("host", python).key)
    assert len(keys) == 4


def test_an_interpreter_under_another_name_is_python_to_a_build(norms, tmp_path):
    link = tmp_path / "bin" / "my-python3"
    link.parent.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    link.write_text(f'#!/bin/sh\nexec {tmp_path}/venv/bin/python "$@"\n')
    link.chmod(0o755)
    environments.adopt_stack("host", link, [])
    made = build(norms, norms.commit({"norms.py": "1"}), recipe("python -c 'import sys; print(sys.prefix)' > where"))
    assert (made.tree[1] / "where").read_text().strip() == str(tmp_path / "venv")


def test_the_whole_log_of_a_build_is_kept_whether_it_fails_or_not(norms):
    sha = norms.commit({"norms.py": "1"})
    norms.source.refresh()
    made = build(norms, sha, recipe("seq 1 100", "echo built"))
    assert environments.log_of(made.key).splitlines() == [
        "$ seq 1 100",
        *map(str, range(1, 101)),
        "$ echo built",
        "built",
    ]
    with pytest.raises(BuildFailed) as failed:
        build(norms, sha, recipe("seq 1 100; false"))
    assert failed.value.whole.splitlines()[1] == "1"
    assert environments.log_of("never-built") == ""


def test_of_a_very_long_log_the_beginning_and_the_end_are_kept(norms, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_LOG_LIMIT", "4096")
    settings.cache_clear()
    sha = norms.commit({"norms.py": "1"})
    norms.source.refresh()
    log = environments.log_of(build(norms, sha, recipe("seq 1 100000", "seq 1 2000")).key)
    assert log.startswith("$ seq 1 100000\n1\n2\n")
    assert log.endswith("1999\n2000\n")
    assert log.count("left out here") == 1, "and says so where it is"
    assert len(log) < 4200


def test_no_secret_of_the_service_is_in_a_log(norms, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_GITHUB_TOKEN", "ghp_verysecret")
    monkeypatch.setenv("KERNELWATCH_GITHUB_APP_KEY", "-----BEGIN-----\nMIIEpAIBAAKCAQ\n-----END-----")
    monkeypatch.setenv("KERNELWATCH_DATABASE_URL", "sqlite:///elsewhere?password=hunter2hunter2")
    settings.cache_clear()
    sha = norms.commit({"norms.py": "1"})
    norms.source.refresh()
    said = "echo ghp_verysecret MIIEpAIBAAKCAQ; env; false"
    with pytest.raises(BuildFailed) as failed:
        build(norms, sha, recipe(said))
    for log in (failed.value.log, failed.value.whole):
        assert "[secret] [secret]" in log
        assert "verysecret" not in log
        assert "MIIEp" not in log
        assert "hunter2" not in log


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_build_leaves_the_same_tree_with_a_file_system_of_its_own_and_without(norms, monkeypatch, share):
    monkeypatch.setattr(usage, "MAX_SHARE", share)
    sha = norms.commit({"norms.py": "x = 1\n"})
    commands = (
        "mkdir -p a/b; echo y > a/b/y; ln -s b/y a/link; ln a/b/y a/hard; chmod 750 a/b/y; rm norms.py; mkfifo fifo"
    )
    [_, tree] = build(norms, sha, recipe(commands)).tree
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    assert names == ["a", "a/b", "a/b/y", "a/hard", "a/link", "fifo"]
    assert (os.readlink(tree / "a/link"), (tree / "a/hard").stat().st_nlink) == ("b/y", 2)
    assert stat.S_IMODE((tree / "a/b/y").stat().st_mode) == 0o555
    assert not list(tree.parent.glob("built")), "nothing else is left"


@pytest.mark.skipif(not SANDBOXED, reason=needs.reason("bubblewrap"))
def test_a_build_that_leaves_more_folders_than_its_disk_has_room_for_fails(norms, monkeypatch):
    """A folder takes nothing in memory, and 4 KiB of the machine's disk."""
    monkeypatch.setenv("KERNELWATCH_BUILD_DISK", str(8 * MIB))
    settings.cache_clear()
    sha = norms.commit({"norms.py": ""})
    build(norms, sha, recipe("mkdir few; cd few; seq 1000 | xargs mkdir"))
    many = recipe("mkdir many; cd many; seq 3000 | xargs mkdir; echo made")
    with pytest.raises(BuildFailed, match="leaves more than 8 MiB beyond the revision") as failed:
        build(norms, sha, many)
    assert failed.value.log.endswith("made")
    assert len(environments._keys()) == 1, "nothing of it is left"


@pytest.mark.parametrize("program", ["cp", "chmod", "rm"])
@pytest.mark.skipif(not SANDBOXED, reason=needs.reason("bubblewrap"))
def test_a_build_ends_with_its_lease_while_a_tool_works_on_its_tree(norms, monkeypatch, tmp_path, program):
    begun, slow = tmp_path / "begun", tmp_path / "bin" / program
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 600\n")
    slow.chmod(0o755)
    sha = norms.commit({"norms.py": ""})

    class Lost(Exception):
        pass

    def keep_going():
        if begun.exists():
            monkeypatch.setenv("PATH", usual)
            raise Lost

    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{slow.parent}:{usual}")
    with pytest.raises(Lost):
        build(norms, sha, recipe("true"), keep_going=keep_going)


@pytest.mark.skipif(not SANDBOXED, reason=needs.reason("bubblewrap"))
def test_a_build_that_fills_its_file_system_fails_with_that_reason(norms, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_BUILD_DISK", str(8 * MIB))
    settings.cache_clear()
    fill = "i=0; while head -c 1M /dev/zero > f$i; do i=$((i+1)); done; exit 1"
    with pytest.raises(BuildFailed, match="it filled its disk, which has room for 8 MiB more than the revision"):
        build(norms, norms.commit({"norms.py": ""}), recipe(fill))
