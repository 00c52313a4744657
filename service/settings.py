"""Settings, from KERNELWATCH_* variables, `.env` and files under KERNELWATCH_SECRETS_DIR (Docker secrets)."""

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1 << 20
GIB = 1 << 30
MIN_SECRET = 6  # characters; a shorter one could be any word


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kernelwatch"


def _lock_home() -> Path:
    return Path("/run/lock") if os.access("/run/lock", os.W_OK) else Path(tempfile.gettempdir())


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="KERNELWATCH_", env_file=".env", extra="ignore")

    state: Path = Field(
        default_factory=_state_home, description="Database, mirrors, environments, logs of the embedded size."
    )
    database_url: SecretStr | None = Field(None, description="SQLAlchemy URL; by default SQLite in the state folder.")
    database_password: SecretStr | None = Field(None, description="Put into database_url when that has none.")
    broker_url: SecretStr | None = Field(None, description="Celery broker; without one the workers only use a timer.")
    host: str = "127.0.0.1"
    port: int = 8712
    requests_limit: int = Field(
        32, gt=0, description="Requests for pages and API in progress at once; more wait for a second, then get 503."
    )
    facts: bool = Field(True, description="Compile every pushed revision for the recipe's GPUs, without a GPU.")
    public_url: str | None = Field(None, description="How people reach the dashboard; used in comments.")

    policy: Path | None = Field(None, description="A TOML file: the policy where a recipe says nothing else.")
    device: str | None = Field(None, description="Device of this machine's worker; by default it is asked.")
    locks: Path = Field(
        default_factory=_lock_home, description="Where workers lock their device; the same for all on a machine."
    )
    lease_s: float = Field(60, gt=0, description="A run not renewed for this long goes back to the queue.")
    look_every_s: float = Field(2, gt=0, description="How often a worker looks at the ledger without being woken.")
    poll_every_s: float = Field(60, gt=0, description="How often a target's remote is asked for new revisions.")
    session_limit_s: float = Field(1800, gt=0, description="Wall clock of one run's arena session.")
    turn_limit_s: float = Field(60, gt=0, description="Longest that one turn of a contender may take.")
    build_limit_s: float = Field(600, gt=0)
    build_disk: int = Field(2 * GIB, gt=0, description="Bytes a build may write.")
    log_limit: int = Field(MIB, gt=0, description="Bytes of a log that are kept.")
    build_logs_days: float = Field(90, gt=0, description="How long the logs of builds are kept.")
    environments_limit: int = Field(20 * GIB, gt=0, description="Bytes of cached environments before the oldest go.")
    body_limit: int = Field(25 * MIB, gt=0, description="Largest webhook body; GitHub sends up to 25 MB.")

    allowed_roots: list[Path] = Field(
        default_factory=list, description="Folders under which local repositories and wheels may lie."
    )
    allowed_hosts: list[str] = Field(
        default_factory=lambda: ["github.com", "gitlab.com"], description="Hosts that may be cloned from."
    )
    private_hosts: list[str] = Field(
        default_factory=list, description="Hosts (or host:port) at private addresses; http is allowed there."
    )
    tree_limit: int = Field(8 * GIB, gt=0, description="Bytes of the largest tree that is exported.")

    webhook_secret: SecretStr | None = None
    webhook_secret_old: SecretStr | None = Field(None, description="Still accepted while the secret is being rotated.")
    github_api: str = "https://api.github.com"
    github_token: SecretStr | None = None
    github_app_id: str | None = None
    github_app_key: SecretStr | None = None
    write_pause_s: float = Field(1, ge=0, description="Between two writes to the forge; GitHub asks for a second.")

    @field_validator("state", "locks", "policy")
    @classmethod
    def _from_anywhere(cls, named: Path | None) -> Path | None:
        """Processes with other working folders must mean the same one."""
        return named and named.expanduser().absolute()

    @property
    def database(self) -> str:
        """The SQLAlchemy URL to open."""
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
        """Where local repositories and wheels may lie: the demo's own folder, and what the operator allowed."""
        return [self.state / "demo", *self.allowed_roots]

    @property
    def address(self) -> str:
        """Where people find the dashboard, without a trailing slash."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")


@cache
def settings() -> Settings:
    """The settings of this process, read once."""
    secrets = os.environ.get("KERNELWATCH_SECRETS_DIR")
    arguments: dict[str, Any] = {"_secrets_dir": secrets} if secrets else {}
    return Settings(**arguments)


def without_secrets(text: str) -> str:
    """Text in which no secret of the settings is left, for logs that others read."""
    for name in Settings.model_fields:
        value = getattr(settings(), name)
        if isinstance(value, SecretStr):
            for line in value.get_secret_value().splitlines():
                if len(line) >= MIN_SECRET:
                    text = text.replace(line, "[secret]")
    return text
