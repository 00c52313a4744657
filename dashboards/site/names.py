"""Names of files for names that strangers chose: readable, equal on every system, and each name has its own.  Pure."""

import hashlib
import re

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
_UNSAFE = re.compile(r"[^a-z0-9]+")
_HASHED = re.compile(r".*-[0-9a-f]{12}")
_LONGEST = 100  # characters; systems allow 255 bytes, of which a suffix needs some
# Windows has no files of these names, whatever follows a full stop.
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def file_name(text: str) -> str:
    """The text itself where it is a name on every system, else what is readable of it and a hash of all.

    Capital letters are hashed too: some systems do not tell `Norms` from `norms`.  So is what looks as if it had a
    hash, and so no other text has the name of a hashed one.
    """
    plain = _SAFE.fullmatch(text) and not (text.endswith((".", "-")) or _HASHED.fullmatch(text))
    if plain and not _RESERVED.fullmatch(text) and len(text) <= _LONGEST:
        return text
    readable = _UNSAFE.sub("-", text.lower()).strip("-")[:40].strip("-")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable or 'name'}-{digest}"
