"""Which distributions of two stacks form a component, and which components can be swapped."""

import pytest

from service.domain.isolation.components import Component, DistributionChange, Installed, components, unintended


def stack(*listed: str, obstacle: str | None = None) -> dict[str, Installed]:
    """`torch==2.13 needs cuda-toolkit` is a distribution with its version and requirements."""
    found = {}
    for text in listed:
        name, _, rest = text.partition("==")
        version, _, needs = rest.partition(" needs ")
        found[name] = Installed(name, version, f"{name}-{version}", tuple(needs.split()), obstacle)
    return found


COMMON = ("numpy==2.4", "pip==26.0")
OLD = stack(*COMMON, "torch==2.12 needs cuda-toolkit numpy", "cuda-toolkit==12.9 needs nvidia-cublas", "triton==3.6")
OLD |= stack("nvidia-cublas==12.9", "nvidia-cutlass-dsl==4.2", "liger-kernel==0.6")
NEW = stack("numpy==2.4", "pip==26.1", "torch==2.13 needs cuda-toolkit", "cuda-toolkit==13.0 needs nvidia-cublas")
NEW |= stack("nvidia-cublas==13.0", "triton==3.7", "nvidia-cutlass-dsl==4.2", "liger-kernel==0.6", "einops==0.8")


def test_components_are_groups_of_distributions_that_differ() -> None:
    assert [(one.name, one.members) for one in components(OLD, NEW)] == [
        ("triton", ("triton",)),
        ("torch", ("torch", "cuda-toolkit", "nvidia-cublas")),
        ("others", ("einops",)),
    ]


def test_the_wheels_that_torch_requires_are_swapped_with_it_also_if_they_are_the_same() -> None:
    new = {**OLD, **stack("torch==2.13 needs cuda-toolkit")}
    [torch] = components(OLD, new)
    assert torch.members == ("torch", "cuda-toolkit", "nvidia-cublas"), "its libraries find them next to it"
    assert torch.changes == (DistributionChange("torch", "2.12", "2.13"),)


def test_the_same_version_with_other_files_differs() -> None:
    [found] = components(stack("triton==3.6"), {"triton": Installed("triton", "3.6", "built from source")})
    assert found.changes == (DistributionChange("triton", "3.6", "3.6"),)


@pytest.mark.parametrize(
    ("old", "new", "obstacle"),
    [
        (stack("triton==3.6"), {}, "only one of the stacks has triton, and an overlay cannot hide it in the other"),
        (stack("triton==3.6"), stack("triton==3.7", obstacle="it is editable"), "it is editable"),
        (stack("triton==3.6"), stack("triton==3.7"), None),
        (stack("torch==2.12", "torchvision==0.2"), stack("torch==2.13"), None),
    ],
)
def test_what_cannot_be_swapped(old: dict[str, Installed], new: dict[str, Installed], obstacle: str | None) -> None:
    [found] = components(old, new)
    assert found.obstacle == obstacle


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"torch": "2.12", "triton": "3.7"}, ""),
        ({"torch": "2.12", "triton": "3.6"}, "it runs triton 3.6 instead of 3.7"),
        ({"torch": "2.13", "triton": "3.7"}, "it runs torch 2.13 instead of 2.12"),
        ({"triton": "3.7"}, "it runs torch None instead of 2.12"),
    ],
)
def test_a_hybrid_that_runs_something_else(seen: dict[str, str], reason: str) -> None:
    triton = Component("triton", ("triton",), ())
    old, new = {"torch": "2.12", "triton": "3.6"}, {"torch": "2.13", "triton": "3.7"}
    assert unintended(triton, old, new, seen) == reason
