"""`kernelwatch doctor`: what this machine lacks."""

from service.commands import views
from service.commands.noun import Where, single
from service.commands.output.views import View


def doctor() -> View:
    """Check this machine, and print a fix for what is missing."""
    from service.ops import doctor as checks
    from workers import environments
    from workers.sandbox import sandbox

    stacks = [stack.name for stack in environments.list_stacks()]
    return views.machine.checks(checks.checks(sandbox.self_test, stacks))


app = single(doctor, where=Where.ONLY_HERE)
