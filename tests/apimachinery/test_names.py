"""Names: allowed ones, and the exact clause for each refused one.

Source: docs/protocol/objects.md#names, docs/protocol/secrets-and-configmaps.md.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery import names

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
QUALIFIED = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        pytest.param("default", [], id="a plain word is a label"),
        pytest.param("0", [], id="one digit is a label"),
        pytest.param("a" * 63, [], id="63 characters fit"),
        pytest.param("a" * 64, ["must be no more than 63 characters"], id="64 do not"),
        pytest.param("a.b", ["must not contain dots"], id="a dotted name is told about its dots"),
        pytest.param("", [LABEL], id="the empty name is refused"),
        pytest.param("A", [LABEL], id="upper case is refused"),
        pytest.param("-a", [LABEL], id="a leading dash is refused"),
        pytest.param("a\n", [LABEL], id="a trailing newline is refused"),
        pytest.param("é" * 40, ["must be no more than 63 characters", LABEL], id="length counts bytes"),
    ],
)
def test_labels(name: str, errors: list[str]) -> None:
    assert names.dns1123_label_errors(name) == errors


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        pytest.param("bootstrap-token-abcdef", [], id="a secret's name"),
        pytest.param("node-1.example.com", [], id="a dotted name"),
        pytest.param("a" * 253, [], id="253 characters fit"),
        pytest.param("a" * 254, ["must be no more than 253 characters"], id="254 do not"),
        pytest.param("a..b", [SUBDOMAIN], id="an empty label is refused"),
        pytest.param("a.-b", [SUBDOMAIN], id="each label starts with a letter or digit"),
        pytest.param("a\n", [SUBDOMAIN], id="a trailing newline is refused"),
        pytest.param("", [SUBDOMAIN], id="the empty name is refused"),
    ],
)
def test_subdomains(name: str, errors: list[str]) -> None:
    assert names.dns1123_subdomain_errors(name) == errors


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        pytest.param("system:node-bootstrapper", [], id="colons are allowed"),
        pytest.param("ALL CAPS and é", [], id="so is nearly everything"),
        pytest.param(".", ["may not be '.'"], id="dot is refused"),
        pytest.param("..", ["may not be '..'"], id="dot dot is refused"),
        pytest.param("...", [], id="three dots are a name"),
        pytest.param(
            "a/b%", ["may not contain '/'", "may not contain '%'"], id="slash and percent are refused, both told"
        ),
    ],
)
def test_path_segments(name: str, errors: list[str]) -> None:
    assert names.path_segment_errors(name) == errors


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        pytest.param("app", [], id="a plain key"),
        pytest.param("kubernetes.io/metadata.name", [], id="a prefixed key"),
        pytest.param("A_b.c-d", [], id="all signs allowed inside"),
        pytest.param("x" * 63, [], id="63 characters fit"),
        pytest.param("x" * 64, ["name part must be no more than 63 bytes"], id="64 do not"),
        pytest.param("a" * 253 + "/x", [], id="a prefix of 253 fits"),
        pytest.param("a" * 254 + "/x", ["prefix part must be no more than 253 bytes"], id="one of 254 does not"),
        pytest.param("/x", ["prefix part must be non-empty"], id="an empty prefix is refused"),
        pytest.param("Ex.com/x", [f"prefix part {SUBDOMAIN}"], id="an upper case prefix is refused"),
        pytest.param("", ["name part must be non-empty", f"name part {QUALIFIED}"], id="the empty key is refused"),
        pytest.param(
            "a.b/", ["name part must be non-empty", f"name part {QUALIFIED}"], id="an empty name part is refused"
        ),
        pytest.param("-x", [f"name part {QUALIFIED}"], id="a leading dash is refused"),
        pytest.param("x\n", [f"name part {QUALIFIED}"], id="a trailing newline is refused"),
        pytest.param(
            "a/b/c",
            [
                f"a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ],
            id="two slashes are refused",
        ),
    ],
)
def test_qualified_names(name: str, errors: list[str]) -> None:
    assert names.qualified_name_errors(name) == errors


@pytest.mark.parametrize(
    ("value", "errors"),
    [
        pytest.param("", [], id="empty is a value"),
        pytest.param("v1.2_3-x", [], id="signs inside are allowed"),
        pytest.param("x" * 63, [], id="63 characters fit"),
        pytest.param("x" * 64, ["must be no more than 63 bytes"], id="64 do not"),
        pytest.param("a b", [VALUE], id="blanks are refused"),
        pytest.param(".a", [VALUE], id="a leading dot is refused"),
        pytest.param("a\n", [VALUE], id="a trailing newline is refused"),
    ],
)
def test_label_values(value: str, errors: list[str]) -> None:
    assert names.label_value_errors(value) == errors


@pytest.mark.parametrize(
    ("key", "errors"),
    [
        pytest.param("jws-kubeconfig-abcdef", [], id="a signature's key"),
        pytest.param(".dockerconfigjson", [], id="a leading dot is allowed"),
        pytest.param("k" * 253, [], id="253 characters fit"),
        pytest.param("k" * 254, ["must be no more than 253 characters"], id="254 do not"),
        pytest.param("", [CONFIG_KEY], id="the empty key is refused"),
        pytest.param("a/b", [CONFIG_KEY], id="a slash is refused"),
        pytest.param("a\n", [CONFIG_KEY], id="a trailing newline is refused"),
        pytest.param(".", ["must not be '.'"], id="dot is refused"),
        pytest.param("..", ["must not be '..'"], id="dot dot is refused"),
        pytest.param("..data", ["must not start with '..'"], id="a climbing name is refused"),
    ],
)
def test_config_keys(key: str, errors: list[str]) -> None:
    assert names.config_key_errors(key) == errors


def test_a_generated_name_is_the_base_and_five_characters() -> None:
    assert names.generate_name("csr-", bytes) == "csr-bbbbb"


def test_a_long_base_is_cut_so_that_the_name_fits_a_label() -> None:
    name = names.generate_name("x" * 200, bytes)
    assert name == "x" * 58 + "bbbbb"
    assert names.dns1123_label_errors(name) == []


def test_a_base_is_never_cut_inside_a_character() -> None:
    assert names.generate_name("x" * 57 + "é", bytes) == "x" * 57 + "bbbbb"


def test_every_suffix_is_equally_likely() -> None:
    alphabet = names.GENERATED_ALPHABET

    def drawn_with(number: int) -> str:
        return names.generate_name("", lambda count: number.to_bytes(count, "big"))

    drawn = [drawn_with(number) for number in range(27**3)]
    assert len(set(drawn)) == 27**3
    for position in range(3):
        assert Counter(name[position] for name in drawn) == dict.fromkeys(alphabet, 27**2)


@given(st.text())
def test_no_text_makes_a_check_fail(text: str) -> None:
    for check in (
        names.dns1123_label_errors,
        names.dns1123_subdomain_errors,
        names.path_segment_errors,
        names.qualified_name_errors,
        names.label_value_errors,
        names.config_key_errors,
    ):
        errors = check(text)
        assert all(errors), "an error says something"
        assert errors == check(text)


@given(st.text(), st.binary(min_size=16, max_size=16))
def test_a_generated_name_never_exceeds_a_label(base: str, drawn: bytes) -> None:
    name = names.generate_name(base, lambda n: drawn[:n])
    assert len(name.encode()) <= 63
    assert set(name[-5:]) <= set(names.GENERATED_ALPHABET)
