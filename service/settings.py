"""Settings from KERNELWATCH_* variables, `.env`, and files in KERNELWATCH_SECRETS_DIR (Docker secrets)."""

import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from service.errors import BadInput

MIB = 1 << 20
GIB = 1 << 30
MIN_SECRET = 6  # characters; a shorter one could be an ordinary word


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kernelwatch"


def _lock_home() -> Path:
    return Path("/run/lock") if os.access("/run/lock", os.W_OK) else Path(tempfile.gettempdir())


class ChannelSetting(BaseModel):
    """Where notices are sent: a URL, and the secrets of a signed webhook."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: SecretStr
    secret: SecretStr | None = None
    secret_old: SecretStr | None = None  # signs as well, while the secret is rotated

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, given: Any) -> Any:
        return {"url": given} if isinstance(given, str) else given


class Settings(BaseSettings):
    # Values may be secrets, so errors do not show them.
    model_config = SettingsConfigDict(
        env_prefix="KERNELWATCH_", env_file=".env", extra="ignore", hide_input_in_errors=True
    )

    state: Path = Field(
        default_factory=_state_home, description="Folder of the SQLite database, mirrors, environments and logs."
    )
    database_url: SecretStr | None = Field(None, description="SQLAlchemy URL; by default SQLite in the state folder.")
    database_password: SecretStr | None = Field(None, description="Used in database_url if that has no password.")
    broker_url: SecretStr | None = Field(None, description="Celery broker; without one, workers only use a timer.")
    host: str = "127.0.0.1"
    port: int = 8712
    requests_limit: int = Field(
        32,
        gt=0,
        description="Requests for pages and API in progress at once; others wait for a second, then get 503.",
    )
    streams_limit: int = Field(64, gt=0, description="Clients that follow the progress of runs at once.")
    connections_limit: int = Field(
        512, gt=1, description="Connections to the API at once; at most half of the files a process may open."
    )
    head_limit_s: float = Field(10, gt=0, description="Time in which the head of a request must arrive.")
    body_limit_s: float = Field(15, gt=0, description="How far a body may fall behind `body_rate`.")
    body_rate: int = Field(64 << 10, gt=0, description="Least bytes per second at which a body must arrive.")
    response_limit_s: float = Field(60, gt=0, description="Time in which a response must be made and received.")
    body_limit: int = Field(25 * MIB, gt=0, description="Largest webhook body; GitHub sends up to 25 MB.")
    bodies_limit: int = Field(
        8, gt=0, description="Webhook bodies above 128 KiB received at once; they are kept on disk."
    )
    trusted_hosts: list[str] = Field(default_factory=list, description="Further host names for which the API answers.")
    trusted_proxies: list[IPvAnyNetwork] = Field(
        default_factory=list, description="Addresses or networks of proxies whose X-Forwarded-For is believed."
    )
    cors_origins: list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]] = Field(
        default_factory=list, description="Origins of sites whose scripts may read what is public; `*` for all."
    )
    facts: bool = Field(True, description="Compile every pushed revision for the recipe's GPUs, without a GPU.")
    rate_limit: str = Field(
        "6000/minute", description="Requests to the API for each key, or address without one; empty for no limit."
    )
    public_read: bool = Field(True, description="Readers need no key, except for private targets.")
    sign_in_s: float = Field(7 * 86_400, gt=0, description="Time after which people must sign in again.")
    public_url: str | None = Field(None, description="URL of the dashboard for people; used in comments.")

    policy: Path | None = Field(None, description="A TOML file: the policy for all keys that a recipe does not set.")
    device: str | None = Field(None, description="Device of this machine's worker; detected by default.")
    gpus: str | None = Field(None, description="GPUs that share the worker's runs, like 0-3; by default the first.")
    locks: Path = Field(
        default_factory=_lock_home, description="Folder of device locks; must be the same for all workers of a machine."
    )
    lease_s: float = Field(60, gt=0, description="A run that is not renewed for this long returns to the queue.")
    queue_poll_s: float = Field(2, gt=0, description="Interval at which a worker checks the queue without a wake-up.")
    remote_poll_s: float = Field(60, gt=0, description="Interval at which remotes are polled for new revisions.")
    repositories_at_once: int = Field(
        8, ge=1, le=64, description="Repositories that a control process polls, or processes webhooks of, at once."
    )
    session_limit_s: float = Field(1800, gt=0, description="Wall clock limit of one run's session.")
    turn_limit_s: float = Field(60, gt=0, description="Wall clock limit of one turn of a contender.")
    build_limit_s: float = Field(600, gt=0, description="Wall clock limit of one build.")
    build_disk: int = Field(2 * GIB, gt=0, description="Bytes a build may write.")
    log_limit: int = Field(MIB, gt=0, description="Bytes of a log that are kept.")
    build_logs_days: float = Field(90, gt=0, description="Days for which build logs are kept.")
    code_texts_days: float = Field(365, gt=0, description="Days for which texts of compiled code are kept.")
    samples_days: float = Field(400, gt=0, description="Days for which every sample is kept; medians stay.")
    facts_days: float = Field(400, gt=0, description="Days for which facts of measured code are kept; causes stay.")
    deliveries_days: float = Field(90, gt=0, description="Days for which webhooks and answers to commands are kept.")
    environments_limit: int = Field(20 * GIB, gt=0, description="Bytes of cached environments; the oldest are evicted.")

    allowed_roots: list[Path] = Field(
        default_factory=list, description="Folders below which local repositories and wheels may be."
    )
    allowed_hosts: list[str] = Field(
        default_factory=lambda: ["github.com", "gitlab.com"], description="Hosts that may be cloned from."
    )
    private_hosts: list[str] = Field(
        default_factory=list, description="Hosts (or host:port) at private addresses; http is allowed there."
    )
    pull_limit: int = Field(512 * MIB, gt=0, description="Bytes that the head of a pull request may add to a mirror.")
    mirror_limit: int = Field(
        20 * GIB, gt=0, description="Bytes of a repository's mirror; pull requests may use three quarters of them."
    )
    pulls_days: float = Field(14, gt=0, description="Days for which the head of a closed pull request is kept.")
    tree_limit: int = Field(8 * GIB, gt=0, description="Bytes of the largest tree that is exported.")

    webhook_secret: SecretStr | None = None
    webhook_secret_old: SecretStr | None = Field(None, description="Also accepted, while the secret is rotated.")
    github_api: str = "https://api.github.com"
    github_url: str = Field("https://github.com", description="Where people sign in; of GitHub Enterprise another one.")
    github_client_id: str | None = Field(None, description="OAuth app with which people sign in.")
    github_client_secret: SecretStr | None = None
    gitlab_url: str = Field("https://gitlab.com", description="Address of GitLab; of a self-managed one another.")
    gitlab_token: SecretStr | None = Field(None, description="Writes notes and commit statuses.")
    gitlab_webhook_secret: SecretStr | None = Field(
        None, description="Secret token, or signing token (whsec_…), of GitLab's webhooks."
    )
    gitlab_webhook_secret_old: SecretStr | None = Field(None, description="Also accepted, while it is rotated.")
    oidc_issuer: str | None = Field(None, description="Provider of OpenID Connect with which people sign in.")
    oidc_client_id: str | None = None
    oidc_client_secret: SecretStr | None = None
    oidc_scopes: list[str] = Field(
        default_factory=list, description="Scopes of everybody who signs in with that provider."
    )
    admins: list[str] = Field(default_factory=list, description="Logins of people who may do everything.")
    github_token: SecretStr | None = None
    github_app_id: str | None = None
    github_app_key: SecretStr | None = None
    channels: Annotated[dict[str, ChannelSetting], NoDecode] = Field(
        default_factory=dict, description="Where notices are sent, by name: a URL, or a URL with secrets."
    )
    notices_wait_s: float = Field(300, ge=0, le=86_400, description="Time for which an event waits for others.")
    notices_urgent_wait_s: float = Field(60, ge=0, le=86_400, description="The same for the severity `fail`.")
    notices_per_hour: int = Field(6, gt=0, le=3600, description="Messages of a subscription in an hour.")
    write_pause_s: float = Field(1, ge=0, description="Pause between two writes to a forge, as GitHub asks for.")

    @field_validator("channels", mode="before")
    @classmethod
    def _from_json(cls, written: Any) -> Any:
        """Read the JSON; an empty file has none.  A mistake in it must not show what it holds."""
        if not isinstance(written, str):
            return written
        try:
            return json.loads(written) if written.strip() else {}
        except ValueError:
            raise ValueError('write JSON: {"name": "slack://…"}') from None

    @field_validator("database_url")
    @classmethod
    def _of_a_known_kind(cls, written: SecretStr | None) -> SecretStr | None:
        """Refuse what is no address of SQLite or PostgreSQL, before each command fails on it in another place."""
        if written is None:
            return None
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            kind = make_url(written.get_secret_value()).get_backend_name()
        except (ArgumentError, ValueError):
            kind = None
        if kind not in ("sqlite", "postgresql"):
            raise ValueError("write sqlite:////PATH or postgresql://USER@HOST/DATABASE")
        return written

    @field_validator("state", "locks", "policy")
    @classmethod
    def _from_anywhere(cls, named: Path | None) -> Path | None:
        """Make paths absolute: processes have different working folders."""
        return named and named.expanduser().absolute()

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the database."""
        if self.database_url is None:
            return f"sqlite:///{self.state / 'kernelwatch.db'}"
        url = self.database_url.get_secret_value()
        if self.database_password is None:
            return url
        from sqlalchemy import make_url

        return (
            make_url(url).set(password=self.database_password.get_secret_value()).render_as_string(hide_password=False)
        )

    @property
    def local_roots(self) -> list[Path]:
        """Folders below which local repositories and wheels may be: the demo's and the allowed ones."""
        return [self.state / "demo", *self.allowed_roots]

    @property
    def address(self) -> str:
        """URL of the dashboard without a trailing slash."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")


@cache
def settings() -> Settings:
    """Return the settings of this process, which are read once.  Raises BadInput that names each wrong one."""
    secrets = os.environ.get("KERNELWATCH_SECRETS_DIR")
    if secrets and not Path(secrets).is_dir():
        raise BadInput(f"KERNELWATCH_SECRETS_DIR: {secrets} is not a folder.")
    arguments: dict[str, Any] = {"_secrets_dir": secrets} if secrets else {}
    try:
        return Settings(**arguments)
    except ValidationError as error:
        wrong = [
            f"KERNELWATCH_{_place(one['loc'])}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()
        ]
        raise BadInput(f"Settings are wrong. {'; '.join(wrong)}.") from None
    except SettingsError as error:
        raise BadInput(f"""Settings are wrong: {error}. Write lists as JSON, such as '["/srv"]'.""") from None


def _place(keys: tuple[int | str, ...]) -> str:
    first, *inside = map(str, keys)
    return " → ".join([first.upper(), *inside])


def without_secrets(text: str) -> str:
    """Remove the secrets of the settings from a text, for logs that others read."""
    for secret in _secrets():
        for line in secret.get_secret_value().splitlines():
            if len(line) >= MIN_SECRET:
                text = text.replace(line, "[secret]")
    return text


def _secrets() -> Iterator[SecretStr]:
    for name in Settings.model_fields:
        value = getattr(settings(), name)
        if isinstance(value, SecretStr):
            yield value
    for channel in settings().channels.values():
        yield from (one for one in (channel.url, channel.secret, channel.secret_old) if one is not None)


def make_private(state: Path) -> str | None:
    """Make the state folder and keep other users out of it.  Returns why that failed, and the fix; None if it did not.

    Builds of strangers, the database and mirrors of private repositories are in it.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if state.stat().st_mode & 0o077:
        try:
            state.chmod(0o700)
        except OSError as error:
            why = error.strerror or str(error)
            return f"Other users of this machine may enter {state}: {why}. As its owner, run `chmod 700 {state}`."
    return None
