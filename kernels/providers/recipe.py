"""The target's own functions, as its recipe names them (docs/adapters.md)."""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from ..cases import Case
from ..checks.inputs import Inputs
from ..contender.server import said
from .base import Bind, Broken, Call, Provider, Unsupported, compiled, plainly, warm_compiler


class RecipeProvider(Provider):
    def __init__(self, name: str, calls: Mapping[str, str], compile: bool) -> None:
        self.name, self.compiled = name, compile
        self._calls = calls
        self._modules: dict[str, ModuleType | Broken] = {}

    def warm(self) -> None:
        for call in self._calls.values():
            self._module(call.partition(":")[0])
        if self.compiled:
            warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        return None if case.key in self._calls else f"the recipe names no {case.key} for {self.name}"

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        module, name = self._found(case)
        prepare = getattr(module, f"{name}_prepare", None)
        if callable(prepare):
            if self.compiled:  # each set would be a function of its own, and compiled again until dynamo gives up
                raise Broken(f"{name}_prepare cannot be used with compile = true; call torch.compile in it instead")
            return self._prepared(case, prepare)
        return plainly(self._function(module, name))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        module, name = self._found(case)
        if callable(getattr(module, f"{name}_prepare", None)):
            raise Broken(
                f"{name}_prepare cannot be used for {case.key}, where autograd goes back through the function itself; "
                "name one without a _prepare"
            )
        return self._function(module, name)

    def _found(self, case: Case) -> tuple[ModuleType, str]:
        module_name, _, name = self._calls[case.key].partition(":")
        module = self._module(module_name)
        if isinstance(module, Broken):
            raise module
        return module, name

    def _function(self, module: ModuleType, name: str) -> Callable[..., Any]:
        function = getattr(module, name, None)
        if not callable(function):
            raise Broken(f"{module.__name__} has no function {name}")
        return compiled(function) if self.compiled else function

    def _prepared(self, case: Case, prepare: Callable[[str, dict[str, Any]], Call]) -> Bind:
        def bind(inputs: Inputs) -> Call:
            try:
                call = prepare(str(case), {**inputs.tensors, "eps": inputs.eps})
            except NotImplementedError as refusal:
                raise Unsupported(str(refusal) or f"{self.name} does not do {case}") from None
            if not callable(call):
                raise Broken(f"{self._calls[case.key]}_prepare returned {type(call).__name__} instead of a function")
            return call

        return bind

    def _module(self, name: str) -> ModuleType | Broken:
        """Imported once; a failure is kept until a case asks for it."""
        if name not in self._modules:
            try:
                self._modules[name] = importlib.import_module(name)
            except BaseException as trouble:
                self._modules[name] = Broken(f"cannot import {name}: {said(trouble)}")
        return self._modules[name]
