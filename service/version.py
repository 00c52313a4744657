"""The version of this installation or checkout."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def product_version() -> str:
    """The installed version, or that of a checkout that is not installed."""
    try:
        return version("kernelwatch")
    except PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
        return str(project["version"])
