"""Did the forge sign this body?  HMAC with SHA-256 over the raw bytes, and nothing older."""

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
