"""Issuers at work: when providers are asked, and when a changed configuration takes over.

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from mooring.authn.anonymous import AnonymousAccess
from mooring.authn.claims import Claim, Identification, identify
from mooring.authn.credentials import Credentials
from mooring.authn.oidc.authenticationconfig import parse
from mooring.authn.oidc.authenticator import IssuerConfig, OidcAuthenticator
from mooring.authn.verdict import Accepted, Rejected
from mooring.controlplane.datadirectory import Reloading
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.server.authentication.oidc import (
    HEALTHY_SECONDS,
    LINGER_SECONDS,
    RETRY_SECONDS,
    FollowedConfiguration,
    Issuers,
)
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse
from tests.support.authnhost import AuthnHost, configured
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.manualclock import ManualClock, settle
from tests.support.testca import ThrowawayCA

KEY = key_for("ES256")
ISSUER, OTHER = "https://one.example", "https://two.example"
CA = ThrowawayCA()


def config(url: str = ISSUER, prefix: str = "", ca_pem: bytes = b"") -> IssuerConfig:
    identification = Identification(username=Claim("sub", prefix))
    return IssuerConfig(url=url, audiences=("kubernetes",), identification=identification, ca_pem=ca_pem)


class Room:
    """Issuers over a clock that stands still, and providers that answer when they are told to."""

    def __init__(self, *configs: IssuerConfig, **flags: Any) -> None:
        self.config = configured(**flags)
        self.clock = ManualClock()
        self.around = AuthnHost(self.config, self.clock)
        self.targets, self.stage = self.around.targets, self.around.stage
        self.configuration = self.around.host.configuration
        self.authenticator = OidcAuthenticator()
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.begin(*(configs or self.configuration.issuers))
        self.configuration.subscribe(lambda issuers: self.issuers.change(issuers))

    async def send(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        """Every provider there is."""
        self.asked.append(call.url)
        issuer = "/".join(call.url.split("/")[:3])
        if issuer in self.down:
            return HttpFailure(UNREACHABLE, "nobody there")
        if call.url.endswith("/jwks"):
            return HttpResponse(200, key_set(public(KEY)), {"cache-control": "max-age=600"})
        return HttpResponse(200, json.dumps({"issuer": issuer, "jwks_uri": f"{issuer}/jwks"}).encode())

    def reached(self) -> None:
        """From now on the targets that were made lead to the providers of this room."""
        for name in self.targets:
            self.targets[name] = self

    async def close(self) -> None:
        pass

    def begin(self, *configs: IssuerConfig) -> None:
        self.targets.clear()
        self.issuers = Issuers(self.authenticator, configs, self.around.host)
        self.reached()

    def change(self, *configs: IssuerConfig) -> None:
        self.issuers.change(configs)
        self.reached()

    def says(self, issuer: str = ISSUER) -> str:
        """The name that a good token of the issuer gets, or why it is refused."""
        exp = self.clock.now().timestamp() + 60
        token = signed({"iss": issuer, "aud": "kubernetes", "exp": exp, "sub": "jane"}, KEY, "ES256")
        credentials = Credentials(bearer=Secret(token))
        verdict = self.authenticator.authenticate(credentials, {}, self.clock.now(), ())
        if isinstance(verdict, Accepted):
            return verdict.user.username
        return verdict.reason if isinstance(verdict, Rejected) else "not mine"


Test = Callable[[Room], Awaitable[None]]


def in_room(test: Test, **flags: Any) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def body() -> None:
            room = Room(**flags)
            try:
                await test(room)
            finally:
                await room.issuers.close()
                await room.stage.close()

        asyncio.run(body())

    del run.__wrapped__  # pytest would see the room as a fixture
    return run


@in_room
async def test_at_start_the_provider_is_asked_until_it_gives_its_keys(room: Room) -> None:
    room.down.add(ISSUER)
    room.begin(config())
    assert room.says() == "provider-not-ready"
    assert room.issuers.unready == 1
    room.issuers.start()
    await room.clock.advance(0)
    assert room.asked == [f"{ISSUER}/.well-known/openid-configuration"]
    await room.clock.advance(RETRY_SECONDS * 3)
    assert len(room.asked) == 4
    room.down.clear()
    await room.clock.advance(RETRY_SECONDS)
    assert room.says() == "jane"
    assert room.issuers.unready == 0


@in_room
async def test_keys_are_asked_for_again_when_they_have_lived_their_time(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    await room.clock.advance(599)
    assert len(room.asked) == 2
    await room.clock.advance(1)
    assert len(room.asked) == 4
    room.down.add(ISSUER)
    await room.clock.advance(600 + RETRY_SECONDS * 3)
    assert len(room.asked) == 8, "one that is down is asked again and again"
    assert room.says() == "jane", "what is known stays in force"


@in_room
async def test_a_change_takes_over_when_every_issuer_gave_its_keys(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    await settle()
    room.down.add(OTHER)
    room.change(config(prefix="new:"), config(OTHER))
    await room.clock.advance(RETRY_SECONDS * 2)
    assert (room.says(), room.says(OTHER)) == ("jane", "not mine")
    room.down.clear()
    await room.clock.advance(RETRY_SECONDS)
    assert (room.says(), room.says(OTHER)) == ("new:jane", "jane")


def test_a_change_that_does_not_work_yet_is_told_once_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    @in_room
    async def test(room: Room) -> None:
        room.begin(config())
        room.issuers.start()
        await settle()
        room.down.add(OTHER)
        room.change(config(prefix="new:"), config(OTHER))
        await room.clock.advance(HEALTHY_SECONDS * 5)
        assert (room.says(), room.says(OTHER)) == ("jane", "not mine")
        room.down.clear()
        await room.clock.advance(RETRY_SECONDS)
        assert (room.says(), room.says(OTHER)) == ("new:jane", "jane")

    with caplog.at_level(logging.ERROR, "mooring.authentication"):
        test()
    assert caplog.messages == [
        "the changed authentication configuration is not used and the old one stays in force, until every issuer has given its "
        "keys: https://two.example: the discovery document: nobody there"
    ]


@in_room
async def test_a_change_that_waits_is_replaced_by_the_next(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    room.down.add(OTHER)
    room.change(config(prefix="second:"), config(OTHER))
    await settle()
    room.change(config(prefix="third:"))
    await settle()
    assert room.says() == "third:jane"
    room.down.clear()
    await room.clock.advance(HEALTHY_SECONDS)
    assert (room.says(), room.says(OTHER)) == ("third:jane", "not mine")


@in_room
async def test_going_back_to_what_is_in_force_gives_up_the_change_that_waits(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    room.down.add(OTHER)
    room.change(config(OTHER))
    await settle()
    room.change(config())
    room.down.clear()
    await room.clock.advance(HEALTHY_SECONDS)
    assert (room.says(), room.says(OTHER)) == ("jane", "not mine")
    assert len(room.targets) == 1


@in_room
async def test_connections_of_the_old_configuration_stay_for_a_while(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    await settle()
    room.change(config(prefix="new:"))
    await room.clock.advance(LINGER_SECONDS - 1)
    assert len(room.targets) == 2
    await room.clock.advance(1)
    assert len(room.targets) == 1
    assert room.says() == "new:jane"


@in_room
async def test_changes_before_anybody_could_look_leave_nothing_behind(room: Room) -> None:
    room.begin(config())
    for prefix in ("a:", "b:", "c:"):
        room.change(config(prefix=prefix))
    await room.clock.advance(LINGER_SECONDS)
    assert room.says() == "c:jane"
    assert len(room.targets) == 1


@in_room
async def test_all_issuers_can_be_taken_away(room: Room) -> None:
    room.begin(config())
    room.issuers.start()
    await settle()
    room.change()
    await settle()
    assert room.says() == "not mine"


@in_room
async def test_every_issuer_has_its_own_trust(room: Room) -> None:
    room.begin(config(ca_pem=CA.certificate_pem), config(OTHER))
    assert len(room.targets) == 2
    with pytest.raises(ConfigError, match="the CA to verify the server with cannot be used"):
        room.change(config(ca_pem=b"none"))
    assert len(room.targets) == 2


FILE = """
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: https://one.example, audiences: [kubernetes]}
  claimMappings: {username: {claim: sub, prefix: "PREFIX"}}
anonymous: {enabled: true, conditions: [{path: /livez}]}
"""


async def written(room: Room, path: Path, text: str) -> None:
    path.write_text(text)
    await room.around.changed()
    room.reached()
    await settle()


def test_a_file_is_followed_except_for_anonymous_access(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "authentication.yaml"
    path.write_text(FILE)

    async def test(room: Room) -> None:
        assert room.configuration.anonymous == AnonymousAccess(True, frozenset({"/livez"}))
        room.issuers.start()
        await settle()
        assert room.says() == "PREFIXjane"
        for wrong in (FILE.replace("/livez", "/readyz"), FILE.replace("claim:", "clam:"), FILE.split("anonymous")[0]):
            await written(room, path, wrong)
            assert room.says() == "PREFIXjane"
        await written(room, path, FILE.replace("PREFIX", "new:"))
        assert room.says() == "new:jane"

    with caplog.at_level(logging.ERROR):
        in_room(test, authentication_config=str(path))()
    said = [message.partition("in force: ")[2] for message in caplog.messages]
    assert said == [
        f"{path}: anonymous: it cannot change while the server runs; restart the server",
        f'{path}: jwt[0].claimMappings.username.clam: unknown field, did you mean "claim"?; '
        "jwt[0].claimMappings.username: Required value: give a claim or an expression",
        f"{path}: anonymous: it cannot change while the server runs; restart the server",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(FILE.replace("https", "http"), "the scheme must be https", id="a wrong file"),
        pytest.param(FILE.replace("one.example", "mooring.example"), "this server's own tokens", id="our own issuer"),
    ],
)
def test_a_file_that_is_wrong_at_start_stops_the_start(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "authentication.yaml"
    path.write_text(text)
    config = configured(authentication_config=str(path), service_account_issuer=("https://mooring.example",))
    with pytest.raises(ConfigError, match=said):
        FollowedConfiguration(config, Reloading())


def test_anonymous_access_by_flag_and_by_file_contradict(tmp_path: Path) -> None:
    path = tmp_path / "authentication.yaml"
    path.write_text(FILE)
    config = configured(authentication_config=str(path), anonymous_auth=True)
    with pytest.raises(ConfigError, match="cannot be combined with --anonymous-auth"):
        FollowedConfiguration(config, Reloading())


FLAGS: dict[str, Any] = {"oidc_issuer_url": ISSUER, "oidc_client_id": "kubernetes"}


def test_flags_and_the_file_of_their_ca_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(CA.certificate_pem)

    async def test(room: Room) -> None:
        assert room.configuration.anonymous is None
        room.issuers.start()
        await settle()
        assert room.says() == f"{ISSUER}#jane"
        path.write_bytes(ThrowawayCA().certificate_pem)
        await room.around.changed()
        assert len(room.targets) == 2, "the other trust is tried, and takes over when it works"

    in_room(test, **FLAGS, oidc_ca_file=str(path), oidc_signing_algs=("ES256",))()


def test_flags_that_name_our_own_issuer_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"oidc-issuer-url: .* is the issuer of this server's own tokens"):
        FollowedConfiguration(configured(**FLAGS, service_account_issuer=(ISSUER,)), Reloading())


def test_flags_without_a_ca_trust_the_machine() -> None:
    assert [issuer.config.ca_pem for issuer in Room(**FLAGS).authenticator.issuers] == [b""]


def test_nothing_said_is_no_issuer() -> None:
    assert Room().authenticator.issuers == ()


def test_the_example_of_the_documentation_is_a_configuration_and_its_mistakes_are_told_as_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs/authentication/oidc.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    found = parse(example.encode(), "/etc/mooring/authentication.yaml")
    assert [len(issuer.audiences) for issuer in found.issuers] == [2, 1]
    assert found.anonymous is not None
    assert "/api/v1/namespaces/kube-public/configmaps/cluster-info" in found.anonymous.paths
    claims = {"sub": "1", "email": "jane@example.com", "email_verified": True, "hd": "example.com", "roles": "dev,ops"}
    jane = identify({**claims, "exp": 3600, "iat": 0}, found.issuers[0].identification)
    assert (jane.username, jane.groups, jane.uid) == ("oidc:jane@example.com", ("oidc:dev", "oidc:ops"), "1")
    wrong = "jwt: [{issuer: {url: https://a, audiences: [b], audience: c}, claimMappings: {username: {claim: sub}}}]"
    head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
    with pytest.raises(ConfigError) as refused:
        parse((head + wrong).encode(), "/etc/mooring/authentication.yaml")
    said = page.split("```text\nmooring: ")[1].split("\n```")[0]
    assert str(refused.value) == " ".join(said.splitlines())
