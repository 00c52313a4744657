"""Distributions as an installer leaves them in a folder: files, metadata, and RECORD with their hashes."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path


def unpacked(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: tuple[str, ...] = (),
    *,
    record: bool = True,
) -> None:
    """Write a distribution into `site`."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    whole = {**files, f"{info}/METADATA": metadata}
    for path, text in whole.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in whole.items()]
    if record:
        (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
