"""Addresses of pages of a forge."""

from urllib.parse import quote

from service.domain.codefacts.source_lines import SourceLines


def lines_of(forge_url: str, sha: str, source: SourceLines) -> str:
    """The lines of a definition in the files of a commit; `forge_url` is the repository's page."""
    first, last = source.shown
    lines = f"L{first}" if first == last else f"L{first}-L{last}"
    return f"{forge_url}/blob/{sha}/{quote(source.file)}#{lines}"
