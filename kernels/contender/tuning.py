"""Observe autotuners: a preparation that times candidates needs the device for itself.

Triton's autotuner times its configurations at the first call in a process, Inductor's at the first call of a kernel
that is not in its cache.  While other contenders use the device, such times are noise, and so is the choice.  A
preparation that is about to time candidates then is aborted, and repeated when no other contender runs.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..arena.protocol import SEVERAL

_TRITON = "triton.runtime.autotuner", "Autotuner"
_INDUCTOR = "torch._inductor.runtime.triton_heuristics", "CachingAutotuner"


class Choices:
    """What Triton's autotuners chose in this process, apart for each case.

    An autotuner whose key leaves out a size would give every later case the choice of the first: the same code took
    152, 167 or 3,179 us by the order of the cases.
    """

    def __init__(self) -> None:
        self._caches: WeakKeyDictionary[Any, dict[str, dict[Any, Any]]] = WeakKeyDictionary()  # by tuner and case
        self._stores: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by tuner, the cache that it was made with

    def enter(self, tuner: Any, case: str, reuse: Mapping[str, str]) -> bool:
        """Let the tuner use the configuration in `reuse`, else what it chose at this case, which at first is nothing.

        A subclass that keeps its choices elsewhere than in a dictionary keeps its store.  Returns whether it reuses.
        """
        store = self._stores.setdefault(tuner, tuner.cache)
        wanted = reuse.get(tuner.base_fn.__name__)
        named = [one for one in tuner.configs if configuration(one) == wanted] if wanted else []
        if len(named) == 1:
            tuner.cache = _OneChoice(named[0])
        elif isinstance(store, dict):
            tuner.cache = self._caches.setdefault(tuner, {}).setdefault(case, {})
        else:
            tuner.cache = store
        return len(named) == 1

    def elsewhere(self, tuner: Any, case: str) -> tuple[str, Any] | None:
        """A case at which it chose another configuration by the same key, and that configuration."""
        caches = self._caches.get(tuner, {})
        for key, chosen in caches.get(case, {}).items():
            for other, cache in caches.items():
                if key in cache and configuration(cache[key]) != configuration(chosen):
                    return other, cache[key]
        return None


class _OneChoice(dict[Any, Any]):
    """The cache of a tuner with one configuration for every key."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: object) -> Any:
        return self._config


class NeedsDevice(BaseException):
    """Candidates are about to be timed while others use the device.  Passes `except Exception` in a target."""


@dataclass
class Tuning:
    """Activity of the autotuners during one preparation."""

    alone: bool
    case: str
    choices: Choices
    reuse: Mapping[str, str] = field(default_factory=dict)  # by kernel, the configuration to launch without timing
    reused: bool = False  # a kernel was launched so
    refused: bool = False  # candidates were about to be timed, and timing them was refused
    chosen: dict[str, str] = field(
        default_factory=dict
    )  # by kernel, the configuration that an autotuner with several candidates launched
    by_order: dict[str, dict[str, str]] = field(default_factory=dict)  # by kernel, where the same key led to another

    def begin(self) -> None:
        """Raises NeedsDevice unless this process has the device for itself."""
        if not self.alone:
            self.refused = True
            raise NeedsDevice("it times candidates on the device")

    def note(self, tuner: Any) -> None:
        """Record the configuration of a kernel; join several of them where it is called in several ways."""
        if len(tuner.configs) < 2:
            return
        name = str(tuner.base_fn.__name__)
        config = configuration(tuner.best_config)
        if other := self.choices.elsewhere(tuner, self.case):
            self.by_order[name] = {"case": other[0], "here": config, "there": configuration(other[1])}
        known = self.chosen.get(name)
        if known is None:
            self.chosen[name] = config
        elif config not in known.split(SEVERAL):
            self.chosen[name] = f"{known}{SEVERAL}{config}"


def configuration(config: Any) -> str:
    """`BLOCK=1024 num_warps=4 num_stages=2`, of a triton.Config."""
    options = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return " ".join(f"{name}={value}" for name, value in options.items() if value is not None)


@contextmanager
def observe_autotuners(tuning: Tuning, *, on_gpu: bool, compiled: bool) -> Iterator[None]:
    """Observe the autotuners of this process; at each case they start with an empty choice, or with one to reuse.

    Triton is imported for this only `on_gpu`, Inductor only if the provider is `compiled`: importing it takes seconds,
    which Quack does not need.  A target that calls torch.compile itself imports it meanwhile.
    """

    def timing(original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            tuning.begin()
            return original(tuner, *args, **kwargs)

        return observed

    def launching(original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                tuning.reused |= tuning.choices.enter(tuner, tuning.case, tuning.reuse)
            result = original(tuner, *args, **kwargs)
            with suppress(Exception):
                tuning.note(tuner)
            return result

        return observed

    with ExitStack() as patched:
        if on_gpu or "triton" in sys.modules:
            patched.enter_context(_replaced(_TRITON, "_bench", timing))
            patched.enter_context(_replaced(_TRITON, "run", launching))

        def observe_inductor() -> None:
            patched.enter_context(_replaced(_INDUCTOR, "bench", timing))

        if compiled or _INDUCTOR[0] in sys.modules:
            observe_inductor()
        else:
            patched.enter_context(_at_import(_INDUCTOR[0], observe_inductor))
        yield


@contextmanager
def _at_import(module: str, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` as soon as a module has been executed, before its importer gets it."""
    finder = _Finder(module, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _Finder:
    """Finds one module, once, as the other finders of `sys.meta_path` find it."""

    def __init__(self, module: str, act: Callable[[], None]) -> None:
        self._module = module
        self._act = act

    def remove(self) -> None:
        with suppress(ValueError):  # it has found its module, or a target has removed it
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        self.remove()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_act(module: ModuleType) -> None:
            execute(module)
            self._act()

        spec.loader.exec_module = then_act  # type: ignore[method-assign]
        return spec


@contextmanager
def _replaced(place: tuple[str, str], name: str, wrapped: Callable[..., Any]) -> Iterator[None]:
    """Replace a method for all objects of its class, also where a subclass overrides it; nothing if there is none."""
    module, class_name = place
    try:
        kinds: list[Any] = [getattr(importlib.import_module(module), class_name)]
    except Exception:  # no Triton, or one with another structure
        yield
        return
    for kind in kinds:
        kinds += kind.__subclasses__()
    before = {kind: vars(kind)[name] for kind in kinds if name in vars(kind)}
    for kind, method in before.items():
        setattr(kind, name, wrapped(method))
    try:
        yield
    finally:
        for kind, method in before.items():
            setattr(kind, name, method)
