"""A repository as a source of revisions, and what hostile or broken ones get."""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from service.errors import BadInput, LeaseLost, NotFound, Refused, SourceFailed
from service.settings import MIB, settings
from service.sources import git, open_source
from service.sources.source import Source, TreeWriter
from tests import needs
from tests.fakes.repository import Repository, Target

ROOT = Path(__file__).parents[3]


@pytest.fixture
def roots(state, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}/repositories"]')
    settings.cache_clear()
    yield tmp_path / "repositories"
    settings.cache_clear()


@pytest.fixture
def repository(roots) -> Repository:
    return Repository(roots / "norms")


def source_of(repository: Repository) -> Source:
    return open_source(Target(str(repository.folder)))


@pytest.mark.parametrize(
    ("before", "after", "ranges"),
    [
        ("a\nb\nc\n", "a\nb\nc\n", []),
        ("a\nb\nc\n", "a\nB\nc\n", [(2, 2)]),
        ("a\nb\nc\nd\n", "A\nA\nb\nc\nD\nD", [(1, 2), (5, 6)]),
        ("a\nb\nc\n", "a\nc\n", []),  # removed lines are not in the head
        (None, "a\nb\n", [(1, 2)]),
        ("a\n", "a\n@@ -1 +1,9 @@ no header\n", [(2, 2)]),
        ("a\n", None, []),
    ],
)
def test_the_lines_of_a_file_that_changed(repository, before, after, ranges):
    def content(text):
        return {"norms.py": text} if text is not None else {}

    base = repository.commit("before", {"other.py": "1", **content(before)})
    if after is None:
        repository.git("rm", "-q", "norms.py")
    head = repository.commit("after", {"other.py": "2", **content(after)})
    source = source_of(repository)
    source.resolve("main")
    assert source.changed_lines(base, head, "norms.py") == ranges


def test_a_path_to_compare_is_no_pattern(repository):
    base = repository.commit("before", {"a.py": "1\n", "*.py": "1\n"})
    head = repository.commit("after", {"a.py": "2\n", "*.py": "1\n"})
    source = source_of(repository)
    source.resolve("main")
    assert source.changed_lines(base, head, "*.py") == []


def test_commits_are_told_oldest_first_with_what_they_changed(repository):
    first = repository.commit("Add RMSNorm", {"norms/rms.py": "a", "README.md": "b"})
    second = repository.commit("Say how", {"README.md": "c"})
    repository.git("mv", "norms/rms.py", "norms/rmsnorm.py")
    third = repository.commit("Rename")

    source = source_of(repository)
    assert source.default_branch() == "main"
    assert source.resolve("main") == third
    found = source.mainline(None, limit=10)

    assert [revision.sha for revision in found] == [first, second, third]
    assert found[0].parent is None
    assert set(found[0].paths) == {"norms/rms.py", "README.md"}
    assert (found[1].parent, found[1].subject, found[1].paths) == (first, "Say how", ("README.md",))
    assert set(found[2].paths) == {"norms/rms.py", "norms/rmsnorm.py"}
    assert [revision.sha for revision in source.mainline("main", limit=2)] == [second, third]
    assert [revision.sha for revision in source.between(first, third)] == [second, third]
    assert source.describe(second) == found[1]


def test_the_last_release_is_the_one_before_a_revision(repository):
    first = repository.commit("First", {"a": "1"})
    repository.git("tag", "v1.0")
    second = repository.commit("Second", {"a": "2"})
    third = repository.commit("Third", {"a": "3"})
    repository.git("tag", "--annotate", "--message", "2", "v2.0")
    fourth = repository.commit("Fourth", {"a": "4"})

    source = source_of(repository)
    source.refresh()
    found = [source.last_release(sha) for sha in (first, second, third, fourth)]

    assert found == [None, first, first, third], "a release is not its own predecessor"


def test_only_versions_are_releases_whatever_else_is_tagged(repository):
    first = repository.commit("First", {"a": "1"})
    repository.git("tag", "v1.9")
    second = repository.commit("Second", {"a": "2"})
    for tag in ("v1.10.0", "docs-2026-11", "build-20261128.5", "v2.0rc1", "norms-3.0"):
        repository.git("tag", tag)
    third = repository.commit("Third", {"a": "3"})
    repository.git("tag", "nightly-7")

    source = source_of(repository)
    source.refresh()

    assert source.last_release(third) == second, "1.10 is higher than 1.9"
    assert source.last_release(second) == first
    assert source.last_release(third, "norms-*") == second
    assert source.last_release(third, "torch-*") is None


def test_a_release_on_a_branch_of_its_own_counts_where_it_left_the_line(repository):
    first = repository.commit("First", {"a": "1"})
    repository.git("tag", "v1.0")
    cut = repository.commit("Cut", {"a": "2"})
    repository.git("checkout", "--quiet", "-b", "release/2.0")
    repository.commit("Release notes", {"notes": "2"})
    repository.git("tag", "v2.0")
    repository.git("checkout", "--quiet", "main")
    last = repository.commit("Last", {"a": "3"})

    source = source_of(repository)
    source.refresh()

    assert source.last_release(last) == cut
    assert source.last_release(cut) == first


def test_a_merge_counts_as_one_step_with_all_that_it_brought(repository):
    base = repository.commit("Base", {"a": "1"})
    repository.git("checkout", "--quiet", "-b", "topic")
    topic = repository.commit("On the side", {"b": "1"})
    repository.git("checkout", "--quiet", "main")
    repository.commit("Meanwhile", {"c": "1"})
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge topic", "topic")

    source = source_of(repository)
    merged = source.mainline("main", 10)[-1]

    assert (merged.subject, merged.paths) == ("Merge topic", ("b",))
    assert topic not in [revision.sha for revision in source.mainline("main", 10)]
    assert source.merge_base(topic, merged.parent or "") == base
    assert source.identity(base) != source.identity(topic)


def test_what_is_new_is_seen_after_a_refresh_and_an_unknown_revision_asks_for_one(repository):
    repository.commit("One", {"a": "1"})
    source = source_of(repository)
    source.refresh()
    late = repository.commit("Two", {"a": "2"})

    assert source.mainline("main", 10)[-1].subject == "One"
    assert source.resolve(late[:12]) == late
    assert source.mainline("main", 10)[-1].subject == "Two"


def test_heads_of_pull_requests_and_tags_resolve(repository):
    repository.commit("One", {"a": "1"})
    repository.git("tag", "--annotate", "-m", "first", "v0.1")
    repository.git("checkout", "--quiet", "-b", "contribution")
    head = repository.commit("Contribution", {"a": "2"})
    repository.git("checkout", "--quiet", "main")
    repository.git("update-ref", "refs/pull/7/head", head)
    repository.git("branch", "-D", "contribution")

    source = source_of(repository)
    assert source.resolve("pull/7/head") == source.resolve(head) == head
    assert source.resolve("refs/pull/7/head~1") == source.resolve("main")
    assert (source.is_on_branch(head), source.is_on_branch(source.resolve("main"))) == (False, True)
    assert source.resolve("v0.1") == source.resolve("main")
    assert source.between(source.resolve("main"), head)[0].subject == "Contribution"
    repository.git("branch", "größe/x", head)
    assert source.resolve("größe/x") == head


def test_a_commit_outlives_the_branch_that_was_forced_away(repository):
    repository.commit("One", {"a": "1"})
    lost = repository.commit("Two", {"a": "2"})
    source = source_of(repository)
    assert source.resolve("main") == lost
    repository.git("reset", "--quiet", "--hard", "HEAD~1")

    source.refresh()
    assert source.resolve("main") != lost
    assert source.resolve(lost) == lost


def test_the_default_branch_is_the_one_that_the_origin_names(repository):
    repository.git("symbolic-ref", "HEAD", "refs/heads/trunk")
    repository.commit("One", {"a": "1"})
    repository.git("branch", "main")
    repository.commit("Two", {"a": "2"})
    assert source_of(repository).default_branch() == "trunk"


def test_an_empty_repository_is_said_to_be_empty(repository):
    with pytest.raises(NotFound, match="empty"):
        source_of(repository).default_branch()


def test_nothing_is_fetched_from_a_shallow_clone_and_that_is_said(repository, roots):
    for text in "123":
        repository.commit(text, {"a": text})
    shallow = roots / "shallow"
    origin = f"file://{repository.folder}"
    subprocess.run(["git", "clone", "--quiet", "--depth=2", origin, str(shallow)], check=True)

    for _ in range(2):  # the mirror of the first attempt changes nothing
        with pytest.raises(SourceFailed, match=r"is a shallow clone.*git fetch --unshallow"):
            open_source(Target(str(shallow))).default_branch()
    subprocess.run(["git", "-C", str(shallow), "fetch", "--quiet", "--unshallow"], check=True)
    assert open_source(Target(str(shallow))).default_branch() == "main"


@pytest.mark.parametrize("rev", ["missing", "0" * 40, "v9.9", "main~100"])
def test_a_missing_revision_is_named_with_the_branches_there_are(repository, rev):
    repository.commit("One", {"a": "1"})
    with pytest.raises(NotFound, match=f"No revision {rev}.*Branches: main"):
        source_of(repository).resolve(rev)


@pytest.mark.parametrize(
    "rev", ["--upload-pack=touch /tmp/pwned", "-q", "", "a b", "main:../x", "main@{1}", "a..b", "^main"]
)
def test_what_is_no_revision_is_refused_before_git_sees_it(repository, rev):
    repository.commit("One", {"a": "1"})
    with pytest.raises(BadInput, match="is not a revision"):
        source_of(repository).resolve(rev)


def test_refs_named_like_options_are_only_names(repository, tmp_path):
    sha = repository.commit("One", {"a": "1"})
    repository.git("update-ref", "refs/heads/--upload-pack=touch${IFS}pwned", sha)
    repository.git("update-ref", "refs/heads/--output=pwned", sha)
    source = source_of(repository)

    assert source.mainline("--output=pwned", 5)[0].sha == sha
    assert source.default_branch() == "main"
    with pytest.raises(NotFound, match="branch"):
        source.mainline("--output=elsewhere", 5)
    assert not [folder for folder in (Path(), tmp_path, repository.folder) if (folder / "pwned").exists()]


def test_files_are_read_only_when_they_are_plain_files_of_the_revision(repository):
    repository.link("link.toml", "/etc/passwd")
    sha = repository.commit("One", {"kernelwatch.toml": "devices = []\n", "folder/x": "1", "*.toml": "star"})
    source = source_of(repository)

    assert source.read(sha, "kernelwatch.toml") == b"devices = []\n"
    assert source.read(sha, "*.toml") == b"star"
    for path in ("missing", "folder", "link.toml", "../x", "/etc/passwd", "", ":(top)kernelwatch.toml"):
        assert source.read(sha, path) is None


def test_an_export_is_the_plain_tree_and_attributes_have_no_say(repository, tmp_path):
    repository.commit(
        "One", {"src/a.py": "print(1)\n", ".gitattributes": "*.py export-ignore\n*.py text eol=crlf\n", "run": "#!"}
    )
    (repository.folder / "run").chmod(0o755)
    sha = repository.commit("Two")
    hooks = repository.folder / ".git" / "hooks" / "post-checkout"
    hooks.parent.mkdir(exist_ok=True)
    hooks.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hooks.chmod(0o755)

    exported = source_of(repository).export(sha, tmp_path / "tree")

    assert (tmp_path / "tree/src/a.py").read_bytes() == b"print(1)\n"
    assert os.access(tmp_path / "tree/run", os.X_OK)
    assert not (tmp_path / "tree/.git").exists()
    assert not (tmp_path / "hooked").exists()
    assert (exported.files, exported.notes) == (3, ())


def test_links_that_lead_out_are_left_out_and_named(repository, tmp_path):
    repository.link("inside/fine", "../a")
    repository.link("absolute", "/etc/passwd")
    repository.link("up", "../../secrets")
    repository.link("deep/er/root", "../..")
    repository.link("deep/sneaky", "er/root/../outside")
    sha = repository.commit("Links", {"a": "1"})

    exported = source_of(repository).export(sha, tmp_path / "tree")

    assert (tmp_path / "tree/inside/fine").read_text() == "1"
    assert (tmp_path / "tree/deep/er/root").is_symlink()
    for name in ("absolute", "up", "deep/sneaky"):
        assert not (tmp_path / "tree" / name).is_symlink()
        assert any(f"link {name} -> " in note for note in exported.notes)


def test_submodules_stay_empty_and_lfs_pointers_are_counted(repository, tmp_path):
    one = repository.commit("One", {"a": "1"})
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{one},third_party/cutlass")
    (repository.folder / "third_party/cutlass").mkdir(parents=True)
    sha = repository.commit("Two", {"weights.bin": pointer, "more.bin": pointer})

    exported = source_of(repository).export(sha, tmp_path / "tree")

    assert (tmp_path / "tree/third_party/cutlass").is_dir()
    submodule, lfs = exported.notes
    assert "submodule third_party/cutlass is left empty" in submodule
    assert "2 files are only a Git LFS pointer" in lfs


def test_a_tree_beyond_the_limit_is_refused_before_it_is_written(repository, tmp_path, monkeypatch):
    sha = repository.commit("Large", {f"file{n}": "x" * 1000 for n in range(20)})
    monkeypatch.setenv("KERNELWATCH_TREE_LIMIT", "10000")
    settings.cache_clear()
    with pytest.raises(BadInput, match="exceeds"):
        source_of(repository).export(sha, tmp_path / "tree")
    assert list((tmp_path / "tree").iterdir()) == []


def test_a_tree_that_unfolds_without_end_is_refused(repository, tmp_path):
    blob = repository.git("hash-object", "-w", "--stdin", given="x")
    tree = repository.git("mktree", given="".join(f"100644 blob {blob}\tf{n}\n" for n in range(10)))
    for _ in range(9):  # 10^10 files in ten small objects
        tree = repository.git("mktree", given="".join(f"040000 tree {tree}\td{n}\n" for n in range(10)))
    bomb = repository.git("commit-tree", "-m", "bomb", tree)
    repository.git("update-ref", "refs/heads/main", bomb)

    source = source_of(repository)
    with pytest.raises(BadInput, match="more than"):
        source.export(bomb, tmp_path / "tree")
    found = source.describe(bomb)
    assert (found.subject, found.paths, found.more_paths) == ("bomb", (), True)


def test_of_very_many_changed_paths_the_first_are_listed(repository):
    blob = repository.git("hash-object", "-w", "--stdin", given="x")
    names = [f"{n:05}-{'x' * 60}" for n in range(6_000)]
    tree = repository.git("mktree", given="".join(f"100644 blob {blob}\t{name}\n" for name in names))
    first = repository.commit("One", {"a": "1"})
    wide = repository.git("commit-tree", "-p", first, "-m", "wide", tree)
    last = repository.git("commit-tree", "-p", wide, "-m", "last", repository.git("rev-parse", f"{first}^{{tree}}"))
    repository.git("update-ref", "refs/heads/main", last)

    found = source_of(repository).mainline("main", 10)

    assert [one.more_paths for one in found] == [False, True, True]
    assert 1_000 < len(found[1].paths) < 6_000
    assert sum(map(len, found[1].paths)) <= git.MAX_PATH_BYTES


def test_at_most_five_thousand_changed_paths_are_listed(repository):
    blob = repository.git("hash-object", "-w", "--stdin", given="x")
    tree = repository.git("mktree", given="".join(f"100644 blob {blob}\t{n:x}\n" for n in range(5_001)))
    first = repository.commit("One", {"a": "1"})
    repository.git("update-ref", "refs/heads/main", repository.git("commit-tree", "-p", first, "-m", "wide", tree))

    [_, found] = source_of(repository).mainline("main", 10)

    assert (len(found.paths), found.more_paths) == (5_000, True)


def test_of_very_long_subjects_the_beginnings_are_listed(repository):
    first = repository.commit("first", {"a": "1"})
    words = "cafe\u0301 " * 150_000  # the accents have no width
    subjects = [f"{number} {words}" for number in range(1, 71)]
    commits = [
        f"commit refs/heads/main\nmark :{at}\ncommitter ada <ada@example.org> {at} +0000\n"
        f"data {len(subject.encode())}\n{subject}\n"
        f"from {f':{at - 1}' if at > 1 else first}\nM 100644 inline b\ndata 2\n{at:02}\n"
        for at, subject in enumerate(subjects, 1)
    ]
    repository.git("fast-import", "--quiet", given="".join(commits))

    found = source_of(repository).mainline("main", 100)

    assert [one.subject for one in found] == ["first", *(subject[:500] for subject in subjects)]
    assert [(one.author, one.paths, one.more_paths) for one in found[1:]] == [("ada", ("b",), False)] * 70
    assert [one.committed_at for one in found[1:]] == list(range(1, 71))
    assert [one.parent for one in found[1:]] == [one.sha for one in found[:-1]]


def test_a_range_of_very_long_subjects_is_listed_with_little_memory(repository, monkeypatch):
    first = repository.commit("first", {"a": "1"})
    words = "word " * 200_000
    commits = [
        f"commit refs/heads/main\nmark :{at}\ncommitter ada <ada@example.org> {at} +0000\n"
        f"data {len(words) + 4}\n{at:03} {words}\nfrom {f':{at - 1}' if at > 1 else first}\n\n"
        for at in range(1, 201)
    ]
    repository.git("fast-import", "--quiet", given="".join(commits))
    monkeypatch.setattr(git, "_ASK", replace(git._ASK, memory=160 * MIB))
    source = source_of(repository)
    source.refresh()

    found = source.between(first, source.resolve("main"))

    assert [one.subject[:4] for one in found] == [f"{at:03} " for at in range(1, 201)]


@pytest.mark.parametrize(("mode", "names"), [("160000", 200_001), ("120000", 10_001)])
def test_too_many_submodules_or_links_are_refused_before_they_are_written(tmp_path, roots, mode, names):
    writer = TreeWriter(tmp_path / "tree", "norms")
    for _ in range(names - 1):
        writer.announce(0, link=mode == "120000")
    with pytest.raises(BadInput, match="more than"):
        writer.announce(0, link=mode == "120000")


def test_a_chain_of_links_that_is_too_long_is_left_out(repository, tmp_path):
    for n in range(1_500):
        repository.link(f"l{n:04}", f"l{n + 1:04}")
    sha = repository.commit("Chain", {"l1500": "end"})
    exported = source_of(repository).export(sha, tmp_path / "tree")
    assert "l0000 -> l0001 is part of a loop or of a chain of more than 40 links" in " ".join(exported.notes)
    assert not (tmp_path / "tree/l0000").is_symlink()
    assert (tmp_path / "tree/l1461").is_symlink()
    assert (tmp_path / "tree/l1499").read_text() == "end"


def test_a_loop_of_links_is_left_out(repository, tmp_path):
    repository.link("here", "there")
    repository.link("there", "here")
    repository.link("gone", "missing/../here")
    sha = repository.commit("Loop", {"a": "text"})
    exported = source_of(repository).export(sha, tmp_path / "tree")
    assert len(exported.left_out) == 2
    assert sorted(os.listdir(tmp_path / "tree")) == ["a", "gone"]


def test_a_path_called_git_is_refused(repository, tmp_path):
    blob = repository.git("hash-object", "-w", "--stdin", given="x")
    tree = repository.git("mktree", given=f"100644 blob {blob}\t.GIT\n")
    sha = repository.git("commit-tree", "-m", "forged", tree)
    repository.git("update-ref", "refs/heads/main", sha)
    with pytest.raises((SourceFailed, BadInput), match=r"damaged or forged|invalid path"):
        source_of(repository).export(sha, tmp_path / "tree")


def test_subjects_and_paths_may_hold_anything(repository):
    sha = repository.commit("Bell \x07 and \x01 and naïve ✓", {"a\x01b": "1", "näme\n": "2"})
    found = source_of(repository).describe(sha)
    assert found.subject == "Bell   and   and naïve ✓"
    assert set(found.paths) == {"a\x01b", "näme\n"}


@pytest.mark.parametrize(
    ("location", "error", "reason"),
    [
        ("relative/path", BadInput, "neither an https address nor the full path"),
        ("/etc", Refused, "not under an allowed root"),
        ("/proc/self/root/etc", Refused, "not under an allowed root"),
        ("http://github.com/a/b", Refused, "is not https"),
        ("ssh://git@github.com/a/b", BadInput, "user name or a password"),
        ("ext::sh -c touch% /tmp/pwned", BadInput, "neither"),
        ("ext://github.com/a", Refused, "not https"),
        ("https://user:token@github.com/a/b", BadInput, "user name or a password"),
        ("https://evil.example/a/b", Refused, "evil.example is not an allowed host"),
        ("https://github.com:8443/a/b", Refused, "Port 8443"),
        ("--upload-pack=x", BadInput, "neither"),
        ("https://", BadInput, "not an address"),
    ],
)
def test_a_location_that_may_not_be_used(roots, location, error, reason):
    with pytest.raises(error, match=reason):
        open_source(Target(location))


def test_a_link_out_of_the_allowed_root_is_outside(roots, tmp_path):
    roots.mkdir()
    (tmp_path / "private").mkdir()
    (roots / "shortcut").symlink_to(tmp_path / "private")
    with pytest.raises(Refused, match="not under an allowed root"):
        open_source(Target(str(roots / "shortcut")))


def test_an_allowed_host_at_a_private_address_is_refused(roots, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_ALLOWED_HOSTS", '["localhost"]')
    settings.cache_clear()
    with pytest.raises(Refused, match="private address"):
        open_source(Target("https://localhost/a/b")).refresh()


def test_an_unreachable_remote_may_answer_later(roots, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_PRIVATE_HOSTS", '["127.0.0.1:9"]')
    settings.cache_clear()
    with pytest.raises(SourceFailed, match="cannot be reached") as failed:
        open_source(Target("https://127.0.0.1:9/a/b")).refresh()
    assert failed.value.passing


def test_a_folder_without_a_repository_will_not_answer_later_either(roots):
    (roots / "empty").mkdir(parents=True)
    with pytest.raises(SourceFailed, match="no git repository") as failed:
        open_source(Target(str(roots / "empty"))).refresh()
    assert not failed.value.passing


def test_names_that_are_no_text_are_told_in_words_that_can_be_stored(repository, tmp_path):
    strange = os.fsdecode(b"caf\xe9")
    one = repository.commit("One", {"a": "1"})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{one},{strange}")
    (repository.folder / strange).mkdir()
    repository.link(f"{strange}-link", "/etc/passwd")
    sha = repository.commit("Two", {f"{strange}.bin": "version https://git-lfs.github.com/spec/v1\n"})

    exported = source_of(repository).export(sha, tmp_path / "tree")

    assert [note.encode().decode() for note in exported.notes] == [
        "The submodule caf\ufffd is left empty, because submodules are not fetched.",
        "The symbolic link caf\ufffd-link -> /etc/passwd leads out of the tree and was left out.",
        "1 file is only a Git LFS pointer, as LFS content is not fetched; the first is caf\ufffd.bin.",
    ]


@needs.skip_unless(shutil.which("setpriv"), "setpriv")
def test_git_ends_when_its_worker_is_killed(roots):
    asks = "import subprocess; from service.sources import git; subprocess.run([*git._within(git._ASK), *{}])"
    waits = ["sh", "-c", "echo ready; exec sleep 100"]  # as git does while a remote is slow
    with subprocess.Popen([sys.executable, "-c", asks.format(waits)], stdout=subprocess.PIPE, cwd=ROOT) as worker:
        assert worker.stdout
        assert worker.stdout.readline() == b"ready\n"
        [started] = psutil.Process(worker.pid).children()

        worker.kill()

        started.wait(60)


def pull_of(repository: Repository, number: int, files: dict[str, str]) -> str:
    """The head of a pull request that no branch has."""
    repository.git("checkout", "--quiet", "--detach", "main")
    head = repository.commit(f"pull request {number}", files)
    repository.git("update-ref", f"refs/pull/{number}/head", head)
    repository.git("checkout", "--quiet", "main")
    return head


def test_a_branch_named_like_a_pull_request_is_another_thing(repository):
    repository.commit("One", {"a": "1"})
    head = pull_of(repository, 7, {"a": "2"})
    repository.git("update-ref", "refs/heads/pull/7/head", repository.commit("Impostor", {"a": "3"}))
    repository.git("tag", "pull/7/head")
    assert source_of(repository).resolve("pull/7/head") == head


def test_the_head_of_one_pull_request_does_not_stop_the_others(repository):
    repository.commit("One", {"a": "1"})
    good, late = pull_of(repository, 7, {"a": "2"}), pull_of(repository, 9, {"a": "4"})
    tree = repository.git("mktree", given=f"100644 blob {repository.git('rev-parse', 'main:a')}\t.GIT\n")
    repository.git("update-ref", "refs/pull/8/head", repository.git("commit-tree", "-m", "forged", tree))

    found = source_of(repository).fetch_pulls([7, 8, 9, 10], 60)

    assert (found[7], found[9]) == (good, late)
    assert isinstance(found[8], SourceFailed)
    assert not found[8].passing
    assert "The head of pull request 8 has damaged or forged objects" in str(found[8])
    assert isinstance(found[10], SourceFailed)
    assert found[10].passing
    assert "may not serve it yet" in str(found[10])


def test_a_head_that_brings_too_much_is_refused_and_leaves_nothing(repository, monkeypatch):
    repository.commit("One", {"a": "1", "base": os.urandom(2 * MIB).hex()})
    monkeypatch.setenv("KERNELWATCH_PULL_LIMIT", str(MIB))
    settings.cache_clear()
    source = source_of(repository)
    source.refresh()
    before = source.size()
    pull_of(repository, 7, {"noise": os.urandom(2 * MIB).hex()})
    small = pull_of(repository, 8, {"a": "2"})

    found = source.fetch_pulls([7, 8], 60)

    assert "pull request 7 brings more than 1 MiB of new objects (KERNELWATCH_PULL_LIMIT)" in str(found[7])
    assert found[8] == small
    assert source.size() < before + MIB
    [mirror] = settings().state.glob("mirrors/*.git")
    assert not [*mirror.glob("incoming-*"), *mirror.glob("objects/pack/*tmp*")]


def test_a_mirror_at_its_limit_takes_no_more_and_says_how_to_go_on(repository, monkeypatch):
    repository.commit("One", {"noise": os.urandom(MIB).hex()})
    source = source_of(repository)
    source.refresh()
    pull_of(repository, 7, {"a": "2"})
    for limit, refused in ((source.size() + MIB // 8, False), (source.size() - 1, True)):
        monkeypatch.setenv("KERNELWATCH_MIRROR_LIMIT", str(limit))
        settings.cache_clear()
        assert "KERNELWATCH_MIRROR_LIMIT" in str(source.fetch_pulls([7], 60)[7]), "a quarter is reserved for branches"
        if refused:
            with pytest.raises(SourceFailed, match="raise KERNELWATCH_MIRROR_LIMIT") as failed:
                source.refresh()
            assert failed.value.passing
        else:
            source.refresh()


def test_cleaning_forgets_closed_pull_requests_and_keeps_what_is_needed(repository):
    repository.commit("One", {"a": "1"})
    heads = {number: pull_of(repository, number, {"a": os.urandom(1000).hex()}) for number in (7, 8, 9)}
    source = source_of(repository)
    source.fetch_pulls(heads, 60)
    [mirror] = settings().state.glob("mirrors/*.git")
    (mirror / "objects/pack/tmp_pack_left").write_text("of a fetch that was killed")
    (mirror / "incoming-left").mkdir()

    assert source.clean([7], [heads[9]], thoroughly=True) == source.size()

    assert [source.has(heads[number]) for number in (7, 8, 9)] == [True, False, True]
    assert source.has(source.resolve("main"))
    assert len([*mirror.glob("objects/pack/*.pack")]) == 1
    assert not [*mirror.glob("incoming-*"), *mirror.glob("objects/pack/*tmp*")]
    assert source.resolve("pull/8/head") == heads[8], "it can be fetched again"


def test_the_shared_configuration_is_never_half_written(repository):
    source_of(repository).refresh()
    [kept] = settings().state.glob("mirrors/gitconfig*")
    before = kept.stat().st_ino
    source_of(repository).refresh()
    [kept] = settings().state.glob("mirrors/gitconfig*")
    assert kept.stat().st_ino != before  # another file took its place


def test_a_run_that_is_cancelled_does_not_wait_for_another_process_that_fetches(repository):
    repository.commit("work", {"norms.py": "1"})

    def cancelled() -> None:
        raise LeaseLost(1)

    source = open_source(Target(str(repository.folder)), keep_going=cancelled)
    mirror = git.mirror_of("norms", str(repository.folder))
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with open(mirror.with_suffix(".lock"), "w") as fetching:
        fcntl.flock(fetching, fcntl.LOCK_EX)
        with pytest.raises(LeaseLost):
            source.refresh()
    open_source(Target(str(repository.folder))).refresh()


def test_a_run_that_is_cancelled_does_not_wait_for_a_slow_remote(repository, tmp_path, monkeypatch):
    def cancelled():
        if slow.exists():
            raise LeaseLost("cancelled by the operator")

    slow = tmp_path / "bin" / "git"
    source = open_source(Target(str(repository.folder)), keep_going=cancelled)
    source.refresh()
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o755)
    monkeypatch.setitem(git._ENVIRONMENT, "PATH", f"{slow.parent}:/usr/bin:/bin")
    with pytest.raises(LeaseLost, match="cancelled by the operator"):
        source.refresh()


def test_an_export_that_is_cancelled_closes_its_pipes(repository, tmp_path, monkeypatch):
    def cancelled():
        if asked.exists():
            raise LeaseLost("cancelled by the operator")

    asked = tmp_path / "asked"
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(
        "#!/bin/sh\n"
        f"case \"$*\" in *'cat-file --batch') touch {asked}; exec sleep 100;; esac\n"
        f'exec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(0o755)
    sha = repository.commit("One", {"a": "1"})
    source = open_source(Target(str(repository.folder)), keep_going=cancelled)
    source.refresh()
    monkeypatch.setitem(git._ENVIRONMENT, "PATH", f"{slow.parent}:/usr/bin:/bin")
    gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(LeaseLost, match="cancelled by the operator"):
            source.export(sha, tmp_path / "tree")
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_git_that_takes_too_long_is_ended(repository, monkeypatch):
    source = source_of(repository)
    source.refresh()
    monkeypatch.setattr(git, "_within", lambda _: ("sh", "-c", "exec sleep 100"))
    with pytest.raises(SourceFailed, match=r"git tag on .* took longer than 0 s"):
        source._git("tag", limits=git.GitLimits(0.1, 1 << 30))


def test_a_commit_that_is_asked_for_is_not_missing_where_the_work_was_ended(repository, tmp_path, monkeypatch):
    """A webhook or search whose commit is missing is given up; one that was ended is repeated."""

    def ended():
        if asked.exists():
            raise SourceFailed("ended")

    repository.commit("One", {"a": "1"})
    source = open_source(Target(str(repository.folder)), keep_going=ended)
    source.refresh()
    asked, slow = tmp_path / "asked", tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *{git.KEPT}*) touch {asked}; exec sleep 100;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setitem(git._ENVIRONMENT, "PATH", f"{slow.parent}:/usr/bin:/bin")
    with pytest.raises(SourceFailed, match="ended"):
        source.resolve("f" * 40)


def test_a_git_that_was_killed_while_it_wrote_references_stops_no_later_one(repository):
    repository.commit("One", {"a": "1"})
    source = source_of(repository)
    source.refresh()
    mirror = git.mirror_of("norms", str(repository.folder))
    for left in ("HEAD", "packed-refs", "refs/heads/main", f"{git.ORIGIN_HEAD}"):
        mirror.joinpath(f"{left}.lock").write_bytes(b"")
    sha = repository.commit("Two", {"a": "2"})
    source.refresh()
    assert source.resolve("main") == sha
