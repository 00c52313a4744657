"""States of a measurement and one-line reasons for exceptions.  No torch in here."""

import os
import traceback

MEASURED, INVALID, FAILED, UNSUPPORTED = "measured", "invalid", "failed", "unsupported"
MAX_REASON = 600  # characters of one exception's message

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def format_exception(error: BaseException) -> str:
    """An exception in one line: type, first line of the message, and the last frame outside this package."""
    if isinstance(error, SystemExit):
        text = f"called sys.exit({error.code!r})"
    else:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = ": ".join([type(error).__name__, *lines[:1]])
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<frozen"))]
    place = f" ({os.path.basename(foreign[-1].filename)}:{foreign[-1].lineno})" if foreign else ""
    return f"{text[:MAX_REASON]}{place}"
