"""Where a function of a target is defined, below whatever wraps it."""

import importlib.util
import sys

import pytest

from kernels.facts import locations
from tests import needs

pytestmark = pytest.mark.filterwarnings("ignore")  # torch compiles
TEXT = """
import functools
import torch


def definition(x):
    return x + 1


def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)
    return call


@decorated
@decorated
def wrapped(x):
    y = x + 1
    return y


compiled = torch.compile(definition)
partial = functools.partial(definition, 1)


class Norm(torch.nn.Module):
    def forward(self, x):
        return x


module = Norm()
compiled_module = torch.compile(module)


@torch.library.custom_op("locations_of_tests::norm", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x


library = torch.nn.functional.layer_norm
builtin = len
exec("def generated(x): return x")
nothing = None
"""
KERNEL = """
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 64})], key=["N"])
@triton.heuristics({"EVEN": lambda given: True})
@triton.jit
def kernel(X, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(X + tl.arange(0, BLOCK), 1.0)
"""
LINES = TEXT.splitlines()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Import a file of a checkout."""
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / "norms").mkdir()

    def one(name, text):
        file = checkout / "norms" / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(locations.CHECKOUT, str(checkout))
        yield one


@pytest.fixture(scope="module")
def target(load):
    return load("located", TEXT)


def place(first, line, last, file="norms/located.py"):
    return {"file": file, "line": line, "first": first, "last": last}


def after(text, lines=0):
    return LINES.index(text) + 1 + lines


@pytest.mark.parametrize(
    ("name", "begins", "decorators", "lines"),
    [
        ("definition", "def definition(x):", 0, 1),
        ("wrapped", "def wrapped(x):", 2, 2),
        ("compiled", "def definition(x):", 0, 1),
        ("partial", "def definition(x):", 0, 1),
        ("Norm", "    def forward(self, x):", 0, 1),
        ("module", "    def forward(self, x):", 0, 1),
        ("compiled_module", "    def forward(self, x):", 0, 1),
        ("operator", "def operator(x: torch.Tensor) -> torch.Tensor:", 1, 1),
        ("Function", "    def forward(context, x):", 1, 1),
    ],
)
def test_a_function_is_where_its_file_defines_it(target, name, begins, decorators, lines):
    line = after(begins)
    assert locations.location(getattr(target, name)) == place(line - decorators, line, line + lines)


@pytest.mark.parametrize("name", ["library", "builtin", "generated", "nothing"])
def test_code_of_no_file_of_the_checkout_has_no_place(target, name):
    assert locations.location(getattr(target, name)) is None


def test_a_kernel_is_where_it_is_defined(load):
    pytest.importorskip("triton", reason=needs.reason("triton"))
    lines = KERNEL.splitlines()
    first, line = lines.index(next(one for one in lines if one.startswith("@"))) + 1, 9
    assert lines[line - 1].startswith("def kernel")
    expected = place(first, line, len(lines), "norms/tuned.py")
    assert locations.location(load("tuned", KERNEL).kernel) == expected


def test_without_a_checkout_nothing_is_located(target, monkeypatch):
    monkeypatch.delenv(locations.CHECKOUT)
    assert locations.location(target.definition) is None
