"""The modes of torch.compile: each compiles a function for a case, of the definition or of a target."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Self, cast

import torch

from ..cases import OPS, Case, CompileMode, Direction, Metric
from ..checks.inputs import make
from .base import Broken, Unsupported, WithNorm, by_order, compiled, forward_backward

TAG = "compile_with_inductor"  # in the metadata of a node: regional Inductor compiles it
MAX_AUTOTUNE = "max-autotune-no-cudagraphs"  # the arena captures CUDA graphs itself
WITHOUT_ROWS = ("weight", "bias", "matrix")  # inputs whose first dimension is not that of the rows
NEAR = 3  # names of options that are suggested

Function = Callable[..., Any]
Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Compilation:
    """A compiled function, and facts about its compilation so far."""

    call: Function
    facts: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Mode:
    """A mode with options: patches of Inductor's configuration by their names in `torch._inductor.config`."""

    name: CompileMode = CompileMode.DEFAULT
    options: Options = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        """The mode of a start message."""
        return cls(CompileMode(spec["mode"]), dict(spec.get("options") or {}))

    @property
    def tunes(self) -> bool:
        """Does a compilation time candidates on the device?"""
        searches = ("max_autotune", "max_autotune_pointwise", "max_autotune_gemm", "coordinate_descent_tuning")
        by_name = self.name in (CompileMode.MAX_AUTOTUNE, CompileMode.COORDINATE_DESCENT)
        return by_name or any(self.options.get(option) for option in searches)

    def supports(self, case: Case) -> str | None:
        """Why it cannot compile for this case; None if it can."""
        if self.name is CompileMode.REGIONAL and find_spec("torch.fx.passes.regional_inductor") is None:
            return f"torch {torch.__version__} has no regional Inductor"
        if self.name not in (CompileMode.DYNAMIC, CompileMode.AUTOMATIC_DYNAMIC):
            return None
        if case.tokens == 1:
            return "torch.compile always compiles a single row with a static shape"
        return "a block is compiled for a static number of tokens" if case.metric is Metric.BLOCK else None

    def compile(
        self, function: Function, case: Case, device: torch.device, around: WithNorm = lambda norm: norm
    ) -> Compilation:
        """Compile a function whose arguments are those of the case, in order; `around` puts it into a larger one.

        Raises Unsupported, and Broken for an option that this torch does not have.
        """
        if reason := self.supports(case):
            raise Unsupported(reason)
        _check(self.options)
        match self.name:
            case CompileMode.REGIONAL:
                return _regional(around(tagged(function, self.options)))
            case CompileMode.DYNAMIC:
                return _dynamic(around(function), case, self.options)
            case CompileMode.AUTOMATIC_DYNAMIC:
                return _automatic_dynamic(around(function), case, device, self.options)
            case _:
                patches = {**_of_mode(self.name), **self.options}
                return Compilation(compiled(around(function), **({"options": patches} if patches else {})))


def tagged(function: Function, options: Options) -> Function:
    """The function, with all its operators tagged for regional Inductor."""
    annotate: Any = importlib.import_module("torch.fx.traceback").annotate

    def region(*arguments: Any, **named: Any) -> Any:
        with annotate({TAG: {"inductor_configs": dict(options)}}):
            return function(*arguments, **named)

    return region


def _of_mode(mode: CompileMode) -> dict[str, Any]:
    match mode:
        case CompileMode.MAX_AUTOTUNE:
            found: Any = importlib.import_module("torch._inductor").list_mode_options(MAX_AUTOTUNE)
            return dict(found)
        case CompileMode.COORDINATE_DESCENT:
            return {"coordinate_descent_tuning": True}
    return {}


def _check(options: Options) -> None:
    """Raises Broken for an option that this torch does not have, or whose value is of another type."""
    if options:
        _check_once(tuple(options.items()))


@cache  # the metric *compile* times what follows; an error is raised again
def _check_once(options: tuple[tuple[str, str | int | float | bool], ...]) -> None:
    known: Any = importlib.import_module("torch._inductor.config").get_config_copy()
    for name, _ in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, NEAR)
            hint = f"did you mean {' or '.join(near)}?" if near else "torch._inductor.config lists those that it has"
            raise Broken(f"torch {torch.__version__} has no Inductor option {name!r}; {hint}")
    patches: Any = dict(options)
    try:
        torch.compile(_same, options=patches)  # compiles at the first call, and checks the types now
    except RuntimeError as error:
        raise Broken(f"torch {torch.__version__} refuses the Inductor options: {error}") from None


def _same(x: Any) -> Any:
    return x


# -- dynamic shapes --------------------------------------------------------------------------------------------------


class Graphs:
    """Inductor as a backend of torch.compile that counts its graphs, and those with dynamic shapes."""

    def __init__(self, options: Options) -> None:
        self.graphs = self.dynamic = 0
        self._options = dict(options)

    def __call__(self, module: Any, example_inputs: list[Any]) -> Function:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        self.dynamic += any(isinstance(example, torch.SymInt) for example in example_inputs)
        run: Any = compile_fx(module, example_inputs, config_patches=self._options or None)
        return cast(Function, run)

    def facts(self) -> dict[str, Any]:
        return {"graphs": self.graphs, "dynamic_graphs": self.dynamic}


def _for_any_rows(function: Function, options: Options) -> Compilation:
    graphs = Graphs(options)
    return Compilation(compiled(function, dynamic=None, backend=graphs), graphs.facts)


def _dynamic(function: Function, case: Case, options: Options) -> Compilation:
    """The rows are marked as dynamic before the first call: one graph for any number of rows."""
    made = _for_any_rows(function, options)
    unmarked = [True]

    def call(*arguments: Any) -> Any:
        if unmarked:  # later arguments use the same graph without a mark
            unmarked.clear()
            _mark_rows(case, arguments)
        return made.call(*arguments)

    return replace(made, call=call)


def _automatic_dynamic(function: Function, case: Case, device: torch.device, options: Options) -> Compilation:
    """Like a program with two shapes: the second one is compiled for any number of rows automatically."""
    made, earlier = _for_any_rows(function, options), _earlier(case)
    bind = forward_backward(earlier, made.call) if case.direction is Direction.FWDBWD else by_order(made.call)
    bind(make(earlier, device, seed=0))()
    return made


def _mark_rows(case: Case, arguments: tuple[Any, ...]) -> None:
    names = OPS[case.op].inputs(Direction.BWD if case.direction is Direction.BWD else Direction.FWD)
    for name, argument in zip(names, arguments, strict=False):
        if name not in WITHOUT_ROWS:
            torch._dynamo.mark_dynamic(argument, 0)


def _earlier(case: Case) -> Case:
    """The first shape: another number of rows, but not a single one, which is always static."""
    return case.of_tokens(case.tokens // 2 if case.tokens > 3 else case.tokens + 2)


# -- regions ---------------------------------------------------------------------------------------------------------


def _regional(function: Function) -> Compilation:
    """One graph, of which only tagged operators are compiled; the rest stays eager."""
    with_tag: list[str] = []
    without: list[str] = []

    def facts() -> dict[str, Any]:
        return {"tagged": [*dict.fromkeys(with_tag)], "untagged": [*dict.fromkeys(without)]}

    return Compilation(compiled(function, backend=_regions(with_tag, without), fullgraph=True), facts)


def _regions(with_tag: list[str], without: list[str]) -> Any:
    """A backend of torch.compile that appends the names of tagged and of untagged operators to the lists."""
    from torch._dynamo.backends.common import aot_autograd
    from torch.fx.passes.regional_inductor import regional_inductor

    def compile_regions(module: Any, *example_inputs: Any) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_function" and not str(node.target).startswith("<built-in"):
                names = with_tag if TAG in (node.meta.get("custom") or {}) else without
                names.append(str(node.target))
        return regional_inductor(module, *example_inputs)

    return aot_autograd(fw_compiler=compile_regions, bw_compiler=compile_regions)
