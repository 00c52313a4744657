"""Did the forge send this body?  HMAC with SHA-256 over the raw bytes; from GitLab a shared token will do as well."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

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
