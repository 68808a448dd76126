"""Bootstrap tokens: grammar, generation, usages and groups.

Source: docs/protocol/bootstrap-tokens.md.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.bootstraptoken import token as tokens
from mooring.trust.bootstraptoken.token import BootstrapToken, TokenError

GOOD = "07401b.f395accd246ae52d"
ALPHABET = st.sampled_from(tokens.ALPHABET)


def test_a_well_formed_token_is_split_into_its_public_id_and_its_secret_half() -> None:
    token = tokens.parse_token(GOOD)
    assert token.id == "07401b"
    assert token.secret.matches(b"f395accd246ae52d")
    assert token.reveal() == GOOD


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("07401bf395accd246ae52d", id="no dot"),
        pytest.param("07401b..f395accd246ae52d", id="two dots"),
        pytest.param("07401b.f395accd.246ae52d", id="a dot inside the secret"),
        pytest.param("07401.f395accd246ae52d", id="an id of five"),
        pytest.param("07401bb.f395accd246ae52d", id="an id of seven"),
        pytest.param("07401b.f395accd246ae52", id="a secret of fifteen"),
        pytest.param("07401b.f395accd246ae52dd", id="a secret of seventeen"),
        pytest.param("07401B.f395accd246ae52d", id="a capital in the id"),
        pytest.param("07401b.F395accd246ae52d", id="a capital in the secret"),
        pytest.param(GOOD + "\n", id="a newline after it"),
        pytest.param(" " + GOOD, id="a space before it"),
        pytest.param("07401b.f395accd246ae52\u0664", id="a digit that is not ASCII"),
        pytest.param("07401b:f395accd246ae52d", id="a colon for the dot"),
    ],
)
def test_anything_else_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(TokenError) as caught:
        tokens.parse_token(text)
    for part in filter(None, text.strip().split(".")):
        assert part not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "the dot and the 16 characters behind it are missing"),
        ("07401b", "the dot and the 16 characters behind it are missing"),
        ("07401b.", "16 of the 16 characters behind the dot are missing"),
        ("07401b.f395accd246ae52", "1 of the 16 characters behind the dot are missing"),
        ("7401b.f395accd246ae52d", "1 of the 6 characters before the dot are missing"),
        (".f395accd246ae52d", "6 of the 6 characters before the dot are missing"),
        ("f395accd246ae52d", "nothing before or after"),
        ("07401.f395accd246ae52", "nothing before or after"),
        ("07401B.f395", "nothing before or after"),
        ("${TOKEN}", "a placeholder of the form ${NAME}"),
        ("07401b.{{ secret }}", "a placeholder of the form {{ name }}"),
    ],
)
def test_a_refusal_names_the_missing_part_or_the_placeholder(text: str, reason: str) -> None:
    with pytest.raises(TokenError) as caught:
        tokens.parse_token(text)
    assert reason in str(caught.value)
    assert ("; " in str(caught.value)) == reason.endswith("missing")


def test_no_way_of_printing_a_token_shows_its_secret() -> None:
    token = tokens.parse_token(GOOD)
    for shown in (str(token), repr(token), f"{token}", f"{token!r}"):
        assert "07401b" in shown
        assert "f395accd246ae52d" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(token)


@given(ALPHABET, st.text(ALPHABET, min_size=22, max_size=22))
def test_parse_and_reveal_are_inverse(first: str, rest: str) -> None:
    text = f"{rest[:6]}.{rest[6:]}"
    assert tokens.parse_token(text).reveal() == text


@given(st.text())
def test_parsing_junk_either_returns_the_same_text_or_refuses(text: str) -> None:
    with contextlib.suppress(TokenError):
        assert tokens.parse_token(text).reveal() == text


@pytest.mark.parametrize(
    ("text", "wanted"), [(GOOD, "07401b"), ("07401b", "07401b")], ids=["a whole token", "an id alone"]
)
def test_an_id_is_read_from(text: str, wanted: str) -> None:
    assert tokens.parse_token_id(text) == wanted


@pytest.mark.parametrize("text", ["07401", "07401b.", "07401b.f395accd246ae52", "07401b\n", ""])
def test_no_id_is_read_from_a_damaged_token(text: str) -> None:
    with pytest.raises(TokenError, match="not a bootstrap token id"):
        tokens.parse_token_id(text)


def counting(start: int = 0) -> Callable[[int], bytes]:
    state = [start]

    def entropy(count: int) -> bytes:
        made = bytes((state[0] + index) % 256 for index in range(count))
        state[0] += count
        return made

    return entropy


def test_generation_maps_bytes_onto_digits_then_letters() -> None:
    assert tokens.generate_token(counting()).reveal() == "012345.6789abcdefghijkl"


def test_bytes_that_would_favour_some_characters_are_drawn_again() -> None:
    script = iter([b"\xff" * 10 + b"\xfc\xfd\xfe\xfb" + bytes(8), bytes(range(13))])
    made = tokens.generate_token(lambda count: next(script)).reveal()
    # 0xfb = 251 is the last usable byte (251 % 36 = 35 = z); 0xfc and above are thrown away
    assert made.replace(".", "") == "z" + "0" * 8 + "0123456789abc"


def test_every_usable_byte_gives_every_character_equally_often() -> None:
    drawn: Counter[str] = Counter()
    usable = [byte for byte in range(256) if byte < 252]
    for start in range(0, 252 * 22, 22):
        chunk = bytes(usable[(start + index) % 252] for index in range(22))
        drawn.update(tokens.generate_token(lambda count, chunk=chunk: chunk).reveal().replace(".", ""))  # type: ignore[misc]  # a default binds the loop variable
    assert len(drawn) == 36
    assert len(set(drawn.values())) == 1


@pytest.mark.parametrize("source", [lambda count: b"", lambda count: b"\xff" * count], ids=["nothing", "only 0xff"])
def test_an_entropy_source_that_never_gives_a_usable_byte_ends_in_an_error(source: Callable[[int], bytes]) -> None:
    with pytest.raises(TokenError, match="no usable bytes"):
        tokens.generate_token(source)


def test_known_usages_pass() -> None:
    tokens.validate_usages(["authentication", "signing"])
    tokens.validate_usages([])


def test_all_unknown_usages_are_named_sorted() -> None:
    with pytest.raises(TokenError) as caught:
        tokens.validate_usages(["signing", "zebra", "ape", "Signing"])
    assert str(caught.value) == (
        "invalid bootstrap token usage Signing,ape,zebra: valid usages are signing,authentication"
    )


@pytest.mark.parametrize(
    "group",
    [
        "system:bootstrappers:a",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:bootstrappers:" + "a" * 256,
        "system:bootstrappers:-:-9",
    ],
)
def test_a_group_may_be(group: str) -> None:
    tokens.validate_groups(["authentication"], [group])


@pytest.mark.parametrize(
    "group",
    [
        "",
        "system:bootstrappers",
        "system:bootstrappers:",
        "system:bootstrappers:a-",
        "system:bootstrappers:a:",
        "system:bootstrappers:A",
        "system:bootstrappers:a\n",
        " system:bootstrappers:a",
        "system:masters",
        "system:bootstrappers:" + "a" * 257,
    ],
)
def test_a_group_may_not_be(group: str) -> None:
    with pytest.raises(TokenError, match="is invalid"):
        tokens.validate_groups(["authentication"], [group])


def test_groups_need_the_authentication_usage() -> None:
    with pytest.raises(TokenError, match='unless the usages include "authentication"'):
        tokens.validate_groups(["signing"], ["system:bootstrappers:a"])
    tokens.validate_groups(["signing"], [])


def test_tokens_are_compared_by_value() -> None:
    assert tokens.parse_token(GOOD) == BootstrapToken("07401b", Secret("f395accd246ae52d"))
    assert tokens.parse_token(GOOD) != BootstrapToken("07401b", Secret("f395accd246ae52e"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (GOOD, True),
        (f"https://x{GOOD.upper()}.test:6443", True),
        (f"https://x.{GOOD.upper()}.test:6443", True),
        ("07401b.test", False),
    ],
)
def test_a_text_may_have_a_token_of_an_id_in_it(text: str, found: bool) -> None:
    assert tokens.has_token_of(text, "07401b") is found
    assert not tokens.has_token_of(text, "07401c")
