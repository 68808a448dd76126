"""Authenticators of the operator's own: what they are shown, and that nothing but a whole answer lets anybody in.

No event loop: a coroutine that waits for nothing is driven by hand.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn import verdict
from mooring.authn.chain import Found, Outcome, judge
from mooring.authn.credentials import SECRET, UNREADABLE_BASIC, Basic, Credentials, SchemeCredential
from mooring.authn.custom import MAX_DETAIL, MAX_USER, CustomAuthenticator, read
from mooring.authn.plugin import NotMine, Offered, Rejected, User
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, Verdict
from mooring.authn.verdictcache import VerdictCache
from mooring.identity import AUTHENTICATED, UserInfo
from mooring.pki.jwt.token import MAX_CLAIMED_BYTES
from mooring.secret import Secret

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TTL = timedelta(seconds=10)
BY_PASSWORD = Offered(user="jane", password=Secret("correct horse"), now=NOW)
BY_TOKEN = Offered(token=Secret("opaque"), now=NOW, audiences=("api",))
JANE = UserInfo("jane")


class Guest:
    """Answers as told, and keeps what it was shown."""

    def __init__(self, said: object = None) -> None:
        self.said = said
        self.shown: list[Offered] = []

    async def ask(self, offered: Offered) -> object:
        self.shown.append(offered)
        return self.said


def contained(
    guest: Guest, ttl: timedelta = TTL, name: str = "ldap", schemes: tuple[str, ...] = ("bearer", "basic")
) -> CustomAuthenticator:
    return CustomAuthenticator(name, guest.ask, timedelta(seconds=3), VerdictCache(b"k" * 32, ttl), schemes)


def driven(waited: Awaitable[Verdict | None]) -> Verdict | None:
    """The end of a coroutine that waits for nothing."""
    steps = waited.__await__()
    with pytest.raises(StopIteration) as ended:
        next(steps)
    found: Verdict | None = ended.value.value
    return found


def first(authenticator: CustomAuthenticator, credentials: Credentials, now: datetime = NOW) -> Any:
    return authenticator.authenticate(credentials, {}, now, ("api",))


def asked(authenticator: CustomAuthenticator, credentials: Credentials, now: datetime = NOW) -> Verdict | None:
    """What comes out when what it wants found out is found out."""
    at_once: FirstVerdict = first(authenticator, credentials, now)
    if not isinstance(at_once, Deferred):
        return at_once
    assert at_once.coroutine is not None
    found = driven(at_once.coroutine())
    assert found is not None
    if at_once.on_verdict is not None:
        at_once.on_verdict(found, now)
    return found


TOKEN = Credentials(bearer=Secret("opaque"))
TICKET = Credentials(other=SchemeCredential("negotiate", Secret("YII=")))
PASSWORD = Credentials(basic=Basic("jane", Secret("correct horse")))


@pytest.mark.parametrize(
    ("credentials", "shown"),
    [
        pytest.param(TOKEN, BY_TOKEN, id="a token is shown, and whom it should be good for"),
        pytest.param(
            PASSWORD,
            Offered(user="jane", password=Secret("correct horse"), now=NOW, audiences=("api",)),
            id="a user name and a password are shown",
        ),
    ],
)
def test_what_an_authenticator_is_shown(credentials: Credentials, shown: Offered) -> None:
    guest = Guest(User("jane"))
    assert asked(contained(guest), credentials) == Accepted(JANE)
    assert guest.shown == [shown]
    assert "correct horse" not in repr(guest.shown)
    assert "opaque" not in repr(guest.shown)


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(Credentials(), id="no credential"),
        pytest.param(Credentials(peer=(b"certificate",)), id="a client certificate"),
        pytest.param(Credentials(bearer=Secret("")), id="an empty token"),
        pytest.param(Credentials(basic=UNREADABLE_BASIC), id="a Basic that cannot be read"),
        pytest.param(Credentials(basic=Basic("", Secret("password"))), id="a password without a user"),
        pytest.param(
            Credentials(basic=Basic("jane", Secret(""))), id="an empty password, which a directory would take for none"
        ),
    ],
)
def test_what_an_authenticator_is_not_shown(credentials: Credentials) -> None:
    guest = Guest(User("jane"))
    assert first(contained(guest), credentials) == verdict.NotMine()
    assert guest.shown == []


@pytest.mark.parametrize(
    ("schemes", "credentials", "shown"),
    [
        pytest.param(
            ("negotiate",),
            TICKET,
            Offered(scheme="negotiate", credential=Secret("YII="), now=NOW, audiences=("api",)),
            id="a credential of its scheme",
        ),
        pytest.param(("negotiate",), TOKEN, None, id="no token"),
        pytest.param(("negotiate",), PASSWORD, None, id="no password"),
        pytest.param(("bearer", "basic"), TICKET, None, id="no credential of another scheme"),
        pytest.param(("basic",), TOKEN, None, id="passwords and no token"),
        pytest.param(("bearer",), PASSWORD, None, id="tokens and no password"),
        pytest.param(
            ("negotiate",),
            Credentials(other=SchemeCredential("negotiate", Secret(""))),
            None,
            id="nothing that is empty",
        ),
    ],
)
def test_an_authenticator_is_shown_the_schemes_that_it_names(
    schemes: tuple[str, ...], credentials: Credentials, shown: Offered | None
) -> None:
    guest = Guest(User("jane"))
    asked(contained(guest, schemes=schemes), credentials)
    assert guest.shown == ([] if shown is None else [shown])
    assert "YII=" not in repr(guest.shown)


def test_a_credential_of_another_scheme_is_shown_each_time_and_shared_with_no_other_request() -> None:
    guest = Guest(User("jane"))
    authenticator = contained(guest, schemes=("negotiate",))
    for _ in range(2):
        later = first(authenticator, TICKET)
        assert (later.key, later.on_verdict, later.deadline) == (None, None, 3.0)
        assert driven(later.coroutine()) == Accepted(JANE)
    assert len(guest.shown) == 2


def test_a_token_that_is_too_long_to_tell_whose_it_is_is_not_shown() -> None:
    guest = Guest(User("jane"))
    longest = "x" * MAX_CLAIMED_BYTES
    assert first(contained(guest), Credentials(bearer=Secret(longest + "x"))) == verdict.NotMine("token-too-long")
    assert asked(contained(guest), Credentials(bearer=Secret(longest))) == Accepted(JANE)


def test_a_detail_that_repeats_a_credential_is_left_out() -> None:
    offered = Offered(scheme="negotiate", credential=Secret("YII="), now=NOW)
    said = read(Rejected("expired", "the ticket YII= expired"), offered)
    assert said == verdict.Rejected("expired", "it repeated the secret, which is left out")


def test_it_judges_secrets_under_the_name_of_the_configuration_within_its_deadline() -> None:
    authenticator = contained(Guest(), name="company-ldap")
    assert (authenticator.name, authenticator.judges) == ("company-ldap", SECRET)
    assert first(authenticator, TOKEN).deadline == 3.0


def test_an_acceptance_is_remembered_for_its_time_and_not_longer() -> None:
    guest = Guest(User("jane"))
    authenticator = contained(guest)
    for seconds, calls in ((0, 1), (9.9, 1), (10, 2)):
        assert asked(authenticator, TOKEN, NOW + timedelta(seconds=seconds)) == Accepted(JANE)
        assert len(guest.shown) == calls
    assert asked(authenticator, Credentials(bearer=Secret("other"))) == Accepted(JANE)
    assert len(guest.shown) == 3, "another token is another question"


@pytest.mark.parametrize(
    ("said", "ttl"),
    [
        pytest.param(User("jane"), timedelta(0), id="an acceptance, when nothing is to be remembered"),
        pytest.param(Rejected("wrong-password"), TTL, id="a refusal"),
        pytest.param(NotMine("unknown-user"), TTL, id="what it does not know"),
        pytest.param(None, TTL, id="a failure"),
    ],
)
def test_what_is_not_remembered(said: object, ttl: timedelta) -> None:
    guest = Guest(said)
    authenticator = contained(guest, ttl)
    assert asked(authenticator, TOKEN) == asked(authenticator, TOKEN)
    assert len(guest.shown) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(PASSWORD, Credentials(basic=Basic("jan", Secret("ecorrect horse"))), id="cut elsewhere"),
        pytest.param(PASSWORD, Credentials(basic=Basic("jane", Secret("correct"))), id="another password"),
        pytest.param(PASSWORD, Credentials(basic=Basic("joe", Secret("correct horse"))), id="another user"),
        pytest.param(Credentials(basic=Basic("opaque", Secret("x"))), TOKEN, id="a password and a token"),
    ],
)
def test_two_credentials_share_no_answer(one: Credentials, other: Credentials) -> None:
    authenticator = contained(Guest())
    assert first(authenticator, one).key == first(authenticator, one).key
    assert first(authenticator, one).key != first(authenticator, other).key


def test_who_is_asked_for_other_audiences_is_asked_again() -> None:
    authenticator = contained(Guest())
    keys = {
        authenticator.authenticate(TOKEN, {}, NOW, audiences).key  # type: ignore[union-attr] # all are Deferred
        for audiences in ((), ("api",), ("other",), ("api", "other"), ("\ud800",))
    }
    assert len(keys) == 5


WHOLE = User("jane", "42", ["dev", "ops", "dev"], {"company.example/department": ["ships"]})


@pytest.mark.parametrize(
    ("said", "user"),
    [
        pytest.param(User("jane"), JANE, id="a name is enough"),
        pytest.param(
            WHOLE,
            UserInfo("jane", "42", ("dev", "ops"), MappingProxyType({"company.example/department": ("ships",)})),
            id="uid, groups, each once, and extra",
        ),
        pytest.param(User("jane", groups=("dev",)), UserInfo("jane", groups=("dev",)), id="groups as a tuple"),
        pytest.param(User("Jürgen Weiß"), UserInfo("Jürgen Weiß"), id="a name with spaces and letters of any language"),
        pytest.param(User("systems:jane", groups=["a-system:b"]), UserInfo("systems:jane", groups=("a-system:b",)),
                     id="system: elsewhere than at the beginning"),
        pytest.param(User("jane", extra={"mykubernetes.io/a": []}), UserInfo("jane", extra={"mykubernetes.io/a": ()}),
                     id="a key of a domain that only ends alike"),
        pytest.param(User("j" * MAX_USER), UserInfo("j" * MAX_USER), id="as much as a user may have"),
    ],
)  # fmt: skip
def test_who_is_let_in(said: User, user: UserInfo) -> None:
    assert read(said, BY_PASSWORD) == Accepted(user)
    assert read(said, BY_TOKEN) == Accepted(user)


def broken(**fields: Any) -> User:
    """A user as no type checker would allow it."""
    return User(**{"username": "jane", **fields})


@pytest.mark.parametrize(
    ("said", "reason", "detail"),
    [
        pytest.param(None, "failed", "it answered NoneType, which is no User, NotMine or Rejected", id="nothing"),
        pytest.param(True, "failed", "it answered bool, which is no User, NotMine or Rejected", id="yes"),
        pytest.param("jane", "failed", "it answered str, which is no User, NotMine or Rejected", id="a name"),
        pytest.param(User, "failed", "it answered type, which is no User, NotMine or Rejected", id="a class"),
        pytest.param(JANE, "failed", "it answered UserInfo, which is no User, NotMine or Rejected",
                     id="a user of another kind"),
        pytest.param(Accepted(UserInfo("jane", groups=("system:masters",))), "failed",
                     "it answered Accepted, which is no User, NotMine or Rejected", id="a verdict of the chain"),
        pytest.param(verdict.NotMine(), "failed", "it answered NotMine, which is no User, NotMine or Rejected",
                     id="a verdict that only looks like one of its own"),
        pytest.param(broken(username=""), "failed", "the user name is no printable text", id="no name"),
        pytest.param(broken(username=None), "failed", "the user name is no printable text", id="a name that is None"),
        pytest.param(broken(username=b"jane"), "failed", "the user name is no printable text", id="a name in bytes"),
        pytest.param(broken(username="ja\nne"), "failed", "the user name is no printable text", id="two lines of name"),
        pytest.param(broken(username="\ud800"), "failed", "the user name is no printable text", id="half a character"),
        pytest.param(broken(uid=42), "failed", "the uid is no printable text", id="a uid that is a number"),
        pytest.param(broken(groups="admins"), "failed", "the groups are no list of printable texts",
                     id="one group, which would be six of a letter each"),
        pytest.param(broken(groups=["dev", ""]), "failed", "the groups are no list of printable texts", id="an empty group"),
        pytest.param(broken(groups=["dev", None]), "failed", "the groups are no list of printable texts",
                     id="a group that is None"),
        pytest.param(broken(groups=iter(["dev"])), "failed", "the groups are no list of printable texts",
                     id="groups that can be read once"),
        pytest.param(broken(extra=[("a", "b")]), "failed", "the extra is no mapping of printable texts to lists of them",
                     id="extra that is a list"),
        pytest.param(broken(extra={"a": "b"}), "failed", "the extra is no mapping of printable texts to lists of them",
                     id="extra with a text for a list"),
        pytest.param(broken(extra={1: ["b"]}), "failed", "the extra is no mapping of printable texts to lists of them",
                     id="extra under a number"),
        pytest.param(broken(extra={"": ["b"]}), "failed", "a key of the extra is empty or not in lower case",
                     id="extra under no name"),
        pytest.param(broken(extra={"Team": ["b"]}), "failed", "a key of the extra is empty or not in lower case",
                     id="extra under a name that headers cannot carry"),
        pytest.param(broken(uid="u" * MAX_USER), "failed", "the user has more than 65536 characters", id="a huge uid"),
        pytest.param(broken(username="system:admin"), "reserved-name", "the user name begins with system:",
                     id="a name of the cluster's own"),
        pytest.param(broken(username="system:node:a"), "reserved-name", "the user name begins with system:", id="a node"),
        pytest.param(broken(groups=["dev", "system:masters"]), "reserved-name", "a group begins with system:",
                     id="the group that may do everything"),
        pytest.param(broken(groups=["system:authenticated"]), "reserved-name", "a group begins with system:",
                     id="a group that is given by others"),
        pytest.param(broken(extra={"authentication.kubernetes.io/node-name": ["n"]}), "reserved-name",
                     "a key of the extra is one of kubernetes.io or k8s.io", id="a binding to a node"),
        pytest.param(broken(extra={"k8s.io": ["n"]}), "reserved-name",
                     "a key of the extra is one of kubernetes.io or k8s.io", id="the domain itself"),
        pytest.param(Rejected(""), "failed",
                     "its reason is no code of at most 63 lower case letters, digits and dashes", id="no reason"),
        pytest.param(Rejected("Wrong password!"), "failed",
                     "its reason is no code of at most 63 lower case letters, digits and dashes", id="a sentence"),
        pytest.param(Rejected("w" * 64), "failed",
                     "its reason is no code of at most 63 lower case letters, digits and dashes", id="a long reason"),
        pytest.param(NotMine("No."), "failed",
                     "its reason is no code of at most 63 lower case letters, digits and dashes", id="a reason to ignore"),
        pytest.param(NotMine(None), "failed",  # type: ignore[arg-type] # what guests do
                     "its reason is no code of at most 63 lower case letters, digits and dashes", id="a reason None"),
        pytest.param(Rejected("locked", "since 3 o'clock"), "locked", "since 3 o'clock", id="a refusal with its reason"),
        pytest.param(Rejected("locked", "one\nline\x1b[2J"), "locked", "one line [2J", id="a detail of one line"),
        pytest.param(Rejected("locked", "d" * 300), "locked", "d" * MAX_DETAIL, id="a detail that is cut"),
        pytest.param(Rejected("locked", 3), "locked", "", id="a detail that is no text"),  # type: ignore[arg-type] # likewise
        pytest.param(Rejected("locked", "bind with correct horse"), "locked", "it repeated the secret, which is left out",
                     id="a detail with the password"),
    ],
)  # fmt: skip
def test_who_is_not_let_in(said: object, reason: str, detail: str) -> None:
    assert read(said, BY_PASSWORD) == verdict.Rejected(reason, detail)


def test_a_detail_does_not_repeat_the_token() -> None:
    told = read(Rejected("bad", "token opaque"), BY_TOKEN)
    assert told == verdict.Rejected("bad", "it repeated the secret, which is left out")


@pytest.mark.parametrize("said", [NotMine(), NotMine("unknown-user")], ids=["silently", "with a reason"])
def test_what_it_does_not_know_is_left_to_others(said: NotMine) -> None:
    assert read(said, BY_PASSWORD) == verdict.NotMine(said.reason)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.builds(User, ANYTHING, ANYTHING, ANYTHING, ANYTHING) | st.builds(Rejected, ANYTHING, ANYTHING) | ANYTHING)
def test_whatever_it_answers_is_read(said: object) -> None:
    found = read(said, BY_PASSWORD)
    assert isinstance(found, Accepted | verdict.NotMine | verdict.Rejected)
    if isinstance(found, Accepted):
        assert found.user.username
        assert not any(name.startswith("system:") for name in (found.user.username, *found.user.groups))


def through_the_chain(credentials: Credentials, *guests: Guest) -> Outcome:
    chain = judge(
        credentials, [contained(guest, name=f"own{place}") for place, guest in enumerate(guests)], {}, NOW, ()
    )
    try:
        pending = next(chain)
        while True:
            assert pending.deferred.coroutine is not None
            pending = chain.send(Found(driven(pending.deferred.coroutine()), NOW))
    except StopIteration as ended:
        outcome: Outcome = ended.value
        return outcome


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(None, id="failed"),
        pytest.param(Rejected("directory-unreachable"), id="could not find out"),
        pytest.param(Rejected("wrong-password"), id="refused"),
        pytest.param(NotMine(), id="knew nothing"),
    ],
)
def test_the_next_one_is_asked_whatever_the_first_did(said: object) -> None:
    outcome = through_the_chain(PASSWORD, Guest(said), Guest(User("jane", groups=["dev"])))
    assert outcome.user == UserInfo("jane", groups=("dev", AUTHENTICATED))
    assert outcome.authenticator == "own1"


def test_whoever_is_accepted_first_is_who_asks() -> None:
    second = Guest(User("joe"))
    assert through_the_chain(PASSWORD, Guest(User("jane")), second).user == UserInfo("jane", groups=(AUTHENTICATED,))
    assert second.shown == []
