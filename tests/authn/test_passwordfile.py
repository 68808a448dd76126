"""Passwords from a file, plain or hashed.

Source: docs/protocol/authentication.md#removed-authenticators.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn import passwordfile
from mooring.authn.chain import Found, Outcome, RejectedBy, judge
from mooring.authn.credentials import UNREADABLE_BASIC, Basic, Credentials, bearer
from mooring.authn.passwordfile import UNKNOWN_USER, WRONG_PASSWORD, PasswordFileAuthenticator
from mooring.authn.passwordhash import PasswordHash
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import KEY_BYTES, VerdictCache
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=10)
JANE = UserInfo("jane", "42", ("dev", "ops"))
JOE = UserInfo("joe", "43")


def hashed(password: str, ln: int = 10) -> str:
    """As a field of the file; cheap, for tests."""
    salt = b"saltsalt"
    derived = PasswordHash(ln, 1, 1, salt, bytes(16)).derive(Secret(password))
    return f'"{PasswordHash(ln, 1, 1, salt, derived).text()}"'


PLAIN = b'hunter2,jane,42,"dev,ops"\n"a,""b",joe,43\n'
HASHED = f'{hashed("hunter2")},jane,42,"dev,ops"\n'.encode()
MIXED = HASHED + b'"a,""b",joe,43\n'


def knowing(data: bytes, ttl: timedelta = TTL) -> PasswordFileAuthenticator:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), ttl))
    assert authenticator.replace(data) == ()
    return authenticator


def basic(user: str, password: str) -> Credentials:
    return Credentials(basic=Basic(user, Secret(password)))


def first(
    authenticator: PasswordFileAuthenticator, user: str, password: str, now: datetime = NOW
) -> FirstVerdict:  # fmt: skip
    return authenticator.authenticate(basic(user, password), {}, now, ("https://here",))


def judged(authenticator: PasswordFileAuthenticator, user: str, password: str, now: datetime = NOW) -> Verdict:
    """With the second stage."""
    said = first(authenticator, user, password, now)
    if not isinstance(said, Deferred):
        return said
    assert said.compute is not None
    verdict = said.compute()
    assert verdict is not None
    assert said.on_verdict is not None
    said.on_verdict(verdict, now)
    return verdict


@pytest.mark.parametrize("data", [PLAIN, MIXED], ids=["plain passwords", "one hashed, one plain"])
@pytest.mark.parametrize(
    ("user", "password", "verdict"),
    [
        pytest.param("jane", "hunter2", Accepted(JANE), id="the right password"),
        pytest.param("joe", 'a,"b', Accepted(JOE), id="the right password with a comma and a quote"),
        pytest.param("jane", "hunter3", Rejected(WRONG_PASSWORD, "user jane"), id="a wrong password"),
        pytest.param("jane", "", Rejected(WRONG_PASSWORD, "user jane"), id="no password"),
        pytest.param("jane", "hunter2 ", Rejected(WRONG_PASSWORD, "user jane"), id="a space behind"),
        pytest.param("jane", "x" * 9000, Rejected(WRONG_PASSWORD, "user jane"), id="a long password"),
        pytest.param("jane", "hunter2\0", Rejected(WRONG_PASSWORD, "user jane"), id="what scrypt takes for the same"),
        pytest.param("joe", "hunter2", Rejected(WRONG_PASSWORD, "user joe"), id="somebody else's password"),
        pytest.param("jim", "hunter2", NotMine(UNKNOWN_USER), id="a user nobody knows"),
        pytest.param("Jane", "hunter2", NotMine(UNKNOWN_USER), id="a name in other letters"),
    ],
)
def test_who_knows_the_password_is_the_user(data: bytes, user: str, password: str, verdict: Verdict) -> None:
    assert judged(knowing(data), user, password) == verdict


def test_the_hash_itself_is_no_password() -> None:
    stored = hashed("hunter2").strip('"')
    assert judged(knowing(HASHED), "jane", stored) == Rejected(WRONG_PASSWORD, "user jane")


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(Credentials(), id="nothing"),
        pytest.param(Credentials(bearer=bearer("hunter2")), id="a token"),
        pytest.param(Credentials(basic=UNREADABLE_BASIC), id="what could not be read"),
        pytest.param(basic("", "hunter2"), id="a password without a user"),
    ],
)
@pytest.mark.parametrize("data", [PLAIN, MIXED, b""], ids=["plain", "mixed", "empty file"])
def test_what_is_no_user_with_a_password_is_not_mine(data: bytes, credentials: Credentials) -> None:
    assert knowing(data).authenticate(credentials, {}, NOW, ()) == NotMine()


def outcome(authenticator: PasswordFileAuthenticator, user: str, password: str) -> Outcome:
    chain = judge(basic(user, password), [authenticator], {}, NOW, ("https://here",))
    try:
        pending = next(chain)
        assert pending.deferred.compute is not None
        chain.send(Found(pending.deferred.compute(), NOW))
    except StopIteration as done:
        ended: Outcome = done.value
        return ended
    raise AssertionError("it asks once")


@pytest.mark.parametrize("data", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_what_the_chain_makes_of_it(data: bytes) -> None:
    known = outcome(knowing(data), "jane", "hunter2")
    assert (known.user, known.authenticator) == (JANE.with_groups("system:authenticated"), "password-file")
    assert outcome(knowing(data), "jane", "x").refusals == (RejectedBy("password-file", WRONG_PASSWORD, "user jane"),)
    assert outcome(knowing(data), "jim", "x").refusals == (RejectedBy("basic", "unknown-user"),)


# -- no oracle ---------------------------------------------------------------------------------------------------------


def operations(data: bytes, user: str, password: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What it costs to judge this, by the operations that take time."""
    authenticator, done = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL)), []
    authenticator.replace(data)
    derive = PasswordHash.derive

    class Counted:
        @staticmethod
        def digest(key: bytes, message: bytes, how: object) -> bytes:
            done.append("digest")
            return hmac.digest(key, message, "sha256")

        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            assert len(one) == len(other)
            done.append("compare")
            return hmac.compare_digest(one, other)

    def counted(self: PasswordHash, password: Secret) -> bytes:
        done.append(f"scrypt {self.work}")
        return derive(self, password)

    with monkeypatch.context() as patch:
        patch.setattr(passwordfile, "hmac", Counted)
        patch.setattr(PasswordHash, "derive", counted)
        said = first(authenticator, user, password)
        done.append("in a thread" if isinstance(said, Deferred) else "at once")
        if isinstance(said, Deferred):
            assert said.compute is not None
            said.compute()
    return done


@pytest.mark.parametrize(
    ("data", "cost"),
    [
        pytest.param(PLAIN, ["digest", "compare", "at once"], id="plain passwords cost a digest"),
        pytest.param(
            MIXED, ["in a thread", "scrypt 1024", "compare", "digest", "compare"],
            id="one hash in the file costs everybody a scrypt",
        ),
    ],
)  # fmt: skip
def test_an_unknown_user_costs_what_a_wrong_and_a_right_password_cost(
    data: bytes, cost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = (("jane", "wrong"), ("joe", "wrong"), ("jim", "wrong"), ("jane", "hunter2"), ("joe", 'a,"b'), ("jim", ""))
    assert [operations(data, user, password, monkeypatch) for user, password in tries] == [cost] * len(tries)


def test_hashes_of_different_cost_are_warned_of_and_the_dummy_is_the_costliest(monkeypatch: pytest.MonkeyPatch) -> None:
    data = f"{hashed('a', 10)},jane,1\n{hashed('b', 11)},joe,2\n".encode()
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    (warning,) = authenticator.replace(data)
    assert warning.startswith("hashes differ in their cost")
    assert judged(authenticator, "jane", "a") == Accepted(UserInfo("jane", "1"))
    assert judged(authenticator, "joe", "b") == Accepted(UserInfo("joe", "2"))
    worked = operations(data, "jim", "b", monkeypatch)
    assert "scrypt 2048" in worked


# -- remembering -------------------------------------------------------------------------------------------------------


def test_who_was_accepted_is_remembered_for_a_while() -> None:
    authenticator = knowing(HASHED)
    assert judged(authenticator, "jane", "hunter2") == Accepted(JANE)
    assert first(authenticator, "jane", "hunter2", NOW + TTL - timedelta(microseconds=1)) == Accepted(JANE)
    assert isinstance(first(authenticator, "jane", "hunter2", NOW + TTL), Deferred)


@pytest.mark.parametrize(
    ("user", "password"), [("jane", "wrong"), ("jim", "hunter2")], ids=["a wrong password", "an unknown user"]
)
def test_a_refusal_is_never_remembered(user: str, password: str) -> None:
    authenticator = knowing(HASHED)
    judged(authenticator, user, password)
    assert isinstance(first(authenticator, user, password), Deferred)


def test_what_is_remembered_is_one_user_with_one_password() -> None:
    authenticator = knowing(HASHED)
    judged(authenticator, "jane", "hunter2")
    assert isinstance(first(authenticator, "jane", "hunter"), Deferred)
    assert isinstance(first(authenticator, "janeh", "unter2"), Deferred), "the same bytes, divided elsewhere"


def test_without_a_time_to_remember_nothing_is_remembered() -> None:
    authenticator = knowing(HASHED, timedelta(0))
    judged(authenticator, "jane", "hunter2")
    assert isinstance(first(authenticator, "jane", "hunter2"), Deferred)


def test_those_who_send_the_same_share_one_computation_and_others_do_not() -> None:
    authenticator = knowing(HASHED)
    said = [first(authenticator, *pair) for pair in (("jane", "x"), ("jane", "x"), ("jane", "y"), ("jim", "x"))]
    keys = [one.key for one in said if isinstance(one, Deferred)]
    assert keys[0] == keys[1]
    assert len({*keys}) == 3
    assert all(key is not None and len(key) == 32 for key in keys)


# -- the file changes --------------------------------------------------------------------------------------------------


def test_a_new_file_forgets_who_was_accepted() -> None:
    authenticator = knowing(HASHED)
    judged(authenticator, "jane", "hunter2")
    authenticator.replace(f"{hashed('other')},jane,42\n".encode())
    assert judged(authenticator, "jane", "hunter2") == Rejected(WRONG_PASSWORD, "user jane")
    assert judged(authenticator, "jane", "other") == Accepted(UserInfo("jane", "42"))


def test_what_is_found_out_under_the_old_file_is_of_no_use_under_the_new_one() -> None:
    authenticator = knowing(HASHED)
    under_way = first(authenticator, "jane", "hunter2")
    assert isinstance(under_way, Deferred)
    assert under_way.compute is not None
    assert under_way.on_verdict is not None
    authenticator.replace(f"{hashed('other')},jane,42\n".encode())
    under_way.on_verdict(under_way.compute() or NotMine(), NOW)
    asked = first(authenticator, "jane", "hunter2")
    assert isinstance(asked, Deferred)
    assert asked.key != under_way.key, "nor does anybody new wait for it"


def test_a_wrong_file_changes_nothing() -> None:
    authenticator = knowing(PLAIN)
    with pytest.raises(ConfigError):
        authenticator.replace(b"other,jane,42\nbroken\n")
    assert judged(authenticator, "jane", "hunter2") == Accepted(JANE)


@pytest.mark.parametrize(
    ("data", "warnings"),
    [
        pytest.param(b",jane,42\n", ("line 1: the password is empty, the line is skipped",), id="an empty password"),
        pytest.param(
            b"a,jane,1\nb,jane,2\n", ("line 2: the user is in a line before, too; this line counts",), id="a user twice"
        ),
        pytest.param(
            b"\xef\xbb\xbfa,jane,1\n",
            (
                "line 1: the file begins with a byte order mark, which is part of the first password; save it without one",
            ),
            id="a byte order mark",
        ),
    ],
)
def test_lines_that_do_not_count_are_warned_of(data: bytes, warnings: tuple[str, ...]) -> None:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    assert authenticator.replace(data) == warnings


def test_of_two_lines_with_one_user_the_last_counts() -> None:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    authenticator.replace(b"a,jane,1\nb,jane,2,dev\n")
    assert judged(authenticator, "jane", "a") == Rejected(WRONG_PASSWORD, "user jane")
    assert judged(authenticator, "jane", "b") == Accepted(UserInfo("jane", "2", ("dev",)))


def test_nobody_has_an_empty_password() -> None:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    authenticator.replace(b",jane,42\n")
    assert judged(authenticator, "jane", "") == NotMine(UNKNOWN_USER)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(
            hashed("hunter2").strip('"').encode() + b",jane,42\n", "line 1: what begins with $scrypt$ is not a hash",
            id="a hash without quotes, which is three columns",
        ),
        pytest.param(b"a,b,c\n$scrypt$,jane,42\n", "line 2: what begins with $scrypt$", id="a hash cut off"),
        pytest.param(
            b'"$scrypt$ln=20,r=8,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",j,1\n', "line 1: the hash is too costly",
            id="a costly hash",
        ),
        pytest.param(b"hunter2,jane\n", "line 1: it has 2 of 3 columns; give password,user,uid", id="two columns"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line_and_without_what_is_in_it(data: bytes, why: str) -> None:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    with pytest.raises(ConfigError) as refused:
        authenticator.replace(data)
    assert str(refused.value).startswith(why)
    assert "hunter2" not in str(refused.value)
    assert "jane" not in str(refused.value)


def test_no_password_is_shown() -> None:
    authenticator = knowing(MIXED)
    assert "hunter2" not in repr(vars(authenticator))
    assert "hunter2" not in repr(first(authenticator, "jane", "hunter2"))


@given(st.binary(max_size=60), st.text(max_size=10), st.text(max_size=10))
def test_no_file_and_no_password_break_it(data: bytes, user: str, password: str) -> None:
    authenticator = PasswordFileAuthenticator(bytes(KEY_BYTES), VerdictCache(bytes(KEY_BYTES), TTL))
    try:
        authenticator.replace(data)
    except ConfigError:
        authenticator.replace(b"a,b,c")
    assert isinstance(judged(authenticator, user, password), NotMine | Rejected | Accepted)


@pytest.mark.parametrize(
    ("after", "is_same"),
    [
        pytest.param(MIXED, True, id="another line was added"),
        pytest.param(f'{hashed("new")},jane,42,"dev,ops"\n'.encode(), False, id="the hash is another one"),
        pytest.param(f"{hashed('hunter2')},jane,42,dev\n".encode(), False, id="the groups are other ones"),
        pytest.param(f"{hashed('hunter2')},joe,42\n".encode(), False, id="the user is gone"),
    ],
)
def test_an_acceptance_stands_on_its_line(after: bytes, is_same: bool) -> None:
    authenticator = knowing(HASHED)
    before = first(authenticator, "jane", "hunter2")
    assert isinstance(before, Deferred)
    assert before.compute is not None
    accepted = before.compute()
    assert isinstance(accepted, Accepted)
    assert accepted.basis == before.basis != b""
    authenticator.replace(after)
    now = first(authenticator, "jane", "hunter2")
    assert isinstance(now, Deferred)
    assert (now.basis == accepted.basis) is is_same
