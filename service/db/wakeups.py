"""Wake-ups without content: "queue h200 has work".  A lost one costs seconds: every worker also polls."""

from collections.abc import Callable

import structlog

log = structlog.get_logger()
_sender: Callable[[str], None] | None = None


def send_with(sender: Callable[[str], None] | None) -> None:
    """Name the function that carries wake-ups (a front door does this); None leaves it to the timers."""
    global _sender
    _sender = sender


def send(queue: str) -> None:
    """Wake the workers of `queue`.  Never raises: the row is the truth, the message is a nudge."""
    if _sender is None:
        return
    try:
        _sender(queue)
    except Exception as error:  # a dead broker must not fail what is already committed
        log.warning("wake-up lost", queue=queue, error=str(error))
