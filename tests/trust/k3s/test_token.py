"""K10 tokens: a table of texts with what k3s reads in each, and random texts."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, unfilled_placeholder
from mooring.trust.k3s.token import (
    K3sToken,
    TokenFormatError,
    bootstrap_token_id,
    format_token,
    has_prefix,
    is_digest,
    parse_token,
    password_credential,
)

HASH = "0123456789abcdef" * 4
BOOTSTRAP = "abcdef.0123456789abcdef"

READ = {
    "a short password": ("hunter2", ("", "", "hunter2", None)),
    "a short password with colons": ("a:b::c", ("", "", "a:b::c", None)),
    "a short password that ends with a colon": ("a:", ("", "", "a:", None)),
    "a short bootstrap token": (BOOTSTRAP, ("", "", None, BOOTSTRAP)),
    "a full password": (f"K10{HASH}::server:pass", (HASH, "server", "pass", None)),
    "a full password of an agent": (f"K10{HASH}::node:pass", (HASH, "node", "pass", None)),
    "a full password of any user": (f"K10{HASH}::jane:pass", (HASH, "jane", "pass", None)),
    "a full password of no user": (f"K10{HASH}:::pass", (HASH, "", "pass", None)),
    "a full password with colons": (f"K10{HASH}::server:a:b::c", (HASH, "server", "a:b::c", None)),
    "a full password that looks like a bootstrap token": (
        f"K10{HASH}::server:{BOOTSTRAP}",
        (HASH, "server", BOOTSTRAP, None),
    ),
    "a full bootstrap token": (f"K10{HASH}::{BOOTSTRAP}", (HASH, "", None, BOOTSTRAP)),
    "a full password without a hash": ("K10::server:pass", ("", "server", "pass", None)),
    "a full bootstrap token without a hash": (f"K10::{BOOTSTRAP}", ("", "", None, BOOTSTRAP)),
    "a full password without a hash that looks like a bootstrap token": (
        f"K10::server:{BOOTSTRAP}",
        ("", "server", BOOTSTRAP, None),
    ),
    "neither a hash nor a user": ("K10:::pass", ("", "", "pass", None)),
    "no separator": ("K10user:pass", ("", "user", "pass", None)),
    "no separator before a bootstrap token": (f"K10{BOOTSTRAP}", ("", "", None, BOOTSTRAP)),
    "a hash that is not hexadecimal": (f"K10{'z' * 64}::server:pass", ("z" * 64, "server", "pass", None)),
    "a hash in upper case": (f"K10{HASH.upper()}::server:pass", (HASH.upper(), "server", "pass", None)),
    "a hash of 64 bytes of UTF-8": (f"K10{'ä' * 32}::server:pass", ("ä" * 32, "server", "pass", None)),
    "the first of two separators": (f"K10{HASH}::a::b:c", (HASH, "a", ":b:c", None)),
}
"""Text → hash, user, password, bootstrap token."""

REFUSED = {
    "no text": ("", "token must not be empty"),
    "the prefix alone": ("K10", "invalid token format"),
    "a short password that begins with K10": ("K10password", "invalid token format"),
    "the prefix and a separator": ("K10::", "invalid token format"),
    "a hash alone": (f"K10{HASH}", "invalid token format"),
    "a hash and a separator": (f"K10{HASH}::", "invalid token format"),
    "an empty password": (f"K10{HASH}::server:", "invalid token format"),
    "an empty user and an empty password": (f"K10{HASH}:::", "invalid token format"),
    "no colon after the hash": (f"K10{HASH}::password", "invalid token format"),
    "an upper-case bootstrap token after the hash": (f"K10{HASH}::ABCDEF.0123456789abcdef", "invalid token format"),
    "a bootstrap token with a line end after the hash": (f"K10{HASH}::{BOOTSTRAP}\n", "invalid token format"),
    "an empty password without a separator": ("K10user:", "invalid token format"),
    "a hash of 63 digits": (f"K10{HASH[1:]}::server:pass", "invalid token CA hash length"),
    "a hash of 65 digits": (f"K10{HASH}0::server:pass", "invalid token CA hash length"),
    "a hash of 64 characters and more bytes": (f"K10{'ä' * 64}::server:pass", "invalid token CA hash length"),
    "a password with K10 before and a separator in it": ("K10secret::word", "invalid token CA hash length"),
    "half a character": ("\ud800", "invalid token format"),
}


def told(token: K3sToken) -> tuple[str, str, str | None, str | None]:
    return (
        token.ca_hash,
        token.username,
        token.password.reveal().decode() if token.password is not None else None,
        token.bootstrap.reveal() if token.bootstrap is not None else None,
    )


@pytest.mark.parametrize(("text", "wanted"), READ.values(), ids=READ)
def test_read_as_k3s_reads(text: str, wanted: tuple[str, str, str | None, str | None]) -> None:
    assert told(parse_token(text)) == wanted
    assert told(parse_token(text.encode())) == wanted


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_text_of_k3s(text: str, message: str) -> None:
    with pytest.raises(TokenFormatError) as raised:
        parse_token(text)
    assert re.fullmatch(f"{message}(: .*)?", str(raised.value))


PASSWORD = "5f4dcc3b5aa765d61d8327deb882cf99"
MISSING = {
    "no hash yet": (0, r"K10.*|.*empty|it is the beginning of a whole token: the hash .*"),
    "in the hash": (
        3,
        r"invalid token format: the hash of the CA has \d+ of 64 digits, and :: and the credential .* are missing",
    ),
    "after the separator": (
        69,
        r"invalid token format: the user and the password, or the bootstrap token, behind :: are missing",
    ),
    "in the user or the id": (
        70,
        r"invalid token format: the password is missing, or a part of the bootstrap token behind ::",
    ),
}
"""First length of the beginning of a token → what its error says, up to the next row."""


@pytest.mark.parametrize("credential", [f"server:{PASSWORD}", f"node:{PASSWORD}", BOOTSTRAP])
def test_every_beginning_of_a_whole_token_is_refused_with_its_missing_part(credential: str) -> None:
    """A password that was cut cannot be told from a short one. It goes to a server whose CA has the hash, and only there."""
    whole = f"K10{HASH}::{credential}"
    end = whole.index(PASSWORD) if PASSWORD in whole else len(whole)
    for length in range(end):
        with pytest.raises(TokenFormatError) as raised:
            parse_token(whole[:length])
        wanted = next(text for first, text in reversed(MISSING.values()) if length >= first)
        if whole[:length].endswith(("server:", "node:")):
            wanted = "invalid token format: the password behind the user is missing"
        assert re.fullmatch(wanted, str(raised.value)), (length, str(raised.value))


@pytest.mark.parametrize("credential", [f"server:{PASSWORD}", f"node:{PASSWORD}", BOOTSTRAP])
def test_every_end_of_a_whole_token_is_refused_up_to_its_credential(credential: str) -> None:
    """What is left of a password alone is a password, and the complete bootstrap token is a token of its own."""
    whole = f"K10{HASH}::{credential}"
    credential_start = whole.index(PASSWORD if PASSWORD in whole else BOOTSTRAP)
    for start in range(1, credential_start):
        with pytest.raises(TokenFormatError, match=r"it has the hash of a CA|it is the end of a whole token"):
            parse_token(whole[start:])


@pytest.mark.parametrize("length", range(7, len(BOOTSTRAP)))
def test_a_bootstrap_token_without_its_end_is_not_a_password(length: int) -> None:
    with pytest.raises(
        TokenFormatError, match=rf"{len(BOOTSTRAP) - length} of the 16 characters behind the dot are missing"
    ):
        parse_token(BOOTSTRAP[:length])


@pytest.mark.parametrize("start", range(1, 7))
def test_a_bootstrap_token_without_its_beginning_is_not_a_password(start: int) -> None:
    with pytest.raises(TokenFormatError, match=rf"{start} of the 6 characters before the dot are missing"):
        parse_token(BOOTSTRAP[start:])


PLACEHOLDERS = {
    "${TOKEN}": "${NAME}",
    "$TOKEN": "$NAME",
    "$(cat /etc/token)": "$(command)",
    "{{ token }}": "{{ name }}",
    "{{.Token}}": "{{ name }}",
    "<%= token %>": "<% name %>",
    "<token>": "<name>",
    "%TOKEN%": "%NAME%",
    "{token}": "{name}",
    "#{token}": "{name}",
    "((token))": "((name))",
    "@TOKEN@": "@NAME@",
    "__TOKEN__": "__NAME__",
    "%%TOKEN%%": "%NAME%",
    "@@TOKEN@@": "@NAME@",
    "<<TOKEN>>": "<name>",
    "[[token]]": "[name]",
    "[token]": "[name]",
    "%{token}": "{name}",
    "%(token)s": "%(name)s",
    "#{token}#": "{name}",
    "$$TOKEN": "$NAME",
    "$ENV{TOKEN}": "$NAME",
    "`cat x`": "`command`",
    "{{token": "${NAME, {{ name or <name without its end",
    "${TOKEN": "${NAME, {{ name or <name without its end",
    "<token": "${NAME, {{ name or <name without its end",
    "xxxxxx.xxxxxxxxxxxxxxxx": "xxxxxx.xxxxxxxxxxxxxxxx",
    "<id>.<secret>": "<name>",
    "abcdef.$SECRET": "$NAME",
    "K10${HASH}::node:hunter2": "${NAME}",
    "K10$HASH::node:hunter2": "$NAME",
    f"K10{HASH}::server:<password>": "<name>",
    f"K10{HASH}::{{{{ credential }}}}": "{{ name }}",
    f"K10{HASH}::<id>.0123456789abcdef": "<name>",
}


@pytest.mark.parametrize(("text", "form"), PLACEHOLDERS.items())
def test_a_template_that_was_not_filled_in_is_not_a_token(text: str, form: str) -> None:
    with pytest.raises(TokenFormatError) as raised:
        parse_token(text)
    assert str(raised.value) == (
        f"it has a placeholder of the form {form}, and not the value: the variable or the template was not filled in"
    )


@pytest.mark.parametrize(
    "password",
    [
        "pa$$word",
        "cost$5",
        "a<b>c",
        "100%sure%",
        "$",
        "a{1}",
        "x__y__z",
        "me@example.com",
        "[a1]",
        "a[b]",
        "<3",
        "changeme",
    ],
)
def test_a_password_with_the_characters_of_a_placeholder_stays_one(password: str) -> None:
    assert told(parse_token(password)) == ("", "", password, None)


def test_bytes_of_a_command_line_that_are_no_utf_8_survive() -> None:
    token = parse_token("K10us\udcffer:pa\udcffss")
    assert (token.username, token.password) == ("us\udcffer", Secret(b"pa\xffss"))
    assert token.credential == Secret(b"us\xffer:pa\xffss")


@given(st.text() | st.text(alphabet="K10:.abcdef", max_size=90) | st.binary())
def test_any_text_is_a_token_or_refused(text: str | bytes) -> None:
    try:
        token = parse_token(text)
    except TokenFormatError as error:
        texts = r"token must .*|invalid token (format|CA hash length)(: .*)?|(a token is one|the text|it (is|has) (the|a)) .*"
        assert re.fullmatch(texts, str(error))  # noqa: PT017 - not always raised
        return
    assert (token.password is None) != (token.bootstrap is None)
    assert len(token.ca_hash.encode("utf-8", "surrogateescape")) in (0, 64)


HASHES = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
USERS = st.text(st.characters(codec="utf-8", exclude_characters=":$<%{@_("))
PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: not unfilled_placeholder(text))
TOKENS = st.builds(
    BootstrapToken,
    st.from_regex(r"[a-z0-9]{6}", fullmatch=True),
    st.from_regex(r"[a-z0-9]{16}", fullmatch=True).map(Secret),
)


@given(HASHES, USERS, PASSWORDS)
def test_a_password_survives_writing_and_reading(ca_hash: str, user: str, password: str) -> None:
    written = format_token(ca_hash, password_credential(user, Secret(password)))
    assert parse_token(written.reveal()) == K3sToken(ca_hash, user, Secret(password), None)
    assert format_token(ca_hash, parse_token(written.reveal())) == written


@given(HASHES, TOKENS)
def test_a_bootstrap_token_survives_writing_and_reading(ca_hash: str, token: BootstrapToken) -> None:
    written = format_token(ca_hash, token)
    assert parse_token(written.reveal()) == K3sToken(ca_hash, "", None, token)
    assert format_token(ca_hash, parse_token(written.reveal())) == written


@pytest.mark.parametrize("text", ["abcdef", BOOTSTRAP, f"K10{HASH}::{BOOTSTRAP}", f"K10::{BOOTSTRAP}"])
def test_the_id_of_a_bootstrap_token_in_any_form(text: str) -> None:
    assert bootstrap_token_id(text) == "abcdef"


WHOLE = f"K10{HASH}::server:hunter2"


@pytest.mark.parametrize("credential", ["server:hunter2", "node:hunter2", BOOTSTRAP])
@pytest.mark.parametrize(
    ("before", "named"),
    [
        pytest.param('"', "a quotation mark", id="a quote"),
        pytest.param("'", "a quotation mark", id="another quote"),
        pytest.param("\u201c", "a quotation mark", id="a quote of a word processor"),
        pytest.param("\ufeff", "a byte order mark", id="a byte order mark"),
        pytest.param("\ufeff\ufeff", "a byte order mark", id="two byte order marks"),
        pytest.param("K3S_TOKEN=", '"K3S_TOKEN="', id="the key of an environment file"),
        pytest.param('export K3S_TOKEN="', '"export" and a blank and "K3S_TOKEN=" and a quotation mark', id="a shell"),
        pytest.param("token: ", '"token:" and a blank', id="the key of config.yaml"),
        pytest.param('"token" : "', 'a quotation mark and "token" and a blank and other text', id="a quoted key"),
        pytest.param("--token ", '"--token" and a blank', id="the flag"),
        pytest.param("\u00a0", "a blank", id="a space that does not break"),
        pytest.param("\u200b", "a blank", id="a space without width"),
        pytest.param("\n", "a line break", id="an empty line"),
        pytest.param("hunter3\n", "other text and a line break", id="a secret, which is not repeated"),
        pytest.param("# rack 7\n", "other text and a blank and a line break", id="a comment"),
        pytest.param("\udcff", "other text", id="a byte that is no UTF-8"),
    ],
)
def test_text_before_a_whole_token_is_named_and_does_not_drop_its_hash(
    before: str, named: str, credential: str
) -> None:
    with pytest.raises(TokenFormatError) as raised:
        parse_token(f"{before}K10{HASH}::{credential}")
    assert str(raised.value) == f"a whole token begins with K10: remove {named} before it"


HASH_ALONE = "it has the hash of a CA, and not the form of a whole token"
END_ALONE = "it is the end of a whole token, without the hash of the CA"
IN_BASE64 = "in base64: decode it"
NEARLY = "it is a damaged bootstrap token: the form is 6 characters, one dot"
PIN = "it is the pin of a CA, and not a token"
BASE64 = base64.b64encode(WHOLE.encode()).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(WHOLE.replace("K10", "k10"), "with a capital letter", id="a small letter"),
        pytest.param(WHOLE[1:], HASH_ALONE, id="the first letter is lost"),
        pytest.param(WHOLE[3:], HASH_ALONE, id="the prefix is lost"),
        pytest.param(WHOLE[30:], HASH_ALONE, id="the beginning is lost"),
        pytest.param(WHOLE.replace("K10", "K1O"), HASH_ALONE, id="a letter for a digit"),
        pytest.param(WHOLE.replace("K10", "K10::"), HASH_ALONE, id="a separator before the hash"),
        pytest.param(WHOLE.replace("::", ":"), HASH_ALONE, id="one colon"),
        pytest.param(WHOLE[3:].replace("::", ":"), HASH_ALONE, id="one colon, without the prefix"),
        pytest.param(f"K10{HASH}:{BOOTSTRAP}", HASH_ALONE, id="one colon before a bootstrap token"),
        pytest.param(f'"{WHOLE[:40]}::server:hunter2', HASH_ALONE, id="a quote before a hash that is cut"),
        pytest.param(f"K10::node:{WHOLE}", HASH_ALONE, id="a whole token in the place of a password"),
        pytest.param(f"K10::{WHOLE}", HASH_ALONE, id="a prefix without a hash before a whole token"),
        pytest.param(WHOLE.replace("::", ""), HASH_ALONE, id="no colons"),
        pytest.param(WHOLE.replace(":", "\\:"), HASH_ALONE, id="colons behind backslashes"),
        pytest.param(WHOLE[3:].replace(":", "\\:"), HASH_ALONE, id="colons behind backslashes, without the prefix"),
        pytest.param(WHOLE.replace("::", "%3A%3A"), HASH_ALONE, id="a separator as in a URL"),
        pytest.param(WHOLE[3:].replace(":", "%3a"), HASH_ALONE, id="colons as in a URL, without the prefix"),
        pytest.param(WHOLE.replace("::", "\uff1a\uff1a"), HASH_ALONE, id="wide colons"),
        pytest.param(f"{HASH}/{BOOTSTRAP}", HASH_ALONE, id="a stroke before a bootstrap token"),
        pytest.param(WHOLE[50:], END_ALONE, id="most of the hash is lost"),
        pytest.param(f"K10{WHOLE[50:]}".replace("::", ":"), END_ALONE, id="most of the hash and a colon are lost"),
        pytest.param(f"K10{HASH[:9]}:{BOOTSTRAP}", END_ALONE, id="most of the hash is lost before a bootstrap token"),
        pytest.param("K10012345\u2026::server:hunter2"[3:], END_ALONE, id="a hash that a terminal has shortened"),
        pytest.param("::server:hunter2", END_ALONE, id="the separator and the rest"),
        pytest.param("::", END_ALONE, id="the separator alone"),
        pytest.param(":hunter2", END_ALONE, id="the password behind its colon"),
        pytest.param("rver:hunter2", END_ALONE, id="a part of the user and the password"),
        pytest.param("node:hunter2", END_ALONE, id="the user and the password"),
        pytest.param(f"::{BOOTSTRAP}", END_ALONE, id="the separator and a bootstrap token"),
        pytest.param("k10::server:hunter2", END_ALONE, id="a small letter, without a hash"),
        pytest.param(" K10::server:hunter2", END_ALONE, id="a blank before the prefix, without a hash"),
        pytest.param(BASE64, IN_BASE64, id="base64, as in a Secret"),
        pytest.param(BASE64.rstrip("="), IN_BASE64, id="base64 whose padding cut -d= took"),
        pytest.param(BASE64[:-5], IN_BASE64, id="base64 that is cut"),
        pytest.param(f"{BASE64[:76]} {BASE64[76:]}", IN_BASE64, id="lines of base64"),
        pytest.param(f'token: "{BASE64}"', IN_BASE64, id="a key and quotes before base64"),
        pytest.param(base64.b64encode(f"K3S_TOKEN={WHOLE}".encode()), IN_BASE64, id="base64 of a line with a key"),
        pytest.param(WHOLE.encode("utf-16"), "a byte order mark, or has a NUL", id="UTF-16"),
        pytest.param(WHOLE.encode("utf-16-le"), "has a NUL", id="UTF-16 without a mark"),
        pytest.param(b"\xef\xbb\xbfhunter2", "a byte order mark", id="a mark before a password"),
        pytest.param("hunter2\r", "a token is one line", id="a password with the end of a line of Windows"),
        pytest.param(f"{BOOTSTRAP}\n", "a token is one line", id="a bootstrap token with a line end"),
        pytest.param("hunter2\nsecond", "a token is one line", id="two lines"),
        pytest.param(" ", "the text is blank", id="a blank"),
        pytest.param("\t \t", "the text is blank", id="tabs and a blank"),
        pytest.param(f"sha256:{HASH}", PIN, id="the pin of the CA"),
        pytest.param(f'"SHA256:{HASH.upper()}"', PIN, id="the pin in capital letters and quotes"),
        pytest.param(base64.b64encode(BOOTSTRAP.encode()), IN_BASE64, id="base64 of a bootstrap token"),
        pytest.param(base64.b64encode(f"{BOOTSTRAP}\n".encode()), IN_BASE64, id="base64 of a line with one"),
        *(
            pytest.param(text, NEARLY, id=f"nearly a bootstrap token: {text}")
            for text in (
                f'"{BOOTSTRAP}"',
                f"'{BOOTSTRAP}'",
                f"\u201c{BOOTSTRAP}\u201d",
                f" {BOOTSTRAP}",
                f"{BOOTSTRAP} ",
                f"{BOOTSTRAP}\t",
                f"{BOOTSTRAP}.",
                f"--token {BOOTSTRAP}",
                f"K3S_TOKEN={BOOTSTRAP}",
                BOOTSTRAP.upper(),
                "abcdef.0123456789ABCDEF",
                BOOTSTRAP.replace(".", ":"),
                BOOTSTRAP.replace(".", ".."),
                BOOTSTRAP.replace(".", " . ").replace(" . ", " "),
                f"{BOOTSTRAP}0",
                f"0{BOOTSTRAP}",
                f"K10::{BOOTSTRAP.replace('.', ':')}",
                f"K10{BOOTSTRAP.replace('.', ':')}",
            )
        ),
    ],
)
def test_a_damaged_token_is_not_read_as_a_password(text: str | bytes, message: str) -> None:
    """k3s sends each of these as a password to a server whose CA it has just received from that server."""
    with pytest.raises(TokenFormatError) as raised:
        parse_token(text)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert HASH[:8] not in str(raised.value)


@pytest.mark.parametrize(
    "password",
    [
        pytest.param(HASH, id="64 hexadecimal digits, as openssl rand -hex prints"),
        pytest.param("SzEwIG5vdGhpbmc", id="a text that begins as base64 does"),
        pytest.param("SzEwMDAw", id="base64 of another text"),
        pytest.param("abcdef-0123456789abcdef", id="words of the lengths of a bootstrap token"),
        pytest.param("hunter2.two", id="a dot"),
        pytest.param(" hunter2 ", id="blanks around a password"),
        pytest.param("a b\ufeff", id="a mark at its end"),
    ],
)
def test_a_password_that_is_not_damaged_stays_one(password: str) -> None:
    assert told(parse_token(password)) == ("", "", password, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"K10{HASH}::server:hunter2", "not a bootstrap token but a password, which is no object"),
        ("K10hunter2", "invalid token format"),
        ("hunter2", "not a bootstrap token id"),
        ("", "not a bootstrap token id"),
    ],
)
def test_what_has_no_id_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        bootstrap_token_id(text)
    assert "hunter2" not in str(raised.value)


def test_an_empty_credential_gives_an_empty_token() -> None:
    assert format_token(HASH, Secret("")) == Secret("")


@pytest.mark.parametrize("ca_hash", ["", "abc", HASH.upper(), "z" * 64])
def test_a_token_is_written_with_a_digest_only(ca_hash: str) -> None:
    with pytest.raises(TokenFormatError, match="64 hexadecimal digits") as raised:
        format_token(ca_hash, Secret("server:hunter2"))
    assert "hunter2" not in str(raised.value)


def test_servers_and_agents_replace_the_user() -> None:
    token = parse_token(f"K10{HASH}::server:hunter2")
    assert token.as_user("node") == parse_token(f"K10{HASH}::node:hunter2")
    assert parse_token("hunter2").as_user("server").credential == Secret("server:hunter2")


def test_a_bootstrap_token_has_no_user() -> None:
    token = parse_token(BOOTSTRAP)
    assert token.as_user("node") is token
    assert token.credential == Secret(BOOTSTRAP)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"K10{HASH}::server:hunter2", f"K3sToken({HASH}::server:(redacted))"),
        ("hunter2", "K3sToken(:::(redacted))"),
        (f"K10{HASH}::{BOOTSTRAP}", f"K3sToken({HASH}::abcdef.(redacted))"),
        ("K10hunter2:3", "K3sToken(::(other user):(redacted))"),
        (f"K10hunter2{'x' * 57}::hunter2:3", "K3sToken((no digest)::(other user):(redacted))"),
    ],
)
def test_nothing_that_may_be_a_password_is_printed(text: str, wanted: str) -> None:
    token = parse_token(text)
    assert repr(token) == str(token) == f"{token}" == wanted
    assert "hunter2" not in repr(token)


@pytest.mark.parametrize(
    ("text", "wanted"), [(HASH, True), (HASH.upper(), False), (HASH[1:], False), (f"{HASH}\n", False), ("", False)]
)
def test_digests(text: str, wanted: bool) -> None:
    assert is_digest(text) is wanted


def test_the_prefix_decides_how_a_text_is_read() -> None:
    assert has_prefix("K10password")
    assert not has_prefix("k10password")
