"""Who gives a command."""

import getpass
import os


def this_person() -> str:
    """The user of this system; the number of one that has no name here, as in a container that runs as any user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the second
        return f"user {os.getuid()}"
