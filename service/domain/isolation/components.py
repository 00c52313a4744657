"""The components in which two stacks differ: groups of distributions that are swapped together.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

OTHERS = "others"  # everything that differs and belongs to no named component
TORCH = "torch"
# Patterns of distributions.  The first pattern of a component is its main distribution: without it there is none.
NAMED: Mapping[str, tuple[str, ...]] = {
    "triton": ("triton", "pytorch-triton*"),
    "quack": ("quack-kernels",),
    "cutlass": ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-*", "apache-tvm-ffi", "torch-c-dlpack-ext"),
    "liger": ("liger-kernel",),
    TORCH: ("torch", "torchvision", "torchaudio"),
}
# What torch requires of these is part of its component: its libraries find them by their place next to it.
CUDA_WHEELS = ("nvidia-*", "cuda-*")
NEVER_RUN = ("pip", "uv", "wheel")  # installers differ between stacks, and no contender imports them
# Versions that a contender reports of itself, and the distributions that these are of.
REPORTED: Mapping[str, str] = {
    "torch": "torch",
    "triton": "triton",
    "quack": "quack-kernels",
    "cutlass_dsl": "nvidia-cutlass-dsl",
    "liger": "liger-kernel",
}


@dataclass(frozen=True)
class Installed:
    """A distribution of a stack.  Names are normalised (PEP 503); `content` is a digest of its files."""

    name: str
    version: str
    content: str
    requires: tuple[str, ...] = ()  # names
    obstacle: str | None = None  # why its files cannot be used elsewhere


@dataclass(frozen=True)
class DistributionChange:
    """A distribution that differs; a version is None where a stack does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Component:
    """`members` are all its distributions in either stack; `changes` those that differ, the main one first."""

    name: str
    members: tuple[str, ...]
    changes: tuple[DistributionChange, ...]
    obstacle: str | None = None  # why it cannot be swapped


Stack = Mapping[str, Installed]


def components(before: Stack, after: Stack) -> tuple[Component, ...]:
    """The components that differ, the named ones first."""
    groups = _groups(before, after)
    components = (_component(name, members, before, after) for name, members in groups.items())
    return tuple(component for component in components if component.changes)


def unintended(component: Component, base: Mapping[str, str], donor: Mapping[str, str], seen: Mapping[str, str]) -> str:
    """Which reported version is not the one that a hybrid of `base` and a component of `donor` has to have; or ""."""
    for name, distribution in REPORTED.items():
        source = donor if distribution in component.members else base
        if seen.get(name) != source.get(name):
            return f"it runs {name} {seen.get(name)} instead of {source.get(name)}"
    return ""


def _groups(before: Stack, after: Stack) -> dict[str, list[str]]:
    wheels = {name for stack in (before, after) for name in _required_by_torch(stack)}
    groups: dict[str, list[str]] = {name: [] for name in (*NAMED, OTHERS)}
    for name in sorted({*before, *after} - {*NEVER_RUN}):
        named = (group for group, patterns in NAMED.items() if _fits(name, patterns))
        groups[next(named, TORCH if name in wheels else OTHERS)].append(name)
    return groups


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _required_by_torch(stack: Stack) -> Iterator[str]:
    """The wheels of CUDA that torch requires, also through others of them."""
    waiting, seen = [TORCH], {TORCH}
    while waiting:
        installed = stack.get(waiting.pop())
        for name in installed.requires if installed else ():
            if name in stack and name not in seen and _fits(name, CUDA_WHEELS):
                seen.add(name)
                waiting.append(name)
                yield name


def _component(name: str, members: Sequence[str], before: Stack, after: Stack) -> Component:
    main = NAMED[name][0] if name in NAMED else None
    ordered = sorted(members, key=lambda name: (name != main, name))
    changes = tuple(
        DistributionChange(distribution, old.version if old else None, new.version if new else None)
        for distribution in ordered
        if (old := before.get(distribution)) != (new := after.get(distribution)) and not _same(old, new)
    )
    swapped = [change.name for change in changes] if name == OTHERS else ordered
    return Component(name, tuple(swapped), changes, _obstacle(main, swapped, before, after))


def _same(old: Installed | None, new: Installed | None) -> bool:
    return old is not None and new is not None and (old.version, old.content) == (new.version, new.content)


def _obstacle(main: str | None, members: Sequence[str], before: Stack, after: Stack) -> str | None:
    if main is not None and (main in before) is not (main in after):
        return f"only one of the stacks has {main}, and an overlay cannot hide it in the other"
    obstacles = (installed.obstacle for stack in (before, after) for name in members if (installed := stack.get(name)))
    return next(filter(None, obstacles), None)
