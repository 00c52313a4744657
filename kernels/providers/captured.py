"""What a benchmark of a repository times: the call that it gives to its timer, instead of the time.

`triton.testing.perf_report` decorates a function that gives calls to `do_bench`; an operator of tritonbench has methods
that return them; a test of pytest-benchmark gives them to the fixture `benchmark`.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import format_exception
from ..facts.locations import CHECKOUT
from ..functions import WHOLE, Form, Function, label_of
from .base import Broken, Unsupported

TIMERS = ("do_bench", "do_bench_cudagraph")  # of triton.testing
DEEPEST = 5  # containers and closures in which tensors of a call are looked for
MAX_OUTPUTS = 64
_TUNERS = ("triton.runtime", "torch._inductor")  # whose autotuners time candidates with do_bench


@dataclass(frozen=True)
class Captured:
    """A call without arguments, the tensors that it reads, and those whose gradients it adds to."""

    run: Callable[[], Any]
    tensors: tuple[Tensor, ...]


_Timed = tuple[Callable[[], Any], Sequence[Tensor]]  # a call, and the tensors whose gradients it adds to
_captured_calls: list[_Timed] | None = None  # of the benchmark that runs; None where none does


def watch_timers() -> None:
    """Replace the timers of triton.testing, before a module of the target imports them by name."""
    try:
        testing: Any = importlib.import_module("triton.testing")
    except ImportError:
        return
    for name in TIMERS:
        timer = getattr(testing, name, None)
        if timer is not None and not hasattr(timer, "times"):
            setattr(testing, name, _watched(timer))
    testing.Mark.run = _not_run


def _not_run(*_: Any, **__: Any) -> None:
    """Instead of `Mark.run`: a file may run its benchmarks where it is imported."""


def _watched(timer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(timer)
    def reached(fn: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if _captured_calls is None or caller.startswith(_TUNERS):
            return timer(fn, *arguments, **options)
        given = inspect.signature(timer).bind(fn, *arguments, **options).arguments
        _captured_calls.append((fn, given.get("grad_to_none") or ()))
        times = [1.0] * len(given.get("quantiles") or (1,))  # milliseconds, which nobody reads
        return times if len(times) > 1 or given.get("return_mode") == "all" else times[0]

    reached.times = timer  # type: ignore[attr-defined]
    return reached


def captured_call(function: Function, line: str | None, label: str, place: Any, device: torch.device) -> Captured:
    """The call of a line of a benchmark, or of a test, at the case with this label.

    `place` is the object that the recipe names; of a test it is None.

    Raises: Broken, Unsupported, and what the benchmark raises.
    """
    if function.form is Form.TEST:
        return _of_test(function.place, label)
    if callable(getattr(place, "get_input_iter", None)):
        return _of_operator(function, str(line), label, place, device)
    return _of_report(function, str(line), label, place)


# -- triton.testing.perf_report ---------------------------------------------------------------------------------------


def _of_report(function: Function, line: str, label: str, report: Any) -> Captured:
    """The call of the last timer, whose time is what the benchmark returns: earlier ones may be of other lines."""
    global _captured_calls
    timed, arguments = _arguments(function, line, label, report)
    calls: list[_Timed] = []
    _captured_calls = calls
    try:
        timed(**arguments)
    finally:
        _captured_calls = None
    if calls:
        return _captured(*calls[-1])
    raise Broken(
        f"{function.place} called neither triton.testing.do_bench nor do_bench_cudagraph with {arguments}: what "
        "it times is unknown; name the function with call = …"
    )


def _arguments(function: Function, line: str, label: str, report: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that a report decorates, and its arguments for a line and a label."""
    listed = getattr(report, "benchmarks", None)
    if listed is None or not callable(getattr(report, "fn", None)):
        raise Broken(
            f"{function.place} is neither an object of triton.testing.perf_report nor an operator of tritonbench"
        )
    plots = {str(plot.plot_name): plot for plot in (listed if isinstance(listed, list | tuple) else [listed])}
    if function.plot is None and len(plots) > 1:
        raise Broken(f'{function.place} has several plots; write plot = "NAME" of {", ".join(plots)}')
    plot = plots.get(function.plot) if function.plot is not None else next(iter(plots.values()))
    if plot is None:
        raise Broken(f"{function.place} has no plot {function.plot!r}; it has {', '.join(plots)}")
    lines = {str(value): value for value in plot.line_vals}
    if line not in lines:
        raise Broken(f"{function.place} has no line {line!r}; it has {', '.join(lines)}")
    names = list(plot.x_names)
    values = {label_of(value): value for value in plot.x_vals}
    if label not in values:
        raise Broken(f"{function.place} has no case {label!r}; it has {', '.join(islice(values, 20))}")
    value = values[label]
    numbers = list(value) if isinstance(value, tuple | list) else [value] * len(names)
    return report.fn, {**dict(zip(names, numbers, strict=True)), plot.line_arg: lines[line], **plot.args}


# -- operators of tritonbench -----------------------------------------------------------------------------------------


def _of_operator(function: Function, line: str, label: str, kind: Any, device: torch.device) -> Captured:
    operator = _opened(kind, device)
    method = getattr(operator, line, None)
    if not callable(method):
        raise Broken(f"{function.place} has no method {line}")
    if not label.isdecimal():
        raise Broken(f"{function.name}/{label}: a case of an operator is the number of an input, from 0")
    inputs = next(islice(operator.get_input_iter(), int(label), None), None)
    if inputs is None:
        raise Broken(f"{function.place} has no input {label}")
    call = method(*inputs)
    if not callable(call):
        raise Broken(f"{function.place}.{line} returned {type(call).__name__} instead of a function")
    return _captured(call, (), inputs)


def _opened(kind: Any, device: torch.device) -> Any:
    """An instance of the operator, with the command line of tritonbench at its defaults on this device."""
    try:
        parsing: Any = importlib.import_module("tritonbench.utils.parser")
    except ImportError:
        return kind()
    name = kind.__module__.split(".")[2] if kind.__module__.startswith("tritonbench.operators.") else kind.__name__
    arguments = ["--op", name, "--device", device.type]
    options, extra = parsing.get_parser(arguments).parse_known_args(arguments)
    return kind(tb_args=options, extra_args=extra)


# -- tests of pytest-benchmark ----------------------------------------------------------------------------------------


class _Fixture:
    """What a test gets as `benchmark`: it runs the call once, returns its result, and keeps it."""

    stats = None
    enabled = True

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.group: str | None = None
        self.call: Callable[[], Any] | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.call = functools.partial(function, *arguments, **named)
        return self.call()

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        **_: Any,
    ) -> Any:
        made = setup() if setup is not None else None
        args, kwargs = made if isinstance(made, tuple) else (args, kwargs)
        return self(target, *args, **(kwargs or {}))


class _Plugin:
    """Selects one test of those that pytest collects, and gives it the fixture."""

    def __init__(self, label: str) -> None:
        self.label, self.given = label, _Fixture()
        self.ids: list[str] = []
        self.trouble: str | None = None
        self.skipped: str | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        by_label = {label_of(item.callspec.id) if hasattr(item, "callspec") else WHOLE: item for item in items}
        self.ids = list(by_label)
        items[:] = [by_label[self.label]] if self.label in by_label else []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self.skipped = str(report.longrepr)[-300:]
        elif report.failed:
            self.trouble = str(report.longrepr)[-300:]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.trouble = str(report.longrepr)[-300:]


def _of_test(place: str, label: str) -> Captured:
    try:
        import pytest
    except ImportError:
        raise Unsupported(
            "a test is run by pytest, which this environment does not have; add it to the stack"
        ) from None
    file, _, name = place.partition("::")
    root = Path(os.environ.get(CHECKOUT, "."))

    class Plugin(_Plugin):
        @pytest.fixture
        def benchmark(self) -> _Fixture:
            return self.given

    plugin = Plugin(label)
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:pytest-benchmark", "-o", "addopts=")
    try:
        # Of the folders below the root, pytest reads every conftest.py above the file.
        pytest.main([*options, "--rootdir", str(root), f"{root / file}::{name}"], plugins=[plugin])
    except BaseException as error:
        raise Broken(f"pytest cannot run {place}: {format_exception(error)}") from error
    if plugin.skipped:
        raise Unsupported(f"{place} skips here: {plugin.skipped}")
    if plugin.trouble:
        raise Broken(f"{place} did not pass: {plugin.trouble}")
    if plugin.given.call is None:
        ids = ", ".join(islice(plugin.ids, 20)) or "no test"
        raise Broken(f"{place} has no case {label!r} that calls the fixture `benchmark`; it has {ids}")
    return _captured(plugin.given.call)


# -- tensors ----------------------------------------------------------------------------------------------------------


def _captured(call: Callable[[], Any], cleared: Sequence[Tensor] = (), inputs: Any = None) -> Captured:
    tensors = tuple(_tensors_of((call, inputs)))
    if not cleared:
        return Captured(call, tensors)

    def run() -> Any:
        for tensor in cleared:
            tensor.grad = None
        returned = call()  # nothing, if it is a backward pass: its results are the gradients
        return [tensor.grad for tensor in cleared] if returned is None else returned

    return Captured(run, tensors)


def outputs_of(returned: Any) -> list[Tensor]:
    """The tensors, arrays and numbers that a call returned, in tuples, lists and dictionaries too, as tensors."""
    return list(islice(_outputs_of(returned), MAX_OUTPUTS))


def _outputs_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _outputs_of(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _outputs_of(inner)
    elif isinstance(value, bool | int | float):
        yield torch.tensor(value, dtype=torch.float64)
    elif hasattr(value, "__array__"):
        yield torch.as_tensor(value)


def _tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors that a call holds: in its closure, its arguments, the object that it belongs to; each once."""
    seen: set[int] = set()

    def walk(value: Any, depth: int) -> Iterator[Tensor]:
        if depth > DEEPEST or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, torch.nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                yield from walk(tensor, depth)
        else:
            for inner in _inside(value):
                yield from walk(inner, depth + 1)

    yield from walk(value, 0)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list):
        yield from value
    for cell in getattr(value, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if (owner := getattr(value, "__self__", None)) is not None and not isinstance(owner, type(sys)):
        yield owner
