"""Logging: one line per event on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def only_warnings() -> Iterator[None]:
    """Leave out, in the block, what is only of interest to operators."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


def set_up_logging() -> None:
    """Log with colours to a terminal, and as JSON lines elsewhere."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # the stderr of the moment: tests replace it
    )
