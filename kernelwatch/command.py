"""The command `kernelwatch` of the wheel; a checkout starts `service.cli` itself."""

from .extras import exit_for


def main() -> None:
    """Run the command.  Without the extra that it needs it says so and exits with 2."""
    try:
        from service.cli import main as run
    except ModuleNotFoundError as missing:
        exit_for(missing)
    run()
