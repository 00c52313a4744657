"""Which tags of a repository are releases, and which is the newest.  Pure: names in, versions out."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from packaging.version import InvalidVersion, Version

# A version has a dot: `docs-2026-11` and `build-1234` are none.  What precedes it says that it is one.
_VERSION = re.compile(r"(?P<before>.*?)(?P<version>\d+(?:\.\d+)+\S*)", re.DOTALL)
_USUAL = re.compile(r"(?:(?:releases?|rel|version|ver)[-/_]?)?v?", re.IGNORECASE)
ANY = "*"


def version_of(tag: str, pattern: str = ANY) -> Version | None:
    """The version that a tag releases; None if it releases none, or a pre-release.

    With another `pattern` than ANY a tag may begin with anything, as long as the whole of it matches.
    """
    match = _VERSION.fullmatch(tag)
    if match is None or not (fnmatchcase(tag, pattern) if pattern != ANY else _USUAL.fullmatch(match["before"])):
        return None
    try:
        version = Version(match["version"])
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


def newest_first(tags: Iterable[str], pattern: str = ANY) -> list[str]:
    """The tags that are releases, the highest version first."""
    versions = {tag: version for tag in tags if (version := version_of(tag, pattern)) is not None}
    return sorted(versions, key=lambda tag: (versions[tag], tag), reverse=True)
