"""The servers that this user is logged in to: a private file with their keys."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.errors import BadInput


@dataclass(frozen=True)
class Logins:
    """Keys by server, and the server that commands use."""

    current: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)

    def with_key(self, url: str, key: str) -> "Logins":
        """The same, logged in to this server."""
        return Logins(url, {**self.keys, url: key})

    def without(self, url: str) -> "Logins":
        """The same, logged out of this server."""
        keys = {name: key for name, key in self.keys.items() if name != url}
        return replace(self, current=None if self.current == url else self.current, keys=keys)


def path() -> Path:
    """The file of the logins."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "kernelwatch" / "logins.json"


def read() -> Logins:
    """The logins of this user.  Raises BadInput if the file is not readable."""
    try:
        stored = json.loads(path().read_text())
        return Logins(stored["current"], dict(stored["keys"]))
    except FileNotFoundError:
        return Logins()
    except OSError as error:
        raise BadInput(f"{path()} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path()} is damaged: remove it, and log in again.") from None


def write(logins: Logins) -> None:
    """Replace the file; only its owner may read it."""
    folder = path().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=folder)  # its mode is 0600
    with os.fdopen(descriptor, "w") as file:
        json.dump({"current": logins.current, "keys": dict(logins.keys)}, file, indent=2)
    Path(name).replace(path())
