"""Recipes: what may be written, and what a mistake is answered."""

import pytest

from kernels.cases import Case, Rounding
from service.domain.policy.recipes import parse
from service.errors import BadInput

WHOLE = """\
devices = ["cpu", "h200"]
sota = {default = "quack", cpu = "inductor"}

[base]
stack = "host"

[build]
commands = ["python -m compileall -q norms"]
import_paths = ["src"]

[paths]
matter = ["norms/**", "*.toml"]
ignore = ["norms/docs/**"]

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
rmsnorm.bwd = "norms.backward:rmsnorm"

[providers.norms-compiled]
compile = true
devices = ["cpu"]
layernorm.fwd = "norms:layer_norm"

[suites]
demo = ["rmsnorm.fwd.512x512.fp32", "layernorm.fwd.64x4096.bf16-fp32"]

[suite]
cpu = "demo"

[policy]
smallest_change = 0.02
blocking = true

[policy.devices.cpu]
smallest_change = 0.1
"""


def test_a_whole_recipe():
    recipe = parse(WHOLE)
    assert recipe.providers["norms"].calls == {"rmsnorm.fwd": "norms:rmsnorm", "rmsnorm.bwd": "norms.backward:rmsnorm"}
    assert [str(case) for case in recipe.cases(recipe.suite_on("cpu"))] == list(recipe.suites["demo"])
    assert recipe.suite_on("h200") == "smoke"
    assert (recipe.sota_on("cpu"), recipe.sota_on("h200")) == ("inductor", "quack")
    assert list(recipe.providers_on("h200")) == ["norms"]
    assert recipe.policy_on("cpu").smallest_change == 0.1
    assert recipe.policy_on("cpu").blocking, "a device's policy changes only what it names"
    assert recipe.policy_on("h200").smallest_change == 0.02


def test_of_an_inner_list_of_devices_one_is_enough():
    recipe = parse(WHOLE.replace('["cpu", "h200"]', '["cpu", ["h200", "h100"]]'))
    assert recipe.devices == ("cpu", "h200", "h100"), "each has a suite, providers and a policy"
    assert recipe.places == (("cpu",), ("h200", "h100"))
    assert parse(WHOLE).places == (("cpu",), ("h200",))


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ('["cpu", ["h200", "cpu"]]', "'cpu' is listed twice"),
        ('["cpu", []]', "it is empty"),
        ("[[]]", "devices"),
        ('[["h200", 3]]', "devices"),
    ],
)
def test_mistakes_in_the_devices(devices, said):
    with pytest.raises(BadInput, match=said):
        parse(WHOLE.replace('["cpu", "h200"]', devices))


def test_baselines_beside_sota_are_named_for_all_devices_or_for_each():
    assert parse(WHOLE).rivals_on("cpu") == ()
    everywhere = parse(f'baselines = ["liger", "inductor", "liger"]\npinned = "v1.2"\n{WHOLE}')
    assert everywhere.pinned == "v1.2"
    assert everywhere.rivals_on("h200") == ("liger", "inductor")
    assert everywhere.rivals_on("cpu") == ("liger",), "SOTA is there already"
    each = parse(f'baselines = {{default = ["inductor"], cpu = ["eager"]}}\n{WHOLE}')
    assert (each.rivals_on("cpu"), each.rivals_on("h200")) == (("eager",), ("inductor",))


def test_a_baseline_that_nobody_knows_is_refused():
    with pytest.raises(BadInput, match=r"line 1: .*unknown provider 'quark'; known: eager"):
        parse(f'baselines = ["quark"]\n{WHOLE}')


def test_a_metric_has_limits_of_its_own_on_each_device():
    recipe = parse(f"{WHOLE}metrics = {{memory = 0.002}}\n[policy.metrics]\ncall = 0.04\n")

    def change(device: str, metric: str) -> float:
        return recipe.policy_on(device).at(f"rmsnorm.fwd.512x512.fp32{metric}").smallest_change

    metrics = ("", ".call", ".block", ".compile", ".memory")
    assert [change("cpu", metric) for metric in metrics] == [0.1, 0.1, 0.1, 0.2, 0.002], (
        "a call is no quieter than kernels"
    )
    assert [change("h200", metric) for metric in metrics] == [0.02, 0.04, 0.02, 0.2, 0.01]


@pytest.mark.parametrize(
    ("device", "call", "memory"),
    [
        ("smallest_change = 0.15", (0.15, 0.8), (0.005, 0.5)),
        ("smallest_change = 0.03", (0.04, 0.8), (0.005, 0.5)),
        ("control_limit = 0.4", (0.04, 0.8), (0.005, 0.4)),
        ("smallest_change = 0.15\nmetrics = {call = 0.03}", (0.03, 0.5), (0.005, 0.5)),
        ("blocking = true", (0.04, 0.8), (0.005, 0.5)),
    ],
)
def test_what_a_device_takes_over_is_no_less_than_what_it_names(device, call, memory):
    limits = "call = {smallest_change = 0.04, control_limit = 0.8}\nmemory = 0.005"
    text = WHOLE.replace("smallest_change = 0.1\n", f"{device}\n") + f"[policy.metrics]\n{limits}\n"
    policy = parse(text).policy_on("cpu")
    found = [policy.at(f"rmsnorm.fwd.512x512.fp32.{metric}") for metric in ("call", "memory")]
    assert [(one.smallest_change, one.control_limit) for one in found] == [call, memory]


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        (["norms/rmsnorm.py"], True),
        (["pyproject.toml", "README.md"], True),
        (["README.md"], False),
        (["norms/docs/how.md"], False),
        ([], False),
    ],
)
def test_which_commits_matter(changed, matters):
    assert parse(WHOLE).matters(changed) is matters


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ('devices = ["cpu", "h200"]', "devices = []", "line 1: devices: Tuple should have at least 1 item"),
        (
            '"norms:rmsnorm"',
            '"norms.rmsnorm"',
            "line 15: providers.norms: rmsnorm.fwd = 'norms.rmsnorm' is not of the form module:function",
        ),
        ("rmsnorm.bwd", "rmsnorm_fp8.bwd", "'rmsnorm_fp8.bwd': rmsnorm_fp8 has no bwd; directions: fwd"),
        ("rmsnorm.bwd", "rmsnorm.backward", "line 15: providers.norms: 'rmsnorm.backward' is not op.direction"),
        (
            "layernorm.fwd =",
            "batchnorm.fwd =",
            "line 19: providers.norms-compiled: 'batchnorm.fwd' is not op.direction; known ops",
        ),
        ("512x512", "512", "line 24: suites: 'rmsnorm.fwd.512.fp32' is not a case"),
        (
            "layernorm.fwd.64x4096.bf16-fp32",
            "rmsnorm.fwd.512x512.fp32",
            "line 24: suites: demo lists a case twice, as 'rmsnorm.fwd.512x512.fp32' and as 'rmsnorm.fwd.512x512.fp32'",
        ),
        (
            "layernorm.fwd.64x4096.bf16-fp32",
            "rmsnorm.fwd.512x512.fp32-fp32",
            "as 'rmsnorm.fwd.512x512.fp32' and as 'rmsnorm.fwd.512x512.fp32-fp32'; remove one",
        ),
        ('cpu = "demo"', 'cpu = "dmeo"', "suite: there is no suite 'dmeo'; known: demo"),
        ('default = "quack"', 'default = "quark"', "sota: unknown provider 'quark'; known: eager"),
        ("blocking = true", "bloking = true", "bloking: there is no such key; did you mean blocking?"),
        ("smallest_change = 0.02", "smallest_change = 2", "Input should be less than 1"),
        (
            "blocking = true",
            "metrics.kall = 0.04",
            "metrics: unknown metric 'kall'; known: call, block, compile, memory",
        ),
        ("blocking = true", "metrics.kernel = 0.04", "metrics: the kernel metric has no table of its own"),
        (
            "blocking = true",
            "metrics.call = 4",
            "line 32: policy.metrics: the smallest change of call is relative: less than 1",
        ),
        ("blocking = true", "metrics.kernels = 0.02", "policy.metrics: kernels is a count: write the smallest change"),
        (
            "blocking = true",
            "metrics.breaks = {smallest_change = 1, control_limit = 0.5}",
            "policy.metrics: breaks is a count, and counts have no control_limit",
        ),
        ('["src"]', '["../src"]', "line 9: build.import_paths: '../src' must be a folder inside the repository"),
        (
            "blocking = true",
            '[policy.cases."rmsnorm.fwd.512*"]\nsmallest_change = 7',
            "line 33: policy.cases.rmsnorm.fwd.512*.smallest_change: Input should be less than 1",
        ),
        (
            "blocking = true",
            '[policy.cases."rmsnrom.fwd.512*"]\nquarantine = "its rows lie badly"',
            "line 32: policy.cases.rmsnrom.fwd.512*: no case of the recipe's suites fits it; "
            "the nearest is rmsnorm.fwd.512x512.fp32",
        ),
        (
            "[policy.devices.cpu]",
            '[policy.devices.cpu.cases."*.bf16"]\nsmallest_change = 0.05\n[policy.devices.cpu]',
            "line 34: policy.devices.cpu.cases.*.bf16: no case",
        ),
        (
            "blocking = true",
            'cases = {"*" = {quarantine = ""}}',
            "line 32: policy.cases.*.quarantine: String should have at least 3 characters",
        ),
        ("blocking = true", "calibrate.every_h = -1", "line 32: policy.calibrate.every_h: Input should be"),
        ("blocking = true", "screening = [5, 3]", "policy: screening must be increasing numbers from 2 to 32"),
        ("[base]", "[base", "The recipe is not TOML"),
        (
            "[policy.devices.cpu]\nsmallest_change = 0.1",
            "[policy.devices]\ncpu = 3",
            "line 35: policy.devices.cpu: it must be a table, not 3",
        ),
        (
            "[policy.devices.cpu]\nsmallest_change = 0.1",
            "devices = 'cpu'",
            "line 34: policy.devices: it must be a table, not 'cpu'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(written, instead, said):
    assert written in WHOLE
    with pytest.raises(BadInput) as caught:
        parse(WHOLE.replace(written, instead, 1))
    assert said in str(caught.value)


# -- torch.compile, and built-in providers of the revision -----------------------------------------------------------

ONE = 'devices = ["cpu"]\n[providers.own]\n'
OWN_CALL = 'rmsnorm.fwd = "norms:rmsnorm"\n'


@pytest.mark.parametrize(
    ("written", "mode", "options"),
    [
        ("compile = true", "default", {}),
        ("compile = {}", "default", {}),
        ('compile = {mode = "automatic-dynamic"}', "automatic-dynamic", {}),
        (
            "compile = {options = {triton.persistent_reductions = false, max_fusion_size = 8}}",
            "default",
            {"triton.persistent_reductions": False, "max_fusion_size": 8},
        ),
        (
            'compile.mode = "regional"\ncompile.options."cpp.min_chunk_size" = 512',
            "regional",
            {"cpp.min_chunk_size": 512},
        ),
    ],
)
def test_a_provider_is_compiled_in_a_mode_with_options(written, mode, options):
    compiled = parse(f"{ONE}{OWN_CALL}{written}\n").providers["own"].compile
    assert compiled is not None
    assert (compiled.mode, compiled.options) == (mode, options)
    assert {name: type(value) for name, value in compiled.options.items()} == {
        name: type(value) for name, value in options.items()
    }, "a flag stays a flag: Inductor refuses 0 instead of false"


def test_a_provider_is_not_compiled_unless_its_recipe_says_so():
    for written in ("", "compile = false\n"):
        assert parse(f"{ONE}{OWN_CALL}{written}").providers["own"].compile is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('compile = {mode = "fast"}', r"line 4: providers\.own\.compile\.mode: .*'max-autotune'"),
        ('compile = {modes = "default"}', r"line 4: .*there is no such key; did you mean mode\?"),
        ('compile = "max-autotune"', r"line 4: .*it must be true, false, or a table like \{mode = "),
        ("compile = {options = {triton = [1]}}", r"line 4: .*triton must be a string, a number, true or false"),
        (
            f"compile = {{options = {{{'.'.join(['a'] * 3000)} = 1}}}}",
            r"line 4: .*is nested too deep for an option of Inductor",
        ),
        ('compile = {options = {"triton persistent" = 1}}', r"line 4: .*is no option of Inductor; write, for example"),
        ("compile = {options = true}", r"line 4: .*options: it must be a table, not True"),
        ('builtin = "inductor"', r"line 2: .*remove it or rmsnorm\.fwd"),
    ],
)
def test_a_mistake_in_the_mode_is_answered_with_what_may_be_written(written, said):
    with pytest.raises(BadInput, match=said):
        parse(f"{ONE}{OWN_CALL}{written}\n")


def test_a_built_in_provider_runs_in_the_revisions_environment():
    provider = parse(f'{ONE}builtin = "inductor-dynamic"\n').providers["own"]
    assert (provider.builtin, provider.calls) == ("inductor-dynamic", {})
    assert provider.offers(Case.parse("layernorm.bwd.8x8.fp32"))
    assert not parse(f"{ONE}{OWN_CALL}").providers["own"].offers(Case.parse("layernorm.bwd.8x8.fp32"))


def test_a_provider_rounds_once_and_leaves_its_inputs_alone_unless_its_recipe_says_so():
    usual = parse(f"{ONE}{OWN_CALL}").providers["own"]
    other = parse(f'{ONE}{OWN_CALL}rounding = "before-weight"\ninplace = true\n').providers["own"]

    assert (usual.rounding, usual.inplace) == (Rounding.AFTER_WEIGHT, False)
    assert (other.rounding, other.inplace) == (Rounding.BEFORE_WEIGHT, True)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('builtin = "indukt"', r"line 3: .*there is no built-in provider 'indukt'; known: eager, inductor"),
        ('builtin = "inductor"\ncompile = true', r'a built-in provider compiles as its name says, .* "inductor-max-au'),
        ('builtin = "liger"\nrounding = "before-weight"', "rounding is for functions of the target"),
        ('builtin = "liger"\ninplace = true', "inplace is for functions of the target"),
        ('inplace = true\nrmsnorm.fwdbwd = "norms:f"', r"autograd needs the inputs of rmsnorm\.fwdbwd"),
        ('rounding = "never"\nrmsnorm.fwd = "norms:f"', r"rounding: .*'after-weight' or 'before-weight'"),
        ('devices = ["cpu"]', r'needs at least one op\.direction = "module:function", or builtin = "NAME"'),
    ],
)
def test_a_mistake_in_a_built_in_provider_is_answered_with_what_to_write(written, said):
    with pytest.raises(BadInput, match=said):
        parse(f"{ONE}{written}\n")


FUNCTION = """\
devices = ["cpu"]

[[function]]
name = "softmax"
call = "kernels:softmax"
sizes = ["M"]
inputs = {x = {shape = ["M"], dtype = "bf16"}}
cases = ["8"]
"""


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (FUNCTION.replace('"8"', '"8", "8"'), "softmax: cases: 'softmax/8' is listed twice; remove one"),
        (FUNCTION + 'provider = "A B"', "provider = 'A B': names are lower-case letters, digits, - and _, at most 40"),
        (FUNCTION + f'provider = "{"a" * 41}"', "names are lower-case letters, digits, - and _, at most 40"),
        (FUNCTION + f"error = {'9' * 5000}", "The recipe cannot be read: a number has too many digits"),
        (FUNCTION + f"x = {'[' * 5000}", "The recipe cannot be read: it is nested too deep"),
    ],
)
def test_a_mistake_in_a_function_is_answered_with_what_to_write(text, mistake):
    assert parse(FUNCTION).providers["functions"].functions

    with pytest.raises(BadInput) as refused:
        parse(text)

    assert mistake in str(refused.value)
