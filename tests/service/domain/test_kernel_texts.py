"""Texts of compiled code as they are stored, and which of them are each other's before and after."""

import pytest

from kernels.arena.code import differing, places
from kernels.arena.pool import Contender, ContenderProcess
from kernels.cases import Role
from service.domain.codefacts.texts import MAX_BYTES, packed, paired, plain_case, unpacked


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("add.f32 %f1, %f2;", "add.f32 %f1, %f2;"),
        ("# kernel path: /tmp/torchinductor_root/ab/cab.py\n", "# kernel path: PATH\n"),
        ("/usr/include/cuda.h", "/usr/include/cuda.h"),
        ("mov\x1b[31m.u32\r\n", "mov.u32\n"),
        ("½ \ud800", "½ "),
    ],
)
def test_a_text_is_stored_without_what_differs_from_build_to_build(text: str, stored: str) -> None:
    found = packed(text)
    assert found is not None
    assert unpacked(found.packed) == stored
    assert found.bytes == len(stored.encode())


@pytest.mark.parametrize("text", ["", " \n\t", "x" * (MAX_BYTES + 1)])
def test_nothing_and_too_much_are_not_stored(text: str) -> None:
    assert packed(text) is None


def test_equal_texts_have_one_address() -> None:
    texts = ["mov /tmp/a/b;", "mov /tmp/c/d;", "ret;"]
    assert len({found.sha256 for text in texts if (found := packed(text))}) == 2


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ab", "ab", ["aa", "bb"]),
        ("ab", "ax", ["aa", "bx"]),
        ("abc", "ac", ["aa", "cc", "b-"]),
        ("a", "ba", ["aa", "-b"]),
        ("", "a", ["-a"]),
        ("ab", "xyz", ["ax", "by", "-z"]),
    ],
)
def test_kernels_are_paired_in_order_or_by_name(before: str, after: str, expected: list[str]) -> None:
    pairs = paired(before, after, name=str)
    assert ["".join(one or "-" for one in pair) for pair in pairs] == expected


def test_a_case_of_another_metric_has_the_kernels_of_the_plain_case() -> None:
    plain = "rmsnorm.fwd.4096x1024.bf16"
    assert plain_case(plain) == plain
    assert plain_case(f"{plain}.call") == plain
    assert plain_case("<b>no case") == "<b>no case"


def process(role: Role, provider: str = "norms") -> ContenderProcess:
    return ContenderProcess(Contender(f"{role}:{provider}", role, {"name": provider}, lambda: None))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        ({Role.HEAD: "a", Role.PARENT: "a"}, []),
        ({Role.HEAD: "a", Role.PARENT: "b"}, [Role.HEAD, Role.PARENT]),
        ({Role.HEAD: "a", Role.PARENT: "a", Role.LAST_GOOD: "b"}, [Role.HEAD, Role.LAST_GOOD]),
        ({Role.PARENT: "a", Role.LAST_GOOD: "b"}, []),
    ],
)
def test_code_is_read_where_the_head_differs_from_a_baseline(codes: dict[Role, str], wanted: list[Role]) -> None:
    facts = {process(role): {"code": code, "triton": [{"sass": code}]} for role, code in codes.items()}
    facts[process(Role.HEAD, "another")] = {"code": "z"}
    assert [one.contender.role for one in differing(facts)] == wanted


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"kind": "generated"}, [(0, "", "generated")]),
        ({"triton": [{"name": "_sum"}]}, [(0, "_sum", kind) for kind in ("ttgir", "ptx", "sass")]),
        ({"triton": "hostile", "kind": ["generated"]}, []),
        ({"triton": ["hostile"]}, [(0, "", kind) for kind in ("ttgir", "ptx", "sass")]),
    ],
)
def test_facts_say_which_texts_there_are(facts: dict[str, object], expected: list[object]) -> None:
    assert places(facts) == [*expected, (0, "", "trace")]
