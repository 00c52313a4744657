"""The name of the person who gives a command."""

import getpass
import os

from service.domain.access import SERVICE


def this_person() -> str:
    """Return the user of this system, or its number if it has no name, as in a container with any user id.

    In the service's own container the user has the service's name, so a person there is named differently.
    """
    try:
        name = getpass.getuser()
        return f"a person, as {name}" if name == SERVICE.name else name
    except (KeyError, OSError):  # Python 3.13 raises the second
        return f"user {os.getuid()}"
