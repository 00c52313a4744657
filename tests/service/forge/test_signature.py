"""Only GitHub's SHA-256 signature over the raw body opens the door."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.forge.forge import Signatures, is_token, signature

BODY = b'{"zen": "Keep it logically awesome."}'
SECRETS = st.text("sécret ☃", min_size=1)


def signed(body: bytes, header: str, secrets: list[str]) -> bool:
    """Whether it fits, in two parts."""
    signatures = Signatures(secrets)
    signatures.update(body[: len(body) // 2])
    signatures.update(body[len(body) // 2 :])
    return signatures.fit(header)


def test_the_example_of_the_documentation() -> None:
    told = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert signed(b"Hello, World!", told, ["It's a Secret to Everybody"])


@pytest.mark.parametrize(
    ("header", "secrets", "expected"),
    [
        (signature(BODY, "now"), ["now"], True),
        (signature(BODY, "old"), ["now", "old"], True),  # while the secret is being rotated
        (signature(BODY, "old"), ["now"], False),
        (signature(BODY + b" ", "now"), ["now"], False),
        (signature(BODY, "now").upper(), ["now"], False),
        (signature(BODY, "now")[:-1], ["now"], False),
        (signature(BODY, "now") + "\n", ["now"], False),
        (signature(BODY, "now").removeprefix("sha256="), ["now"], False),
        ("sha1=" + hmac.new(b"now", BODY, hashlib.sha1).hexdigest(), ["now"], False),
        (signature(BODY, ""), [""], False),  # an empty secret signs nothing
        (signature(BODY, "now"), [], False),
        ("sha256=" + "é" * 64, ["now"], False),
        ("", ["now"], False),
    ],
)
def test_signed(header: str, secrets: list[str], expected: bool) -> None:
    assert signed(BODY, header, secrets) is expected


@pytest.mark.parametrize(
    ("token", "secrets", "expected"),
    [
        ("now", ["now"], True),
        ("old", ["now", "old"], True),  # while the secret is being rotated
        ("é", ["é"], True),
        ("other", ["now"], False),
        ("", [""], False),
        ("now", [], False),
        ("whsec_QUJD", ["whsec_QUJD"], False),  # a signing token signs, and is never sent
    ],
)
def test_token(token: str, secrets: list[str], expected: bool) -> None:
    assert is_token(token, secrets) is expected


@given(st.binary(), SECRETS)
def test_what_was_signed_is_accepted(body: bytes, secret: str) -> None:
    assert signed(body, signature(body, secret), [secret])


@given(st.binary(min_size=1), SECRETS, st.data())
def test_one_changed_bit_is_refused(body: bytes, secret: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(body) * 8 - 1))
    forged = bytearray(body)
    forged[place // 8] ^= 1 << place % 8
    assert not signed(bytes(forged), signature(body, secret), [secret])


@given(st.binary(), st.text("sha256=0f\n☃"), SECRETS)
def test_no_header_breaks_it(body: bytes, header: str, secret: str) -> None:
    assert signed(body, header, [secret]) is (header == signature(body, secret))
