"""Who gives a command."""

import getpass
import os

from service.domain.regressions.lifecycle import KERNELWATCH


def this_person() -> str:
    """The user of this system; the number of one that has no name here, as in a container that runs as any user.

    What a person in the service's own container does is not what the service did by itself, whose user has its name.
    """
    try:
        name = getpass.getuser()
        return f"a person, as {name}" if name == KERNELWATCH else name
    except (KeyError, OSError):  # Python 3.13 raises the second
        return f"user {os.getuid()}"
