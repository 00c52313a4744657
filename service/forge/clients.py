"""The client of each forge, as the settings describe it."""

from collections.abc import Mapping

from service.domain.states import ForgeKind
from service.forge import github, gitlab
from service.forge.forge import Forge
from service.settings import settings


def connect(kind: ForgeKind) -> Forge:
    """The client of this process for a forge.  Raises ForgeFailed when the settings hold no credentials for it."""
    return gitlab.connect() if kind is ForgeKind.GITLAB else github.connect()


def addresses() -> Mapping[ForgeKind, str]:
    """Where people reach each forge, without a trailing slash.  It is also who vouches for their accounts there."""
    here = settings()
    return {ForgeKind.GITHUB: here.github_url.rstrip("/"), ForgeKind.GITLAB: here.gitlab_url.rstrip("/")}


def repository_page(kind: ForgeKind, path: str) -> str:
    """The address of a repository's own page; `path` is `owner/name`."""
    return f"{addresses()[kind]}/{path}"


def missing(kind: ForgeKind) -> list[str]:
    """The settings without which a forge is not reached, or not heard."""
    here = settings()
    if kind is ForgeKind.GITLAB:
        needed = {
            "KERNELWATCH_GITLAB_TOKEN": here.gitlab_token,
            "KERNELWATCH_GITLAB_WEBHOOK_SECRET": here.gitlab_webhook_secret or here.gitlab_webhook_secret_old,
        }
    else:
        app = here.github_app_key if here.github_app_id else None
        needed = {
            "KERNELWATCH_GITHUB_TOKEN": here.github_token or app,
            "KERNELWATCH_WEBHOOK_SECRET": here.webhook_secret or here.webhook_secret_old,
        }
    return [name for name, value in needed.items() if not value]
