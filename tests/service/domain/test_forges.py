"""How a person names a repository, and where its pages are."""

import pytest

from service.domain import forges
from service.domain.states import ForgeKind
from service.errors import BadInput

GITHUB, GITLAB = ForgeKind.GITHUB, ForgeKind.GITLAB
ADDRESSES = {GITHUB: "https://github.com", GITLAB: "https://git.example.org/gitlab"}
ON_GITLAB, ON_GITHUB, LOCAL = "https://git.example.org/gitlab/a/b.git", "https://github.com/a/b", "/srv/norms"


@pytest.mark.parametrize(
    ("written", "location", "expected"),
    [
        ("acme/norms", ON_GITHUB, (GITHUB, "acme/norms")),
        ("acme/norms", LOCAL, (GITHUB, "acme/norms")),
        ("acme/norms", ON_GITLAB, (GITLAB, "acme/norms")),
        ("acme/kernels/norms", ON_GITLAB, (GITLAB, "acme/kernels/norms")),
        ("gitlab:acme/kernels/norms", LOCAL, (GITLAB, "acme/kernels/norms")),
        ("github:acme/norms", ON_GITLAB, (GITHUB, "acme/norms")),
        ("https://git.example.org/gitlab/acme/kernels/norms", LOCAL, (GITLAB, "acme/kernels/norms")),
        ("https://github.com/acme/norms.git", ON_GITLAB, (GITHUB, "acme/norms")),
        ("https://github.com/acme/norms/", LOCAL, (GITHUB, "acme/norms")),
    ],
)
def test_read_repository(written: str, location: str, expected: tuple[ForgeKind, str]) -> None:
    assert forges.read_repository(written, location, ADDRESSES) == expected


@pytest.mark.parametrize(
    ("written", "location", "message"),
    [
        ("norms", LOCAL, "is not owner/name on GitHub"),
        ("acme/kernels/norms", ON_GITHUB, "is not owner/name on GitHub"),
        ("gitlab:norms", LOCAL, "is not group/project on GitLab"),
        ("https://elsewhere.org/acme/norms", LOCAL, "or its address on https://github.com and https://git.example.org"),
        ("acme/../norms?x=1", ON_GITLAB, "is not group/project on GitLab"),
        ("bitbucket:acme/norms", LOCAL, "is not owner/name on GitHub"),
    ],
)
def test_what_is_no_repository_is_refused_with_what_to_write(written: str, location: str, message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        forges.read_repository(written, location, ADDRESSES)


@pytest.mark.parametrize(
    ("kind", "page", "pages"),
    [
        (GITHUB, "https://github.com/acme/norms", ["/commit/b", "/compare/a...b", "/pull/7", "/blob/b/x%20y.py#L3-L5"]),
        (
            GITLAB,
            "https://gitlab.com/acme/k/norms",
            ["/-/commit/b", "/-/compare/a...b", "/-/merge_requests/7", "/-/blob/b/x%20y.py#L3-5"],
        ),
    ],
)
def test_addresses(kind: ForgeKind, page: str, pages: list[str]) -> None:
    made = [
        forges.commit_address(kind, page, "b"),
        forges.compare_address(kind, page, "a", "b"),
        forges.pull_address(kind, page, 7),
        forges.lines_address(kind, page, "b", "x y.py", 3, 5),
    ]
    assert made == [f"{page}{rest}" for rest in pages]
    assert forges.lines_address(kind, page, "b", "x.py", 3, 3).endswith("x.py#L3")


def test_names() -> None:
    assert [forges.pull_name(kind, 7) for kind in (None, GITHUB, GITLAB)] == ["pull request 7"] * 2 + [
        "merge request !7"
    ]
    assert [forges.pull_mark(kind, 7) for kind in (None, GITHUB, GITLAB)] == ["#7", "#7", "!7"]
