"""Access control for addresses: allow-lists of hosts and folders, and no private addresses behind names."""

import hashlib
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from service.errors import BadInput, Refused, SourceFailed
from service.settings import settings


@dataclass(frozen=True)
class Site:
    """The destination of a permitted URL.  Connect to `address`, because a second look-up may differ."""

    scheme: str
    host: str
    port: int
    address: str | None  # None: a proxy looks the name up


def folder_of(location: str) -> Path | None:
    """The local folder that a location names, checked against the allowed roots; None when it is a URL.

    Raises Refused outside the allowed roots and BadInput when there is no such folder.
    """
    if "://" in location and not location.startswith("file://"):
        return None
    written = Path(location.removeprefix("file://"))
    if not written.is_absolute():
        raise BadInput(f"{location!r} is neither an https address nor the full path of a folder.")
    folder = written.resolve()
    roots = [root.expanduser().resolve() for root in settings().local_roots]
    if not any(folder.is_relative_to(root) for root in roots):
        known = ", ".join(map(str, roots)) or "none"
        raise Refused(f"{written} is not under an allowed root (KERNELWATCH_ALLOWED_ROOTS; now: {known}).")
    if not folder.is_dir():
        raise BadInput(f"There is no folder {written}.")
    return folder


def check_url(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of a URL on an allowed host.  Raises BadInput or Refused; looks nothing up."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError as error:
        raise BadInput(f"{url!r} is not an address: {error}.") from None
    if not host or re.search(r"[\s\\\x00-\x1f]", url):
        raise BadInput(f"{url!r} is not an address.")
    if parts.username is not None or parts.password is not None:
        raise BadInput("Addresses with a user name or a password in them are not accepted.")
    private = _private(host, port)
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise Refused(f"{url} is not https; only https is allowed.")
    if not private and host not in (allowed.lower() for allowed in settings().allowed_hosts):
        known = ", ".join(settings().allowed_hosts) or "none"
        raise Refused(f"{host} is not an allowed host (KERNELWATCH_ALLOWED_HOSTS; now: {known}).")
    if not private and port != 443:
        raise Refused(f"Port {port} of {host} is not allowed; allowed hosts are reached on port 443 only.")
    return parts.scheme, host, port


def site_of(url: str) -> Site:
    """Look the host of a permitted URL up.  Raises Refused when it is a private address, SourceFailed when unknown."""
    scheme, host, port = check_url(url)
    proxied = bool(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        if proxied:
            return Site(scheme, host, port, None)
        raise SourceFailed(f"The host {host} could not be looked up: {error.strerror or error}.") from None
    addresses = sorted({str(entry[4][0]) for entry in found}, key=lambda address: ":" in address)
    if not _private(host, port):
        for address in addresses:
            if not ipaddress.ip_address(address.partition("%")[0]).is_global:
                raise Refused(f"{host} leads to the private address {address}, which is not allowed.")
    return Site(scheme, host, port, None if proxied else addresses[0])


def _private(host: str, port: int) -> bool:
    """Did the operator name this private host?  Then http and its own port are accepted as well."""
    named = [entry.lower() for entry in settings().private_hosts]
    return host in named or f"{host}:{port}" in named


def place(name: str, location: str) -> Path:
    """The folder under the state that holds the mirror of a target; another location is another mirror."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:40] or "target"
    return settings().state / "mirrors" / f"{plain}-{hashlib.sha256(location.encode()).hexdigest()[:10]}"
