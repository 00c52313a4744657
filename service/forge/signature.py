"""Did the forge sign this body?  HMAC with SHA-256 over the raw bytes, and nothing older."""

import hashlib
import hmac
import re
from collections.abc import Sequence

_HEADER = re.compile(r"sha256=([0-9a-f]{64})")


def signature(body: bytes, secret: str) -> str:
    """The value of `X-Hub-Signature-256` for this body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed(body: bytes, header: str | None, secrets: Sequence[str]) -> bool:
    """Was `body` signed with one of `secrets` (two while one is being rotated)?  An empty one signs nothing."""
    if header is None or not _HEADER.fullmatch(header):
        return False
    # Try every secret, so that the time taken does not reveal which one matched.
    fits = [hmac.compare_digest(signature(body, secret), header) for secret in secrets if secret]
    return any(fits)
