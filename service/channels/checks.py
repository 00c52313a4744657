"""Whether a channel can work as it is set.  Nothing is sent."""

from ipaddress import ip_address

from service.channels import services
from service.channels.channel import MAX_KEY, MIN_KEY, NAME, Channel, key_of
from service.settings import settings


def trouble(channel: Channel) -> str | None:
    """Why the channel cannot work as it is set, and the fix; None if nothing is wrong with it."""
    if not NAME.fullmatch(channel.name):
        return "the name must be of lower case letters, digits and `_.-`, at most 80 of them"
    if channel.is_webhook:
        return _trouble_of_webhook(channel)
    return None if services.understands(channel) else "Apprise does not know such a URL; see https://appriseit.com"


def _trouble_of_webhook(channel: Channel) -> str | None:
    try:
        host, _ = channel.parts.hostname, channel.parts.port
    except ValueError:
        host = None
    if not host:
        return "the URL has no host"
    if channel.service == "http" and not _is_near(channel.parts.netloc.rpartition("@")[2], host):
        return "plain http is for this machine and KERNELWATCH_PRIVATE_HOSTS only; use https"
    if not channel.secrets:
        return 'a webhook needs a secret: {"url": "https://…", "secret": "whsec_…"}'
    if any(key_of(one) is None for one in channel.secrets):
        return f"a secret is whsec_ and {MIN_KEY} to {MAX_KEY} random bytes in base64; see docs/notices.md"
    return None


def _is_near(place: str, host: str) -> bool:
    if {place, host} & {"localhost", *settings().private_hosts}:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
