"""Bearer tokens from a file.

Source: docs/protocol/authentication.md#token-file.
"""

from __future__ import annotations

import gc
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime
from types import FunctionType, ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn import tokenfile
from mooring.authn.chain import RejectedBy, authenticate
from mooring.authn.credentials import Basic, Credentials, bearer
from mooring.authn.reasons import UNKNOWN_TOKEN
from mooring.authn.tokenfile import TokenFileAuthenticator
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.authn.verdictcache import KEY_BYTES
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FILE = b'31ada4fd-adec-460c-809a-9e56ceb75269,jane,42,"dev,ops"\nsecond,joe,43\n'
JANE = UserInfo("jane", "42", ("dev", "ops"))


def knowing(data: bytes = FILE) -> TokenFileAuthenticator:
    authenticator = TokenFileAuthenticator(bytes(KEY_BYTES))
    assert authenticator.replace(data) == ()
    return authenticator


def judged(authenticator: TokenFileAuthenticator, token: str) -> Verdict:
    return authenticator.authenticate(Credentials(bearer=bearer(token)), {}, NOW, ("https://here",))


def test_who_has_the_token_is_the_user_whatever_the_audience() -> None:
    assert judged(knowing(), "31ada4fd-adec-460c-809a-9e56ceb75269") == Accepted(JANE)
    assert judged(knowing(), "second") == Accepted(UserInfo("joe", "43"))


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="an empty token"),
        pytest.param("third", id="a token nobody has"),
        pytest.param("secon", id="the beginning of a token"),
        pytest.param("second ", id="a token with a space behind"),
        pytest.param("SECOND", id="a token in other letters"),
        pytest.param("\udcff", id="a token that is no text"),
    ],
)
def test_any_other_token_is_not_mine(token: str) -> None:
    assert judged(knowing(), token) == NotMine()


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(Credentials(), id="nothing"),
        pytest.param(Credentials(basic=Basic("jane", Secret("second"))), id="a password"),
    ],
)
def test_what_is_no_bearer_is_not_mine(credentials: Credentials) -> None:
    assert knowing().authenticate(credentials, {}, NOW, ()) == NotMine()


def test_a_token_nobody_knows_is_refused_by_the_chain() -> None:
    outcome = authenticate(Credentials(bearer=bearer("third")), [knowing()], {}, NOW, ())
    assert (outcome.user, outcome.refusals) == (None, (RejectedBy("bearer", UNKNOWN_TOKEN),))


def test_knows_nobody_before_it_was_given_a_file() -> None:
    assert judged(TokenFileAuthenticator(bytes(KEY_BYTES)), "") == NotMine()


def test_an_empty_token_is_skipped_with_a_warning() -> None:
    authenticator = TokenFileAuthenticator(bytes(KEY_BYTES))
    assert authenticator.replace(b"a,b,c\n,jane,42\n") == ("line 2: the token is empty, the line is skipped",)
    assert judged(authenticator, "") == NotMine()


def test_a_byte_order_mark_is_part_of_the_token_and_warned_of() -> None:
    authenticator = TokenFileAuthenticator(bytes(KEY_BYTES))
    assert authenticator.replace(b"\xef\xbb\xbftoken,jane,42\n") == (
        "line 1: the file begins with a byte order mark, which is part of the first token; save it without one",
    )
    assert judged(authenticator, "token") == NotMine()
    assert judged(authenticator, "\ufefftoken") == Accepted(UserInfo("jane", "42"))


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        pytest.param(
            b"tok,jane,1,dev,ops\n",
            'line 1: columns after the fourth are ignored; several groups stand in one: "group,group"',
            id="groups without quotes",
        ),
        pytest.param(
            b"Token,User,UID\ntok,jane,1\n",
            'line 1: a file has no heading: "Token" is the token of User here; remove the line',
            id="a heading",
        ),
        pytest.param(
            b"tok,jane,1\rtak,joe,2\r",
            "a carriage return alone ends no line; save the file with line feeds",
            id="line ends of old Macs",
        ),
    ],
)
def test_what_an_owner_may_have_meant_otherwise_is_warned_of(data: bytes, warning: str) -> None:
    """Each is read as by kube-apiserver, which says nothing."""
    assert TokenFileAuthenticator(bytes(KEY_BYTES)).replace(data)[:1] == (warning,)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'tok,jane,1,"dev,ops"\r\n', id="groups in quotes, as on Windows"),
        pytest.param(b"tok,jane,1\r", id="one line without a line feed"),
        pytest.param(b"token,jane,42\n", id="a token that is called so"),
    ],
)
def test_usual_files_are_not_warned_of(data: bytes) -> None:
    assert TokenFileAuthenticator(bytes(KEY_BYTES)).replace(data) == ()


def test_of_two_rows_with_one_token_the_last_counts_with_a_warning() -> None:
    authenticator = TokenFileAuthenticator(bytes(KEY_BYTES))
    warnings = authenticator.replace(b"token,jane,42\ntoken,joe,43,dev\n")
    assert warnings == ("line 2: the token is in a line before, too; this line counts",)
    assert judged(authenticator, "token") == Accepted(UserInfo("joe", "43", ("dev",)))


def test_a_new_file_replaces_all_rows() -> None:
    authenticator = knowing()
    authenticator.replace(b"third,jim,44\n")
    assert judged(authenticator, "second") == NotMine()
    assert judged(authenticator, "third") == Accepted(UserInfo("jim", "44"))


def test_a_wrong_file_replaces_none() -> None:
    authenticator = knowing()
    with pytest.raises(ConfigError, match="line 2: it has 1 of 3 columns"):
        authenticator.replace(b"third,jim,44\nbroken\n")
    assert judged(authenticator, "second").__class__ is Accepted
    assert judged(authenticator, "third") == NotMine()


@pytest.mark.parametrize("token", ["second", "third", "", "x" * 5000])
def test_every_token_costs_one_digest_and_one_comparison(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator, done = knowing(), []

    class Counted:
        @staticmethod
        def digest(key: bytes, message: bytes, how: object) -> bytes:
            done.append("digest")
            return hmac.digest(key, message, "sha256")

        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            done.append(f"compare {len(one)} {len(other)}")
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(tokenfile, "hmac", Counted)
    judged(authenticator, token)
    assert done == ["digest", "compare 32 32"]


def held_texts(owner: object) -> Iterator[str | bytes]:
    """Yield each text and bytes value that the object keeps alive, classes and modules left out."""
    pending, seen = [owner], {id(owner)}
    while pending:
        for value in gc.get_referents(pending.pop()):
            if isinstance(value, str | bytes):
                yield value
            elif id(value) not in seen and not isinstance(value, type | ModuleType | FunctionType):
                seen.add(id(value))
                pending.append(value)


def test_no_token_stays_in_memory_or_is_shown() -> None:
    authenticator = knowing()
    assert not {"second", b"second"} & set(held_texts(authenticator))
    assert "second" not in repr(judged(authenticator, "second"))


@given(st.binary(max_size=40), st.text(max_size=20))
def test_no_file_and_no_token_break_it(data: bytes, token: str) -> None:
    authenticator = TokenFileAuthenticator(bytes(KEY_BYTES))
    try:
        authenticator.replace(data)
    except ConfigError:
        return
    assert isinstance(judged(authenticator, token), NotMine | Accepted)
