"""What a contender of each provider of a recipe is told to run, as it travels in its start message."""

import json

from kernels.arena import protocol
from kernels.cases import Rounding
from service.domain.policy import recipes
from workers.machine.definitions import spec_of

RECIPE = """
devices = ["cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[providers.compiled]
compile = true
rmsnorm.fwd = "norms:rmsnorm"
[providers.tuned]
compile = {mode = "max-autotune", options = {triton.persistent_reductions = false}}
rmsnorm.fwd = "norms:rmsnorm"
[providers.llama]
rounding = "before-weight"
inplace = true
rmsnorm.fwd = "norms:rmsnorm"
[providers.release]
builtin = "inductor-dynamic"
"""
CALLS = {"rmsnorm.fwd": "norms:rmsnorm"}


def test_each_provider_of_a_recipe_is_told_in_json() -> None:
    found = {name: spec_of(name, one) for name, one in recipes.parse(RECIPE).providers.items()}

    assert json.loads(json.dumps(found)) == found
    assert found["norms"] == protocol.targets_own("norms", CALLS)
    assert found["compiled"] == protocol.targets_own("compiled", CALLS, compile=protocol.DEFAULT_COMPILE)
    assert found["llama"] == protocol.targets_own("llama", CALLS, rounding=Rounding.BEFORE_WEIGHT, inplace=True)
    options = {"triton.persistent_reductions": False}
    assert found["tuned"]["compile"] == {"mode": "max-autotune", "options": options}
    assert found["release"] == protocol.of_revision("release", "inductor-dynamic")
    assert found["release"]["of_revision"]
