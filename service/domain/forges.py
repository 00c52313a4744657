"""The forges: their names, what they call a pull request, their addresses, and how a person names a repository."""

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from service.domain.states import ForgeKind
from service.errors import BadInput

_PART = r"[A-Za-z0-9_.-]{1,100}"
_PATHS = {
    ForgeKind.GITHUB: re.compile(rf"{_PART}/{_PART}"),
    ForgeKind.GITLAB: re.compile(rf"{_PART}(?:/{_PART}){{1,20}}"),
}
FORMS = {ForgeKind.GITHUB: "owner/name on GitHub", ForgeKind.GITLAB: "group/project on GitLab"}
NAMES = {ForgeKind.GITHUB: "GitHub", ForgeKind.GITLAB: "GitLab"}
Addresses = Mapping[ForgeKind, str]  # where people reach each forge, without a trailing slash


def pull_noun(kind: ForgeKind | None) -> str:
    """`pull request`, or GitLab's word for one."""
    return "merge request" if kind is ForgeKind.GITLAB else "pull request"


def pull_mark(kind: ForgeKind | None, number: int) -> str:
    """`#7`, or `!7` on GitLab, where # is for issues."""
    return f"{'!' if kind is ForgeKind.GITLAB else '#'}{number}"


def pull_name(kind: ForgeKind | None, number: int) -> str:
    """`pull request 7`, or `merge request !7`."""
    return f"merge request !{number}" if kind is ForgeKind.GITLAB else f"pull request {number}"


def commit_address(kind: ForgeKind, repository: str, sha: str) -> str:
    """The page of a commit; `repository` is the address of the repository's own page."""
    return f"{repository}{_under(kind)}/commit/{sha}"


def compare_address(kind: ForgeKind, repository: str, base: str, head: str) -> str:
    """The page that shows what `head` changes since it left `base`."""
    return f"{repository}{_under(kind)}/compare/{base}...{head}"


def lines_address(kind: ForgeKind, repository: str, sha: str, file: str, first: int, last: int) -> str:
    """The page of a file at a commit, at some of its lines."""
    to = "" if first == last else f"-{last}" if kind is ForgeKind.GITLAB else f"-L{last}"
    return f"{repository}{_under(kind)}/blob/{sha}/{quote(file)}#L{first}{to}"


def pull_address(kind: ForgeKind, repository: str, number: int) -> str:
    """The page of a pull request."""
    return f"{repository}{'/-/merge_requests' if kind is ForgeKind.GITLAB else '/pull'}/{number}"


def comment_address(kind: ForgeKind, repository: str, number: int, comment: str) -> str:
    """A comment on a pull request; `comment` is its id at the forge."""
    mark = "note_" if kind is ForgeKind.GITLAB else "issuecomment-"
    return f"{pull_address(kind, repository, number)}#{mark}{comment}"


def _under(kind: ForgeKind) -> str:
    return "/-" if kind is ForgeKind.GITLAB else ""


def read_repository(written: str, location: str, addresses: Addresses) -> tuple[ForgeKind, str]:
    """A repository as a person names it, and its forge: a path, `github:` or `gitlab:` and a path, or its address.

    A path alone is on the forge that the target's `location` is on, and elsewhere on GitHub.

    Raises:
        BadInput: It is none of these.
    """
    prefix, colon, rest = written.partition(":")
    if colon and prefix in {kind.value for kind in ForgeKind}:
        kind, path = ForgeKind(prefix), rest
    elif (kind_and_path := _at_an_address(written, addresses)) is not None:
        kind, path = kind_and_path
    else:
        kind, path = forge_of(location, addresses) or ForgeKind.GITHUB, written
    if not _PATHS[kind].fullmatch(path):
        places = " and ".join(addresses.values())
        raise BadInput(f"{written[:200]!r} is not {FORMS[kind]}. Write that, or its address on {places}.")
    return kind, path


def forge_of(location: str, addresses: Addresses) -> ForgeKind | None:
    """The forge whose host a location is on."""
    host = _host(location)
    return next((kind for kind, address in addresses.items() if host and host == _host(address)), None)


def _at_an_address(written: str, addresses: Addresses) -> tuple[ForgeKind, str] | None:
    for kind, address in addresses.items():
        if written.startswith(f"{address}/"):
            return kind, written.removeprefix(f"{address}/").strip("/").removesuffix(".git")
    return None


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
