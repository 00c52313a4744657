"""The functions of a target, as its recipe names them (docs/adapters.md)."""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from ..cases import Case, FunctionCase, Metric, Rounding
from ..checks.inputs import Inputs
from ..errors import format_exception
from ..facts.locations import location
from ..functions import Form, Function
from .base import Bind, Broken, Call, Provider, Unsupported, WithNorm, by_order, warm_compiler
from .captured import watch_timers
from .inplace import in_place
from .modes import Compilation, Mode

NO_FUNCTIONS: Mapping[str, Function] = {}


class RecipeProvider(Provider):
    """The functions as they are, or compiled by torch.compile in a mode."""

    def __init__(
        self,
        name: str,
        calls: Mapping[str, str],
        mode: Mode | None = None,
        rounding: Rounding = Rounding.AFTER_WEIGHT,
        inplace: bool = False,
        functions: Mapping[str, Function] = NO_FUNCTIONS,
    ) -> None:
        self.name = name
        self.rounding = rounding
        self.inplace = inplace
        self.compiled = mode is not None
        self.tunes = mode is not None and mode.tunes
        self._mode = mode
        self._calls = calls
        self._functions = functions
        self._modules: dict[str, ModuleType | Broken] = {}
        self._last: Callable[..., Any] | None = None  # the target's function of the last preparation
        self._compiled: Compilation | None = None  # what torch.compile made of it

    def warm(self) -> None:
        if any(one.form is Form.BENCHMARK for one in self._functions.values()):
            watch_timers()
        places = [one.place for one in self._functions.values() if one.form is not Form.TEST]
        for call in (*self._calls.values(), *places):
            self._module(call.partition(":")[0])
        if self.compiled:
            warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        if case.key not in self._calls:
            return f"the recipe has no function for {case.key} in {self.name}"
        if self.inplace and case.metric is Metric.MEMORY:
            return (
                f"{self.name} overwrites its inputs; memory is counted in addition to inputs, of which it gets copies"
            )
        return self._mode.supports(case) if self._mode else None

    def ready(self, case: Case, device: torch.device) -> Bind:
        bind = self._bind(case, device)
        return in_place(bind) if self.inplace else bind

    def _bind(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        module, name = self._found(case)
        prepare = getattr(module, f"{name}_prepare", None)
        if callable(prepare):
            if self.compiled:  # each set would have its own function, compiled again until dynamo gives up
                raise Broken(f"{name}_prepare cannot be used with `compile`; call torch.compile in it instead")
            self._last = prepare
            return self._prepared(case, prepare)
        return by_order(self._function(case, device, module, name))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        return self.block(case, device, lambda norm: norm)

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """An eager block; with a mode of torch.compile, the whole block is compiled, as in a model."""
        self.refuse(case, device)
        module, name = self._found(case)
        if callable(getattr(module, f"{name}_prepare", None)):
            raise Broken(
                f"{name}_prepare cannot be used for {case.key}, which needs a differentiable function; "
                "name one without a _prepare"
            )
        return self._function(case, device, module, name, with_norm)

    def function(self, case: FunctionCase) -> tuple[Function, tuple[Any, Callable[..., Any] | None]]:
        """A function of the recipe, what is at its place (None of a test), and its reference where that is a call.

        Raises Unsupported or Broken.
        """
        function = self._functions.get(case.key)
        if function is None:
            raise Unsupported(f"the recipe has no function {case.key} in {self.name}")
        if function.form is Form.TEST:
            return function, (None, None)
        self._last = place = self._named(function.place)
        of_call = function.form is Form.CALL and function.reference is not None
        return function, (place, self._named(function.reference) if of_call and function.reference else None)

    def _named(self, place: str) -> Any:
        """What is at `module:name`."""
        module_name, _, name = place.partition(":")
        module = self._module(module_name)
        if isinstance(module, Broken):
            raise module
        if not callable(found := getattr(module, name, None)) and not hasattr(found, "benchmarks"):
            raise Broken(f"{module_name} has no {name} that can be called; correct the recipe or define it")
        return found

    def facts(self) -> dict[str, Any]:
        found = location(self._last)
        of_mode = self._compiled.facts() if self._compiled else {}
        return ({"source": found} if found else {}) | of_mode

    def _found(self, case: Case) -> tuple[ModuleType, str]:
        module_name, _, name = self._calls[case.key].partition(":")
        module = self._module(module_name)
        if isinstance(module, Broken):
            raise module
        return module, name

    def _function(
        self,
        case: Case,
        device: torch.device,
        module: ModuleType,
        name: str,
        with_norm: WithNorm = lambda norm: norm,
    ) -> Callable[..., Any]:
        function = getattr(module, name, None)
        if not callable(function):
            raise Broken(f"{module.__name__} has no function {name}; correct the recipe or define it")
        self._last = function
        if self._mode is None:
            return with_norm(function)
        self._compiled = self._mode.compile(function, case, device, with_norm)
        return self._compiled.call

    def _prepared(self, case: Case, prepare: Callable[[str, dict[str, Any]], Call]) -> Bind:
        def bind(inputs: Inputs) -> Call:
            try:
                call = prepare(str(case), {**inputs.tensors, "eps": inputs.eps})
            except NotImplementedError as error:
                raise Unsupported(str(error) or f"{self.name} does not support {case}") from None
            if not callable(call):
                raise Broken(f"{self._calls[case.key]}_prepare returned {type(call).__name__} instead of a function")
            return call

        return bind

    def _module(self, name: str) -> ModuleType | Broken:
        """Import it once; an error is kept and raised when a case needs the module."""
        if name not in self._modules:
            try:
                self._modules[name] = importlib.import_module(name)
            except BaseException as error:
                self._modules[name] = Broken(f"cannot import {name}: {format_exception(error)}")
        return self._modules[name]
