"""A recipe file with the adapters in its folder."""

from pathlib import Path

from service.errors import BadInput


def read_recipe(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of a recipe and its adapters by file name."""
    from service.domain.policy import recipes

    try:
        text = path.read_text()
        return text, {name: (path.parent / name).read_text() for name in recipes.parse(text).adapters}
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}.") from None
