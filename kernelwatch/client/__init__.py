"""Talk to a kernelwatch server from a program (docs/client.md).

    from kernelwatch.client import Client

    with Client("https://kernelwatch.example.org", key) as client:
        for run in client.targets.runs("norms", device="h200"):
            print(run.id, run.state)

`AsyncClient` has the same resources with awaitable methods.  Errors are subclasses of `KernelwatchError`.
"""

from kernelwatch.documents.base import Page

from . import models
from .clients import AsyncClient, Client
from .drivers import AsyncPages, Pages
from .errors import (
    ApiError,
    BadArgument,
    Conflict,
    Invalid,
    KernelwatchError,
    NotAllowed,
    NotAServer,
    NotFound,
    NoValidKey,
    RateLimited,
    StillRunning,
    TooLarge,
    Unavailable,
    Unreachable,
)
from .exchange import Retries

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncPages",
    "BadArgument",
    "Client",
    "Conflict",
    "Invalid",
    "KernelwatchError",
    "NoValidKey",
    "NotAServer",
    "NotAllowed",
    "NotFound",
    "Page",
    "Pages",
    "RateLimited",
    "Retries",
    "StillRunning",
    "TooLarge",
    "Unavailable",
    "Unreachable",
    "models",
]
