"""What commands print.  Each module is imported when a command uses it, so that `--help` imports no documents."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.commands.views import (  # noqa: F401
        access,
        facts,
        machine,
        policies,
        regressions,
        reports,
        runs,
        studies,
        targets,
        weekly,
    )


def __getattr__(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(name) from None
