"""Names of files for names that strangers chose."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dashboards.site.links import file_name

HASHED = "norms-0123456789ab"


@pytest.mark.parametrize(
    "name", ["norms", "team-0-kernels", "rmsnorm.fwd.32768x1024.bf16-fp32", "0.6.1.post2", "h200", "a_b"]
)
def test_usual_names_stay(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("Norms", "norms"),
        ("../../etc/passwd", "etc-passwd"),
        ('evil"><img src=x onerror=alert(1)>', "evil-img-src-x-onerror-alert-1"),
        ("", "name"),
        (".", "name"),
        ("..", "name"),
        (".hidden", "hidden"),
        ("ends.", "ends"),
        ("con", "con"),
        ("nul.html", "nul-html"),
        ("a\0b\nc", "a-b-c"),
        ("日本", "name"),
        ("\ud800", "name"),
        (HASHED, HASHED),
        ("x" * 300, "x" * 40),
    ],
)
def test_other_names_get_a_hash(name: str, readable: str) -> None:
    assert re.fullmatch(rf"{re.escape(readable)}-[0-9a-f]{{12}}", file_name(name))


@given(some.text(), some.text())
def test_no_two_names_have_one_file(one: str, other: str) -> None:
    assert (file_name(one).lower() == file_name(other).lower()) == (one == other)


@given(some.text())
def test_no_name_leaves_its_folder(name: str) -> None:
    found = file_name(name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", found)
    assert len(found) <= 100
    assert file_name(found) == found or re.fullmatch(r".*-[0-9a-f]{12}", found)
