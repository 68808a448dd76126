"""Passwords that a Keystone judges (docs/protocol/authentication.md#removed-authenticators; OpenStack Identity API v3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooring.authn import keystone
from mooring.authn.chain import RejectedBy, authenticate
from mooring.authn.credentials import UNREADABLE_BASIC, Basic, Credentials, bearer
from mooring.authn.keystone import NOT_A_NAME, KeystoneAuthenticator, tokens_url
from mooring.authn.reasons import reasons
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import KEY_BYTES, VerdictCache
from mooring.identity import UserInfo
from mooring.secret import Secret
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse, Wait

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=10)
SUBJECT_TOKEN = "gAAAAABsecret-subject-token"


def described(name: Any = "jane", domain: Any = "Default", uid: Any = "4f2a", **more: Any) -> dict[str, Any]:
    """As Keystone 30.0.0 describes an unscoped token."""
    user = {"domain": {"id": "default", "name": domain}, "id": uid, "name": name, "password_expires_at": None}
    times = {"expires_at": "2026-01-01T01:00:00.000000Z", "issued_at": "2026-01-01T00:00:00.000000Z"}
    return {"token": {"methods": ["password"], "user": user, "audit_ids": ["BgCB4TPYQhq"], **times, **more}}


def answer(status: int = 201, body: Any = None, **headers: str) -> HttpResponse:
    data = body if isinstance(body, bytes) else json.dumps(described() if body is None else body).encode()
    return HttpResponse(status, data, {"x-subject-token": SUBJECT_TOKEN, **headers})


def asking(ttl: timedelta = TTL) -> KeystoneAuthenticator:
    return KeystoneAuthenticator("Default", VerdictCache(bytes(KEY_BYTES), ttl))


def first(
    authenticator: KeystoneAuthenticator, user: str, password: str = "hunter2", now: datetime = NOW
) -> FirstVerdict:
    return authenticator.authenticate(Credentials(basic=Basic(user, Secret(password))), {}, now, ("https://here",))


def talked(said: FirstVerdict, reply: HttpResponse | HttpFailure | None) -> tuple[HttpRequest | Wait, Verdict]:
    """What was asked, and what came of the reply."""
    assert isinstance(said, Deferred)
    assert said.exchange is not None
    talk = said.exchange(NOW)
    asked = next(talk)
    with pytest.raises(StopIteration) as done:
        talk.send(reply)
    verdict = done.value.value
    assert said.on_verdict is not None
    said.on_verdict(verdict, NOW)
    return asked, verdict


def found(reply: HttpResponse | HttpFailure | None, user: str = "jane") -> Verdict:
    return talked(first(asking(), user), reply)[1]


@pytest.mark.parametrize(
    ("user", "name", "domain"),
    [
        pytest.param("jane", "jane", "Default", id="a name alone is of the configured domain"),
        pytest.param("jane@people", "jane", "people", id="a domain behind an @"),
        pytest.param("jane@example.com@Default", "jane@example.com", "Default", id="the last @ counts"),
        pytest.param("jane doe@our people", "jane doe", "our people", id="spaces are part of names"),
        pytest.param("žofie", "žofie", "Default", id="names are Unicode"),
        pytest.param('ja"ne\\', 'ja"ne\\', "Default", id="quotes and backslashes are part of names"),
    ],
)
def test_what_keystone_is_asked(user: str, name: str, domain: str) -> None:
    asked, _ = talked(first(asking(), user, 'pass"wörd\x00'), answer())
    assert isinstance(asked, HttpRequest)
    assert (asked.target, asked.method, asked.url) == ("keystone", "POST", "")
    assert dict(asked.headers) == {"content-type": "application/json", "accept": "application/json"}
    assert json.loads(asked.body or b"") == {
        "auth": {
            "identity": {
                "methods": ["password"],
                "password": {"user": {"name": name, "domain": {"name": domain}, "password": 'pass"wörd\x00'}},
            },
            "scope": "unscoped",
        }
    }
    assert asked.timeout < keystone.DEADLINE <= 10
    assert asked.max_bytes == keystone.MAX_ANSWER


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://keystone.example:5000", "https://keystone.example:5000/v3/auth/tokens?nocatalog"),
        ("https://keystone.example:5000/v3", "https://keystone.example:5000/v3/auth/tokens?nocatalog"),
        ("https://cloud.example/identity/v3/", "https://cloud.example/identity/v3/auth/tokens?nocatalog"),
        ("https://cloud.example/identity", "https://cloud.example/identity/v3/auth/tokens?nocatalog"),
    ],
)
def test_where_keystone_is_asked(url: str, asked: str) -> None:
    assert tokens_url(url) == asked


@pytest.mark.parametrize(
    ("name", "domain", "user"),
    [
        pytest.param("jane", "Default", "jane", id="of the configured domain: the name"),
        pytest.param("jane", "people", "jane@people", id="of another domain: with it"),
        pytest.param(
            "jane@people", "Default", "jane@people@Default", id="a name with an @ is never another domain's user"
        ),
        pytest.param("jane@example.com", "people", "jane@example.com@people", id="nor in another domain"),
        pytest.param("Jane", "Default", "Jane", id="the name is Keystone's, however it was asked for"),
        pytest.param("jane", "default", "jane@default", id="domains differ in case"),
        pytest.param("systemd", "Default", "systemd", id="system without a colon is a name"),
        pytest.param("x:system:masters", "Default", "x:system:masters", id="nor does it count behind something"),
        pytest.param("x" * 255, "d" * 64, "x" * 255 + "@" + "d" * 64, id="the longest"),
    ],
)
def test_who_the_user_is(name: str, domain: str, user: str) -> None:
    assert found(answer(body=described(name, domain))) == Accepted(UserInfo(user, "4f2a"))


@given(st.text(min_size=1, max_size=6), st.text(min_size=1, max_size=4))
@example("a@b", "c")
def test_each_user_of_keystone_has_one_name_and_is_found_by_it(name: str, domain: str) -> None:
    verdict = found(answer(body=described(name, domain)))
    if not isinstance(verdict, Accepted):
        return
    asked, again = talked(first(asking(), verdict.user.username), answer(body=described(name, domain)))
    assert isinstance(asked, HttpRequest)
    sent = json.loads(asked.body or b"")["auth"]["identity"]["password"]["user"]
    assert (sent["name"], sent["domain"]["name"]) == (name, domain)
    assert again == verdict


def test_groups_and_roles_of_keystone_are_none_here() -> None:
    roles = [{"id": "1", "name": "admin"}]
    scoped = described(project={"id": "p", "name": "system:masters"}, roles=roles, groups=["system:masters"])
    assert found(answer(body=scoped)) == Accepted(UserInfo("jane", "4f2a"))


UNREADABLE = Rejected("keystone-answer-unreadable", "it does not describe a token")
UNUSABLE = Rejected("keystone-answer-unreadable", "the user has no name, id and domain that could be used")
RESERVED = Rejected("reserved-name", "the name begins with system:")


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        pytest.param(answer(401), Rejected("wrong-user-or-password"), id="401 does not say which was wrong"),
        pytest.param(
            answer(401, **{"openstack-auth-receipt": "gAAAAA"}),
            Rejected("needs-more-than-a-password", "Keystone wants another factor of this user"),
            id="401 with a receipt wants another factor",
        ),
        pytest.param(answer(403), Rejected("keystone-forbids"), id="403"),
        pytest.param(
            answer(404), Rejected("keystone-not-found", "there is no Identity API v3 at the URL"), id="404"
        ),
        pytest.param(answer(429), Rejected("keystone-busy"), id="429"),
        pytest.param(answer(500), Rejected("keystone-failed", "status 500"), id="500"),
        pytest.param(answer(503), Rejected("keystone-failed", "status 503"), id="503"),
        pytest.param(answer(200), Rejected("keystone-unexpected-status", "status 200"), id="200 is no token"),
        pytest.param(answer(300), Rejected("keystone-unexpected-status", "status 300"), id="300 lists versions"),
        pytest.param(answer(302), Rejected("keystone-unexpected-status", "status 302"), id="302 is not followed"),
        pytest.param(answer(400), Rejected("keystone-unexpected-status", "status 400"), id="400"),
        pytest.param(
            HttpFailure(UNREACHABLE, "no answer within 5 s"),
            Rejected("keystone-unreachable", "no answer within 5 s"), id="no answer",
        ),
        pytest.param(None, Rejected("keystone-unreachable", ""), id="nothing at all"),
        pytest.param(answer(body=b""), UNREADABLE, id="an empty body"),
        pytest.param(answer(body=b"<html>"), UNREADABLE, id="HTML"),
        pytest.param(answer(body=b"\xff"), UNREADABLE, id="bytes that are no text"),
        pytest.param(answer(body=b'{"token":{"user":{"name":"\xff"}}}'), UNREADABLE, id="a name that is no text"),
        pytest.param(answer(body=b"[" * 60_000), UNREADABLE, id="a tower of brackets"),
        pytest.param(answer(body={}), UNREADABLE, id="no token"),
        pytest.param(answer(body={"token": {}}), UNREADABLE, id="no user"),
        pytest.param(answer(body={"token": {"user": {"id": "1", "name": "jane"}}}), UNREADABLE, id="no domain"),
        pytest.param(answer(body={"access": {"user": {"name": "jane"}}}), UNREADABLE, id="the form of v2.0"),
        pytest.param(answer(body=described(7)), UNREADABLE, id="a number as name"),
        pytest.param(answer(body=described(None)), UNREADABLE, id="no name"),
        pytest.param(answer(body=described("")), UNUSABLE, id="an empty name"),
        pytest.param(answer(body=described("x" * 256)), UNUSABLE, id="a name that is too long"),
        pytest.param(answer(body=described("ja\nne")), UNUSABLE, id="a line end in the name"),
        pytest.param(answer(body=described("jane\u202e")), UNUSABLE, id="what turns the name around"),
        pytest.param(answer(body=described(domain="")), UNUSABLE, id="an empty domain"),
        pytest.param(answer(body=described(domain="a@b")), UNUSABLE, id="an @ in the domain"),
        pytest.param(answer(body=described(domain="d" * 65)), UNUSABLE, id="a domain that is too long"),
        pytest.param(answer(body=described(uid="")), UNUSABLE, id="no id"),
        pytest.param(answer(body=described("system:admin")), RESERVED, id="a name of the cluster's own"),
        pytest.param(answer(body=described("system:node:n1", "people")), RESERVED, id="also of another domain"),
        pytest.param(answer(body=described("system:")), RESERVED, id="also an empty one"),
    ],
)  # fmt: skip
def test_what_is_no_good_answer_is_a_refusal(reply: HttpResponse | HttpFailure | None, verdict: Rejected) -> None:
    assert found(reply) == verdict
    assert verdict.reason in reasons()


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(Credentials(), id="nothing"),
        pytest.param(Credentials(bearer=bearer("hunter2")), id="a token"),
        pytest.param(Credentials(basic=UNREADABLE_BASIC), id="what could not be read"),
    ],
)
def test_what_is_no_user_with_a_password_is_not_mine(credentials: Credentials) -> None:
    assert asking().authenticate(credentials, {}, NOW, ()) == NotMine()


@pytest.mark.parametrize(
    ("user", "password"),
    [
        pytest.param("@people", "x", id="a domain without a user"),
        pytest.param("jane@", "x", id="a user with an empty domain"),
        pytest.param("x" * 256, "x", id="a name that is too long"),
        pytest.param("jane@" + "d" * 65, "x", id="a domain that is too long"),
        pytest.param("ja\tne", "x", id="a control character"),
        pytest.param("jane", "x" * 4097, id="a password that is too long"),
    ],
)
def test_what_keystone_cannot_know_it_is_not_asked(user: str, password: str) -> None:
    assert first(asking(), user, password) == NotMine(NOT_A_NAME)
    offered = Credentials(basic=Basic(user, Secret(password)))
    assert authenticate(offered, [asking()], {}, NOW, ()).refusals == (RejectedBy("basic", "no-keystone-name"),)


# -- remembering -------------------------------------------------------------------------------------------------------


def test_who_was_accepted_is_remembered_for_a_while() -> None:
    authenticator = asking()
    talked(first(authenticator, "jane"), answer())
    assert first(authenticator, "jane", now=NOW + TTL - timedelta(microseconds=1)) == Accepted(UserInfo("jane", "4f2a"))
    assert isinstance(first(authenticator, "jane", now=NOW + TTL), Deferred)
    assert isinstance(first(authenticator, "jane", "other"), Deferred)
    assert isinstance(first(authenticator, "jane@Default"), Deferred)


@pytest.mark.parametrize(
    "reply",
    [answer(401), answer(503), HttpFailure(UNREACHABLE, "down"), answer(body={})],
    ids=["wrong", "broken", "down", "odd"],
)
def test_a_refusal_is_never_remembered(reply: HttpResponse | HttpFailure) -> None:
    authenticator = asking()
    talked(first(authenticator, "jane"), reply)
    assert isinstance(first(authenticator, "jane"), Deferred)


def test_without_a_time_to_remember_nothing_is_remembered() -> None:
    authenticator = asking(timedelta(0))
    talked(first(authenticator, "jane"), answer())
    assert isinstance(first(authenticator, "jane"), Deferred)


def test_who_was_accepted_can_be_forgotten() -> None:
    authenticator = asking()
    talked(first(authenticator, "jane"), answer())
    authenticator.forget()
    assert isinstance(first(authenticator, "jane"), Deferred)


def test_those_who_send_the_same_share_one_asking() -> None:
    authenticator = asking()
    said = [first(authenticator, *pair) for pair in (("jane", "x"), ("jane", "x"), ("jane", "y"), ("janex", ""))]
    keys = [one.key for one in said if isinstance(one, Deferred)]
    assert keys[0] == keys[1]
    assert len({*keys}) == 3


def test_neither_the_password_nor_keystones_token_is_shown() -> None:
    said = first(asking(), "jane")
    asked, verdict = talked(said, answer())
    shown = repr((said, asked, verdict, answer(), answer(401)))
    assert "hunter2" not in shown
    assert SUBJECT_TOKEN not in shown


@given(
    st.integers(100, 599),
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.dictionaries(st.sampled_from(["token", "user", "domain", "name", "id"]), inner, max_size=4)
            | st.lists(inner, max_size=2)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
)
def test_whatever_keystone_answers_is_a_verdict(status: int, body: bytes) -> None:
    assert isinstance(found(HttpResponse(status, body)), Accepted if status == 201 and _complete(body) else Rejected)


def _complete(body: bytes) -> bool:
    try:
        user = json.loads(body)["token"]["user"]
        texts = (user["name"], user["id"], user["domain"]["name"])
    except (ValueError, TypeError, KeyError):
        return False
    return (
        all(isinstance(text, str) and text and text.isprintable() for text in texts)
        and not user["name"].startswith("system:")
        and "@" not in texts[2]
    )
