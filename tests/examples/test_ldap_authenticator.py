"""The LDAP example against a real directory: accepted logins, every rejection, and the requests that reach the directory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.authn.custom import read
from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, Secret, User
from mooring.authn.verdict import Accepted
from tests.support.directory import (
    BASE,
    JANE_ID,
    NO_SLAPD,
    PEOPLE,
    PEOPLE_BASE,
    SERVICE,
    SERVICE_PASSWORD,
    SLAPD,
    Directory,
)
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # ldap3 uses names that pyasn1 has renamed
    from examples.ldap_authenticator import MAX_NAME, NOBODY, LdapAuthenticator

pytestmark = pytest.mark.skipif(SLAPD is None, reason=NO_SLAPD)
JANE = User("ldap:jane", JANE_ID, ["ldap:captains", "ldap:sailors"])


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA("directory", datetime.now(UTC))


@pytest.fixture(scope="module")
def directory(ca: ThrowawayCA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    with Directory(ca, tmp_path_factory.mktemp("directory") / "slapd") as running:
        yield running


@pytest.fixture(params=["ldaps", "StartTLS"])
def options(directory: Directory, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**directory.options, "url": directory.ldaps if request.param == "ldaps" else directory.ldap}


def authenticate(options: dict[str, Any], user: str, password: str) -> Result:
    offered = Offered(user=user, password=Secret(password), now=datetime.now(UTC))
    return LdapAuthenticator(options).authenticate(offered)


@pytest.mark.parametrize(
    ("user", "password", "result"),
    [
        pytest.param("jane", PEOPLE["jane"], JANE, id="a user with groups comes in"),
        pytest.param("JANE", PEOPLE["jane"], JANE, id="typed otherwise, it is the same user"),
        pytest.param("jane ", PEOPLE["jane"], JANE, id="with a space behind, too"),
        pytest.param(
            "jane", PEOPLE["joe"], Rejected("ldap-wrong-password", "invalidCredentials"), id="a password of another"
        ),
        pytest.param(
            "jane", "*", Rejected("ldap-wrong-password", "invalidCredentials"), id="a star is a password like others"
        ),
        pytest.param("jane", "", NotMine("no-ldap-name"), id="an empty password is no password"),
        pytest.param(
            "jane",
            "\u00ad",
            Rejected("ldap-wrong-password", "invalidCredentials"),
            id="a soft hyphen, of which the preparation of texts leaves nothing, is wrong",
        ),
        pytest.param("jane", "\0", Rejected("ldap-wrong-password", "invalidCredentials"), id="a NUL is wrong"),
        pytest.param("nobody", "any", NotMine("ldap-unknown-user"), id="a user who is not there"),
        pytest.param(
            "locked", PEOPLE["locked"], Rejected("ldap-wrong-password", "invalidCredentials"), id="a locked account"
        ),
        pytest.param("printer", "ink", NotMine("ldap-unknown-user"), id="an entry that is no person"),
        pytest.param("", "any", NotMine("no-ldap-name"), id="no name"),
        pytest.param("j" * (MAX_NAME + 1), "any", NotMine("no-ldap-name"), id="a name longer than any"),
        pytest.param("*)(uid=*", "any", NotMine("ldap-unknown-user"), id="a filter in the name"),
        pytest.param("jane)(|(uid=*", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="a filter behind the name"),
        pytest.param("*", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="everybody"),
        pytest.param("j*", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="whoever begins with j"),
        pytest.param("jane\x00", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="a NUL behind the name"),
        pytest.param("\\2a", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="a star that is escaped already"),
        pytest.param(f"uid=jane,{PEOPLE_BASE}", PEOPLE["jane"], NotMine("ldap-unknown-user"), id="a DN is no name"),
        pytest.param(
            "mooring", SERVICE_PASSWORD, NotMine("ldap-unknown-user"), id="the service itself is outside the base"
        ),
    ],
)
def test_logins_and_their_verdicts(options: dict[str, Any], user: str, password: str, result: Result) -> None:
    assert authenticate(options, user, password) == result


@pytest.mark.parametrize(
    ("user", "password", "name", "groups"),
    [
        pytest.param(
            "star*", PEOPLE["star*"], "ldap:star*", [], id="with a star in the name and brackets in the password"
        ),
        pytest.param("zoë", PEOPLE["zoë"], "ldap:zoë", [], id="with letters beyond ASCII"),
        pytest.param("smith, john", "comma", "ldap:smith, john", ["ldap:captains"], id="with a comma in the DN"),
        pytest.param("joe", PEOPLE["joe"], "ldap:joe", ["ldap:sailors"], id="in one group"),
    ],
)
def test_names_that_need_care(directory: Directory, user: str, password: str, name: str, groups: list[str]) -> None:
    found = authenticate(directory.options, user, password)
    assert isinstance(found, User)
    assert (found.username, found.groups) == (name, groups)
    offered = Offered(user=user, password=Secret(password), now=datetime.now(UTC))
    assert isinstance(read(found, offered), Accepted), "Mooring takes what the example answers"


@pytest.mark.parametrize(
    ("change", "result"),
    [
        pytest.param({"group-base": ""}, User("ldap:jane", JANE_ID, []), id="without groups"),
        pytest.param({"prefix": "", "uid-attribute": ""}, User("jane", "", ["captains", "sailors"]), id="names as they are"),
        pytest.param({"group-filter": "(&(cn=captains)(member=uid={user},ou=people,dc=ships,dc=example))"},
                     User("ldap:jane", JANE_ID, ["ldap:captains"]), id="groups by user name"),
        pytest.param({"group-attribute": "member", "prefix": "", "group-filter": "(cn=sailors)"},
                     User("jane", JANE_ID, sorted(f"uid={one},{PEOPLE_BASE}" for one in ("jane", "joe"))),
                     id="an attribute of several values"),
        pytest.param({"user-filter": "(!(uid=jane))"}, NotMine("ldap-unknown-user"), id="a filter that leaves her out"),
        pytest.param({"base": f"ou=nowhere,{BASE}"},
                     Rejected("directory-failed", f"searching ou=nowhere,{BASE}: noSuchObject"), id="a base that is not there"),
        pytest.param({"base": "dc=elsewhere"}, Rejected("directory-failed", "searching dc=elsewhere: referral"),
                     id="a base of another server: a referral is not followed"),
        pytest.param({"group-base": f"ou=nowhere,{BASE}"},
                     Rejected("directory-failed", f"searching ou=nowhere,{BASE}: noSuchObject"), id="no base of groups"),
        pytest.param({"bind-dn": f"cn=stranger,{BASE}"},
                     Rejected("directory-failed", f"binding as cn=stranger,{BASE}: invalidCredentials"),
                     id="a service that the directory does not know"),
        pytest.param({"user-attribute": "sn", "user-filter": "(objectClass=person)"}, NotMine("ldap-unknown-user"),
                     id="another attribute"),
        pytest.param({"user-filter": "(objectClass=person"}, Rejected("directory-failed", "LDAPInvalidFilterError"),
                     id="a filter that is none"),
    ],
)  # fmt: skip
def test_options_change_the_verdict(directory: Directory, change: dict[str, Any], result: Result) -> None:
    assert authenticate({**directory.options, **change}, "jane", PEOPLE["jane"]) == result


def test_several_matching_entries_name_no_user(directory: Directory) -> None:
    found = authenticate({**directory.options, "user-attribute": "sn"}, "doe", "any")
    assert found == Rejected("directory-failed", f"searching {PEOPLE_BASE}: sizeLimitExceeded")
    found = authenticate({**directory.options, "user-attribute": "sn", "user-filter": "(uid=j*)"}, "doe", "any")
    assert found == Rejected("directory-failed", "2 entries fit")


def test_an_entry_with_two_names_names_no_user(directory: Directory) -> None:
    found = authenticate(directory.options, "zwei", "two names")
    assert found == Rejected("directory-failed", f"uid=two,{PEOPLE_BASE} has 2 values of uid")


def test_an_unknown_user_takes_the_requests_of_a_wrong_password(directory: Directory) -> None:
    questions = []
    for user in ("jane", "nobody"):
        before = len(directory.log)
        authenticate(directory.options, user, "wrong")
        log = directory.log[before:]
        questions.append(
            [word for line in log.splitlines() for word in ("method=128", "SRCH base", "STARTTLS") if word in line]
        )
    assert questions[0] == questions[1] == ["method=128", "SRCH base", "method=128"]
    assert NOBODY in directory.log


def test_filters_and_passwords_of_callers_do_not_reach_the_directory(directory: Directory) -> None:
    authenticate(directory.options, "*)(uid=*", "hunter2")
    assert "uid=\\2A\\29\\28uid=\\2A" in directory.log.upper().replace("UID", "uid")
    assert "hunter2" not in directory.log


def test_a_token_is_for_others(directory: Directory) -> None:
    offered = Offered(token=Secret("token"), now=datetime.now(UTC))
    before = directory.log
    assert LdapAuthenticator(directory.options).authenticate(offered) == NotMine()
    assert directory.log == before, "it is not asked"


def test_a_password_that_is_no_text_is_rejected(directory: Directory) -> None:
    offered = Offered(user="jane", password=Secret(b"\xff\xfe"), now=datetime.now(UTC))
    assert LdapAuthenticator(directory.options).authenticate(offered) == NotMine("no-ldap-password")


@pytest.mark.parametrize("scheme", ["ldaps", "ldap"])
@pytest.mark.parametrize(
    ("strange_ca", "host"),
    [
        pytest.param(True, "127.0.0.1", id="a certificate of an unknown CA"),
        pytest.param(False, "localhost", id="a certificate of another name"),
    ],
)
def test_nothing_is_sent_to_a_directory_with_a_wrong_certificate(
    ca: ThrowawayCA, tmp_path: Path, scheme: str, strange_ca: bool, host: str
) -> None:
    with Directory(ca, tmp_path / "other", hosts=("127.0.0.1", "directory.example")) as other:
        port = other.tls_port if scheme == "ldaps" else other.port
        options = {**other.options, "url": f"{scheme}://{host}:{port}"}
        if strange_ca:
            (tmp_path / "strange.crt").write_bytes(ThrowawayCA("stranger").certificate_pem)
            options["ca-file"] = str(tmp_path / "strange.crt")
        found = authenticate(options, "jane", PEOPLE["jane"])
        assert isinstance(found, Rejected)
        assert found.reason == "directory-unreachable"
        assert "BIND" not in other.log, "no password was sent"


def test_nothing_is_sent_to_a_directory_without_tls(directory: Directory) -> None:
    found = authenticate({**directory.options, "url": f"ldaps://127.0.0.1:{directory.port}"}, "jane", PEOPLE["jane"])
    assert isinstance(found, Rejected)
    assert found.reason == "directory-unreachable"


def test_a_connection_that_was_lost_is_not_opened_anew_without_tls(directory: Directory) -> None:
    authenticator = LdapAuthenticator({**directory.options, "url": directory.ldap})
    with authenticator._connect() as connection:
        connection.strategy.close()
        with pytest.raises(Exception, match="without TLS"):
            authenticator._bind(connection, SERVICE, SERVICE_PASSWORD.encode())


def test_a_directory_that_is_down_is_a_reason_until_it_is_up(ca: ThrowawayCA, tmp_path: Path) -> None:
    with Directory(ca, tmp_path / "down") as directory:
        directory.stop()
        assert authenticate(directory.options, "jane", PEOPLE["jane"]) == Rejected(
            "directory-unreachable", "LDAPSocketOpenError"
        )
        directory.start()
        assert authenticate(directory.options, "jane", PEOPLE["jane"]) == JANE


def test_a_silent_directory_times_out(ca: ThrowawayCA, tmp_path: Path) -> None:
    with Directory(ca, tmp_path / "slow") as directory:
        directory.freeze()
        try:
            found = authenticate({**directory.options, "timeout": 1}, "jane", PEOPLE["jane"])
        finally:
            directory.thaw()
        assert isinstance(found, Rejected)
        assert found.reason == "directory-unreachable"


def test_the_password_of_the_service_may_change_while_it_runs(directory: Directory, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong")
    authenticator = LdapAuthenticator({**directory.options, "bind-password-file": str(file)})
    offered = Offered(user="jane", password=Secret(PEOPLE["jane"]), now=datetime.now(UTC))
    assert isinstance(authenticator.authenticate(offered), Rejected)
    file.write_text(SERVICE_PASSWORD)
    assert authenticator.authenticate(offered) == JANE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"colour": "red"}, '"colour" is not known; there are base, bind-dn, bind-password-file, ca-file, '
                     "group-attribute, group-base, group-filter, prefix, timeout, uid-attribute, url, user-attribute, "
                     "user-filter", id="an unknown key"),
        pytest.param({"base": 3}, "base: give a text", id="a number for a text"),
        pytest.param({"base": ""}, "base: it is needed", id="no base"),
        pytest.param({"timeout": 0}, "timeout: give whole seconds", id="no time"),
        pytest.param({"timeout": 0.5}, "timeout: give whole seconds", id="half a second"),
        pytest.param({"timeout": True}, "timeout: give whole seconds", id="yes"),
        pytest.param({"url": "http://directory"}, "url: give ldaps://host, or ldap://host, which is used with StartTLS",
                     id="another scheme"),
        pytest.param({"url": "ldaps://"}, "url: give ldaps://host, or ldap://host, which is used with StartTLS", id="no host"),
        pytest.param({"url": "ldaps://directory/dc=example"},
                     "url: give ldaps://host, or ldap://host, which is used with StartTLS", id="a base in the URL"),
        pytest.param({"ca-file": "/nowhere/ca.crt"}, "ca-file: FileNotFoundError", id="no CA"),
        pytest.param({"bind-password-file": "/nowhere"}, "bind-password-file: No such file or directory", id="no password"),
        pytest.param({"bind-password-file": "/dev/null"}, "bind-password-file: it is empty", id="an empty password"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused_at_start(
    directory: Directory, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        LdapAuthenticator({**directory.options, **change})
    assert str(raised.value) == message


def test_a_file_that_holds_no_certificate_is_refused_at_start(directory: Directory) -> None:
    with pytest.raises(ConfigError, match="ca-file: SSLError"):
        LdapAuthenticator({**directory.options, "ca-file": str(directory.password_file)})


def test_a_port_without_a_listener_is_a_reason(directory: Directory) -> None:
    options = {**directory.options, "url": f"ldap://127.0.0.1:{free_port()}"}
    assert authenticate(options, "jane", "any") == Rejected("directory-unreachable", "LDAPSocketOpenError")
