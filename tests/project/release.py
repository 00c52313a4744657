"""The names of what is released, which documents and examples take from pyproject.toml.

`python -m tests.project.release` writes them where they are mentioned; `--action COMMIT` names the commit whose action
the examples run, `--tag TAG` fails unless TAG is that of the version.  Needs nothing but Python.
"""

import argparse
import hashlib
import re
import sys
import tomllib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "ci" / "kernelwatch.gitlab-ci.yml"
PROJECT = ROOT / "pyproject.toml"


@dataclass(frozen=True)
class Release:
    """What pyproject.toml says: the repository as owner/name, the version, and the commit of the action."""

    name: str
    repository: str
    version: str
    action: str

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def release() -> Release:
    """Read pyproject.toml."""
    values = tomllib.loads(PROJECT.read_text())
    project = values["project"]
    repository = project["urls"]["Source"].removeprefix("https://github.com/")
    return Release(project["name"], repository, project["version"], values["tool"]["kernelwatch"]["action"])


def integrity(template: bytes) -> str:
    """The checksum with which GitLab includes a file of this content."""
    return "sha256-" + b64encode(hashlib.sha256(template).digest()).decode()


def files() -> Iterator[Path]:
    """All that may name what is released."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "action.yml", "docker-compose.yml"))
    for folder, pattern in (("docs", "*.md"), ("deploy", "**/*"), ("ci", "*"), (".github", "**/*.yml")):
        yield from sorted(one for one in (ROOT / folder).glob(pattern) if one.is_file())


def written(text: str, of: Release) -> str:
    """The text with the names of the release, whatever it names now."""
    for pattern, name in _names(of).items():
        text = re.sub(pattern, lambda found, name=name: found[1] + name, text, flags=re.MULTILINE)
    return text


def _names(of: Release) -> Mapping[str, str]:
    """Each name by a pattern: what comes before it as a group, and the present name."""
    repository, ref, version = r"[\w.-]+/kernelwatch\b(?!-)", r"[\w.-]+", r"v[\d.]+\b"
    return {
        rf"(https://github\.com/){repository}(?=[./\s)#])": of.repository,
        rf"(https://raw\.githubusercontent\.com/){repository}/{ref}": f"{of.repository}/{of.tag}",
        rf"(uses: ){repository}@{ref}": f"{of.repository}@{of.action}",
        rf"(repository: ){repository}": of.repository,
        rf"(repository: {re.escape(of.repository)}\b.*\n *ref: ){ref}": of.action,
        rf"(KERNELWATCH_VERSION: ){version}": of.tag,
        rf"(git clone .*--branch ){version}(?= .*/kernelwatch\.git)": of.tag,
        r"(integrity: ).*$": integrity(TEMPLATE.read_bytes()),
        rf"(ghcr\.io/){repository}": of.repository,
        r"(ghcr\.io/)[\w.-]+/kernelwatch-worker\b": f"{of.repository}-worker",
        rf"(ghcr\.io/{re.escape(of.repository)}(?:-worker)?(?:, newTag: |:)){ref}": of.version,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tag")
    options.add_argument("--action")
    given = options.parse_args()
    if given.action is not None:
        text = re.sub(r'^(action = ")\w*', rf"\g<1>{given.action}", PROJECT.read_text(), flags=re.MULTILINE)
        PROJECT.write_text(text)
    of = release()
    if given.tag is not None:
        if given.tag != of.tag:
            sys.exit(f"The tag is {given.tag}, and pyproject.toml has the version {of.version}.")
        if old := [str(one.relative_to(ROOT)) for one in files() if written(one.read_text(), of) != one.read_text()]:
            sys.exit(f"Run `python -m tests.project.release` before the tag: {', '.join(old)}.")
        return
    for one in files():
        text = one.read_text()
        if (new := written(text, of)) != text:
            one.write_text(new)


if __name__ == "__main__":
    main()
