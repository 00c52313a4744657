"""The operator's policy: what holds for every target whose recipe says nothing else.

It is one TOML file with the keys of a recipe's `[policy]`, named by KERNELWATCH_POLICY and read once by each process.
"""

from functools import cache
from pathlib import Path

from service.domain.policy.policy import NOTHING, Policy, Written, read
from service.domain.policy.recipes import Recipe
from service.errors import BadInput
from service.settings import settings


def effective(recipe: Recipe, device: str) -> Policy:
    """The effective policy of a target on a device: its recipe over the server's policy over the defaults."""
    return recipe.policy_on(device, server_policy())


def server_policy() -> Written:
    """The operator's policy; empty without a file.  Raises BadInput that names its mistakes."""
    named = settings().policy
    return NOTHING if named is None else _read_once(named)


def policy_file(file: Path) -> Written:
    """The policy in a file.  Raises BadInput when it is not there, or not valid."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The policy {file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return read(text, str(file))


_read_once = cache(policy_file)
