"""The specification that a contender gets of a recipe's provider."""

from kernels.arena import protocol
from kernels.arena.protocol import CompileSpec, ProviderSpec
from service.domain.policy.recipes import Provider


def spec_of(name: str, provider: Provider) -> ProviderSpec:
    """The specification of a provider of a recipe, which runs in a revision's environment."""
    if provider.builtin is not None:
        return protocol.of_revision(name, provider.builtin)
    compile: CompileSpec | None = None
    if provider.compile is not None:
        compile = {"mode": provider.compile.mode.value, "options": dict(provider.compile.options)}
    return protocol.targets_own(
        name, provider.calls, compile=compile, rounding=provider.rounding, inplace=provider.inplace
    )
