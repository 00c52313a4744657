"""What the ledger needs of a forge, in GitHub's words; and the proof that a forge sent a body."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from service.errors import ServiceError

MAX_BODY = 65_536  # characters of a comment: GitHub's limit; GitLab's is a million
MAX_SUMMARY = 65_535  # bytes of a check's summary, as GitHub counts them (github/docs issue 35252)
PERMISSIONS = ("none", "read", "triage", "write", "maintain", "admin")
SHUT_OUT_S = 600.0  # a person must fix the credentials first
MIN_LIMIT_S = 60.0  # of a rate limit that does not say how long it lasts
MAX_PAUSE_S = 3600.0  # GitHub counts by the hour


class ForgeFailed(ServiceError):
    """The forge refused or failed a request.

    `passing` is true if a retry may succeed.  `pause_s` is above 0 where the forge limits the rate or refuses the
    credentials: until then it refuses every request for `repo`, or for the repositories of `owner`, or for all where
    both are empty.
    """

    status = 502

    def __init__(
        self, message: str, *, code: int = 0, passing: bool, pause_s: float = 0.0, owner: str = "", repo: str = ""
    ) -> None:
        super().__init__(message)
        self.repo = repo
        self.code, self.passing = code, passing
        self.pause_s, self.owner = min(pause_s, MAX_PAUSE_S), owner

    @property
    def outage(self) -> bool:
        """Whether the forge itself failed, or could not be reached."""
        return self.passing and not self.pause_s and (self.code == 0 or self.code >= 500)


@dataclass(frozen=True)
class CheckRun:
    """The status of a commit in GitHub's terms.  Only a completed check has a conclusion.

    `commit_status` is sent instead if checks cannot be written.  `actions` are the buttons of a completed check: at
    most three, each with a label, a description and an identifier.  `annotations` are remarks at lines of the commit's
    files, each with the fields of `github.ANNOTATED`; a commit status has no room for them.
    """

    sha: str
    name: str
    status: str
    conclusion: str | None
    title: str
    summary: str
    url: str | None
    commit_status: str = "pending"  # an outbox row of an earlier version has none
    actions: Sequence[Mapping[str, str]] = ()
    annotations: Sequence[Mapping[str, Any]] = ()
    pull: int | None = None  # the pull request that the commit is the head of
    branch: str | None = None  # the mainline, where it is not the default branch


@dataclass(frozen=True)
class PullHead:
    """A pull request as the forge has it now.  A `fork` is any other repository than that of the pull request."""

    sha: str
    base: str | None  # None where the forge names only the branch
    fork: bool
    open: bool
    author: str
    base_ref: str | None = None
    merged_as: str | None = None  # the commit on the base branch, once it is merged


class Forge(Protocol):
    """A client that writes to a forge.  Its methods raise ForgeFailed."""

    def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
        """Make the one comment that carries `marker` say `body`; returns its id.

        Without a known id, or when that comment is gone, ours is looked for before one is posted: an earlier attempt
        may have posted it without hearing of it.
        """

    def put_check(self, repo: str, check: CheckRun, known_id: str | None = None) -> str:
        """Make a commit's check of that name say this; returns its id."""

    def permission(self, repo: str, login: str, user_id: int) -> str:
        """What somebody may do with a repository: one of PERMISSIONS."""

    def pull(self, repo: str, number: int) -> PullHead:
        """A pull request as it is now."""

    def has_comment(self, repo: str, number: int, comment: int) -> bool:
        """Whether a comment on a pull request is still there."""

    def react(self, repo: str, number: int, comment: int, content: str) -> str:
        """React to a comment (eyes, +1, confused); returns the reaction's id, empty where the comment is gone."""

    def is_self(self, login: str) -> bool:
        """Whether kernelwatch writes under this name."""

    def is_bot(self, user_id: int) -> bool:
        """Whether an account is a program's, where deliveries do not say so."""


def fitting(body: str, limit: str) -> str:
    """A comment without what is beyond MAX_BODY; its end names the `limit`."""
    end = _truncated(limit)
    return body if len(body) <= MAX_BODY else body[: MAX_BODY - len(end)] + end


def fitting_summary(summary: str, limit: str) -> str:
    """A check's summary without what is beyond MAX_SUMMARY; its end names the `limit`."""
    content, end = summary.encode(), _truncated(limit)
    if len(content) <= MAX_SUMMARY:
        return summary
    return content[: MAX_SUMMARY - len(end.encode())].decode(errors="ignore") + end


def _truncated(limit: str) -> str:
    return f"\n\n(truncated at {limit})"


_HEADER = re.compile(r"sha256=([0-9a-f]{64})")


def signature(body: bytes, secret: str) -> str:
    """The value of `X-Hub-Signature-256` for this body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def well_formed(header: str) -> bool:
    """Whether `header` has the form of `X-Hub-Signature-256`."""
    return _HEADER.fullmatch(header) is not None


class Signatures:
    """The signatures of a body that arrives in parts, with each of `secrets` (two while one is being rotated)."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._codes = [hmac.new(secret.encode(), b"", hashlib.sha256) for secret in secrets if secret]

    def update(self, part: bytes) -> None:
        for code in self._codes:
            code.update(part)

    def fit(self, header: str) -> bool:
        """Whether `header` is the signature of the parts so far with one of the secrets; an empty one signs nothing."""
        if not well_formed(header):
            return False
        # Try every secret, so that the time taken does not reveal which one matched.
        fits = [hmac.compare_digest(f"sha256={code.hexdigest()}", header) for code in self._codes]
        return any(fits)


_SIGNING = "whsec_"  # how GitLab's signing tokens begin, and no secret token should
_TOLERANCE_S = 300.0  # of https://www.standardwebhooks.com
_MAX_SIGNATURES = 10


def is_token(given: str, secrets: Sequence[str]) -> bool:
    """Whether `given` is one of the secret tokens.  A signing token is none, because it is never sent."""
    ours = [secret for secret in secrets if secret and not secret.startswith(_SIGNING)]
    fits = [hmac.compare_digest(secret.encode(), given.encode()) for secret in ours]
    return any(fits)


class StandardSignatures:
    """The signatures of a body that arrives in parts, as Standard Webhooks has them, with each of the signing tokens.

    Raises:
        ValueError: A token is not `whsec_` and Base64.
    """

    def __init__(self, secrets: Sequence[str], guid: str, timestamp: str) -> None:
        keys = [_key(secret) for secret in secrets if secret.startswith(_SIGNING)]
        self._timestamp = timestamp
        self._codes = [hmac.new(key, f"{guid}.{timestamp}.".encode(), hashlib.sha256) for key in keys]

    def can_fit(self, header: str, now: float) -> bool:
        """Whether `header` may be a signature of a body: there is a signing token, and the time is near."""
        recent = self._timestamp.isdecimal() and abs(now - int(self._timestamp)) <= _TOLERANCE_S
        return bool(self._codes) and recent and bool(_versions(header))

    def update(self, part: bytes) -> None:
        for code in self._codes:
            code.update(part)

    def fit(self, header: str) -> bool:
        """Whether one of the signatures of `header` is that of the parts so far."""
        ours = [base64.b64encode(code.digest()) for code in self._codes]
        fits = [hmac.compare_digest(own, given.encode()) for own in ours for given in _versions(header)]
        return any(fits)


def _versions(header: str) -> list[str]:
    """The signatures of the version that is known."""
    parts = header.split()[:_MAX_SIGNATURES]
    return [part.removeprefix("v1,") for part in parts if part.startswith("v1,")]


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_SIGNING), validate=True)
    except binascii.Error:
        raise ValueError(f"a signing token is {_SIGNING} and Base64") from None
