"""Requests of a joining server: what is refused before it is asked, what is compared, and what an answer means."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import self_signed_ca
from mooring.secret import Secret
from mooring.trust.discovery.errors import DiscoveryError, EndpointDownError
from mooring.trust.discovery.fetch import Polling
from mooring.trust.httpexchange import (
    CERTIFICATE,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Reply,
    Trust,
    Wait,
)
from mooring.trust.k3s.acceptedtokens import digest
from mooring.trust.k3s.refusals import CaMismatchError, NotASupervisorError
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import DamagedKeysError, TokenTerm
from mooring.trust.sharedkeys.keyset import SharedKeySet
from mooring.trust.sharedkeys.serverjoin import (
    CRITICAL,
    ONCE,
    ConfigurationMismatchError,
    Datastore,
    NotTheServerTokenError,
    ServerAccess,
    ServerRefusalError,
    StoreNotSharedError,
    UnusableAnswerError,
    critical_differences,
    parse_server_token,
    server_access,
)
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from mooring.trust.sharedkeys.servertoken import AgentTerm, AgentTokens, encode_agent_tokens

URL, PASSWORD = "https://cluster.test:6443", "0123456789abcdef0123456789abcdef"
_KEY = generate_key()
CA = self_signed_ca(_KEY, "k", datetime(2026, 3, 1, tzinfo=UTC), 1).certificate_pem
HASH = hashlib.sha256(CA).hexdigest()
TOKEN = f"K10{HASH}::server:{PASSWORD}"
CONFIG = {"ClusterDomain": "cluster.local", "ServiceIPRange": {"IP": "10.43.0.0"}, "HTTPSPort": 6443, "Other": 1}
PLACE = {"etcdServers": ["https://192.0.2.1:2379"], "etcdPrefix": "/registry", "needsPassword": True}


def sealed(**more: Secret) -> envelope.SharedKeysRow:
    keys = SharedKeySet.of({"ca.crt": Secret(CA), "ca.key": Secret(private_key_pem(_KEY)), **more})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(envelope, "N", 16)
        return envelope.seal(envelope.claim("c", keys), keys, [TokenTerm(Secret(PASSWORD), 5)], os.urandom)[0]


ROW = sealed()


def bootstrap(**changed: Any) -> HttpResponse:
    body = {
        "version": 1,
        "configuration": CONFIG,
        "sealedKeys": json.loads(envelope.encode(ROW)),
        "datastore": PLACE,
        **changed,
    }
    return HttpResponse(200, json.dumps(body).encode())


def status(code: int, message: str = "forbidden") -> HttpResponse:
    return HttpResponse(code, json.dumps({"kind": "Status", "message": message}).encode())


Answer = HttpResponse | HttpFailure


class Supervisor:
    """A server that knows the server token; `answers` replaces those of some paths, one after the other."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.bodies: list[Any] = []
        self.waits = 0
        self._answers = answers

    def drive(self, exchange: Generator[Any, Reply, Any]) -> Any:
        reply: Reply = None
        while True:
            try:
                step = exchange.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = self.answer(step) if isinstance(step, HttpRequest) else None
            self.waits += isinstance(step, Wait)

    def answer(self, request: HttpRequest) -> Answer:
        path = request.url.removeprefix(URL)
        name = path.rpartition("/")[2].replace("-", "_")
        user = request.credentials.username if request.credentials is not None else ""
        self.requests.append((request.method, path, user))
        assert isinstance(request.target, Trust)
        if path == "/cacerts":
            if request.target.verify and not request.target.ca_pem:
                return HttpFailure(CERTIFICATE, "unknown CA")
            return self._answers.get("cacerts", [HttpResponse(200, CA)])[0]
        assert request.target.ca_pem
        assert request.credentials is not None
        assert request.credentials.password == Secret(PASSWORD)
        self.bodies.append(json.loads(request.body) if request.body else None)
        if given := self._answers.get(name):
            return given.pop(0) if len(given) > 1 else given[0]
        return {
            "config": HttpResponse(200, json.dumps(CONFIG).encode()),
            "server_bootstrap": bootstrap(),
            "token": HttpResponse(200, b""),
        }[name]


def access(polling: Polling = ONCE) -> ServerAccess:
    return server_access(URL + "/", parse_server_token(TOKEN), polling)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSED_TOKENS = {
    "a bootstrap token": ("abcdef.0123456789abcdef", "this is a bootstrap token"),
    "a whole bootstrap token": (f"K10{HASH}::abcdef.0123456789abcdef", "this is a bootstrap token"),
    "an agent token": (f"K10{HASH}::node:{PASSWORD}", "this is an agent token"),
    "a token of another user": (f"K10{HASH}::admin:{PASSWORD}", "must end with ::server:<secret>"),
    "a password alone": (PASSWORD, "has no hash of the CA"),
    "a token without the hash": (f"K10::server:{PASSWORD}", "has no hash of the CA"),
    "a password that can be guessed": (f"K10{HASH}::server:short", "16 to 512"),
    "half of a hash": (f"K10abc::server:{PASSWORD}", "invalid token CA hash length"),
    "nothing": ("", "token must not be empty"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED_TOKENS.values(), ids=REFUSED_TOKENS)
def test_tokens_that_are_refused_before_anything_is_asked(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        parse_server_token(text)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    "text", [TOKEN, f"K10{HASH}:::{PASSWORD}", f"{TOKEN}\n".encode()], ids=["whole", "no user", "file"]
)
def test_tokens_that_are_taken(text: str | bytes) -> None:
    token = parse_server_token(text)
    assert (token.ca_hash, token.username, token.password) == (HASH, "server", Secret(PASSWORD))


@pytest.mark.parametrize("url", ["http://cluster.test:6443", "cluster.test:6443", "https://a:b@cluster.test"])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^server: .*give https://"):
        server_access(url, parse_server_token(TOKEN))


# ── trust ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_secret_is_sent_to_a_server_of_another_ca() -> None:
    other = self_signed_ca(generate_key(), "other", datetime(2026, 3, 1, tzinfo=UTC), 2).certificate_pem
    peer = Supervisor(cacerts=[HttpResponse(200, other)])
    with pytest.raises(CaMismatchError):
        peer.drive(access().connect())
    assert [user for _, _, user in peer.requests] == ["", ""]


# ── configuration ─────────────────────────────────────────────────────────────────────────────────────────────────


def trusted(peer: Supervisor, polling: Polling = ONCE) -> Any:
    found = peer.drive(access(polling).connect())
    peer.requests.clear()
    return found


def test_the_configuration_is_read_as_an_agent() -> None:
    peer = Supervisor()
    server = trusted(peer)
    found = peer.drive(server.fetch_configuration())
    assert peer.requests == [("GET", "/v1-k3s/config", "node")]
    server.check_configuration(found, {**CONFIG, "Other": 2})


def test_in_a_cluster_with_an_agent_token_the_configuration_comes_with_the_keys() -> None:
    peer = Supervisor(config=[status(401)])
    server = trusted(peer)
    assert peer.drive(server.fetch_configuration()) is None
    assert len(peer.requests) == 1
    assert peer.drive(server.fetch_bootstrap()).configuration == CONFIG


def test_each_difference_is_named_once() -> None:
    own = {**CONFIG, "ClusterDomain": "other.local", "ServiceIPRange": {"IP": "10.96.0.0"}}
    with pytest.raises(ConfigurationMismatchError) as raised:
        trusted(Supervisor()).check_configuration(CONFIG, own)
    assert "critical configuration value mismatch: cluster-domain, service-cidr; give" in str(raised.value)


@pytest.mark.parametrize("name", CRITICAL)
def test_every_critical_value_is_compared(name: str) -> None:
    assert critical_differences({name: "one"}, {name: "other"}) == (CRITICAL[name],)
    assert critical_differences({name: "one"}, {}) == (CRITICAL[name],)
    assert critical_differences({name: "one"}, {name: "one"}) == ()
    assert critical_differences({}, {name: "one"}) == ()


# ── sealed keys ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sealed_row_and_the_place_of_the_store_are_read() -> None:
    peer = Supervisor()
    found = peer.drive(trusted(peer).fetch_bootstrap())
    assert peer.requests == [("GET", "/v1-k3s/server-bootstrap", "server")]
    assert found.row == ROW
    assert found.datastore == Datastore(("https://192.0.2.1:2379",), "/registry", needs_password=True)
    assert Supervisor().drive(access().fetch_sealed_row()) == ROW


K3S = json.dumps({"ServerCAKey": {"Timestamp": "2024-05-06T07:08:09Z", "Content": base64.b64encode(b"x").decode()}})
UNUSABLE: dict[str, tuple[HttpResponse, type[MooringError], str]] = {
    "keys in clear": (HttpResponse(200, K3S.encode()), UnusableAnswerError, "whose keys travel in clear"),
    "a later version": (bootstrap(version=2), UnusableAnswerError, "a later Mooring"),
    "no configuration": (bootstrap(configuration=None), UnusableAnswerError, "configuration of the server is missing"),
    "no place of the store": (bootstrap(datastore=None), UnusableAnswerError, "the place of the store"),
    "a place that is a text": (bootstrap(datastore="etcd"), UnusableAnswerError, "the place of the store"),
    "a row that is none": (bootstrap(sealedKeys={}), DamagedKeysError, "holds no keys"),
    "a list": (HttpResponse(200, b"[]"), UnusableAnswerError, "no JSON object"),
    "a page": (HttpResponse(200, b"<html>"), UnusableAnswerError, "no JSON object"),
}


@pytest.mark.parametrize(("answer", "error", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_answers_that_are_not_used(answer: HttpResponse, error: type[MooringError], reason: str) -> None:
    peer = Supervisor(server_bootstrap=[answer])
    with pytest.raises(error, match=reason):
        peer.drive(trusted(peer).fetch_bootstrap())


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_agent_token_without_its_user_is_recognised_by_the_server() -> None:
    peer = Supervisor(server_bootstrap=[status(401, "not authorized")])
    with pytest.raises(NotTheServerTokenError, match="this is the agent token of the cluster"):
        peer.drive(trusted(peer).fetch_bootstrap())
    assert [user for _, _, user in peer.requests] == ["server", "node"]


REFUSALS: dict[str, tuple[dict[str, list[Answer]], type[DiscoveryError], str]] = {
    "a token that was replaced": (
        {"server_bootstrap": [status(401)], "config": [status(401)]},
        NotTheServerTokenError,
        "of another cluster, or was replaced",
    ),
    "a server that stops answering": (
        {"server_bootstrap": [status(403)], "config": [HttpFailure(UNREACHABLE, "refused")]},
        NotTheServerTokenError,
        "the server answered 403",
    ),
    "a server on SQLite": (
        {"server_bootstrap": [status(400, "etcd disabled: move\nit")]},
        StoreNotSharedError,
        "the server answered 400: etcd disabled: move it$",
    ),
    "a server that repeats the password": (
        {"server_bootstrap": [status(400, f"no {PASSWORD}")]},
        ServerRefusalError,
        "answered 400$",
    ),
    "an error without a text": ({"server_bootstrap": [HttpResponse(500, b"")]}, ServerRefusalError, "answered 500$"),
    "an error in plain text": (
        {"server_bootstrap": [HttpResponse(500, b"runtime core not ready\n")]},
        ServerRefusalError,
        "answered 500: runtime core not ready$",
    ),
    "no supervisor": ({"server_bootstrap": [status(404)]}, NotASupervisorError, "--k3s-supervisor"),
    "a server that is busy": ({"server_bootstrap": [status(429, "later")]}, ServerRefusalError, "answered 429: later"),
    "a server that is gone": (
        {"server_bootstrap": [HttpFailure(UNREACHABLE, "refused")]},
        EndpointDownError,
        "nothing answers",
    ),
}


@pytest.mark.parametrize(("answers", "error", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(answers: dict[str, list[Answer]], error: type[DiscoveryError], reason: str) -> None:
    peer = Supervisor(**answers)
    with pytest.raises(error, match=reason) as raised:
        peer.drive(trusted(peer).fetch_bootstrap())
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize("first", [status(503), HttpFailure(UNREACHABLE, "refused")], ids=["starting", "down"])
def test_a_server_that_is_not_ready_is_asked_again(first: Answer) -> None:
    peer = Supervisor(server_bootstrap=[first, bootstrap()])
    assert peer.drive(trusted(peer, Polling()).fetch_bootstrap()).row == ROW
    assert peer.waits == 1


# ── rotation ──────────────────────────────────────────────────────────────────────────────────────────────────────

ROTATIONS: dict[str, tuple[Callable[[], Secret | None], dict[str, str]]] = {
    "a token": (lambda: Secret("n" * 16), {"newToken": "n" * 16, "grace": "1h0m0s"}),
    "a token that the server makes": (lambda: None, {"newToken": "", "grace": "1h0m0s"}),
}


@pytest.mark.parametrize(("new", "body"), ROTATIONS.values(), ids=ROTATIONS)
def test_a_rotation_is_sent_once(new: Callable[[], Secret | None], body: dict[str, str]) -> None:
    peer = Supervisor()
    peer.drive(access().rotate(new(), timedelta(hours=1)))
    assert peer.requests[-1] == ("PUT", "/v1-k3s/token", "server")
    assert peer.bodies == [body]
    gone = Supervisor(token=[status(503)])
    with pytest.raises(ServerRefusalError):
        gone.drive(access(Polling()).rotate(new(), timedelta()))
    assert len(gone.bodies) == 1


def test_an_agent_token_is_replaced_by_a_field_that_an_earlier_server_refuses() -> None:
    peer = Supervisor()
    peer.drive(access().rotate(Secret("n" * 16), timedelta(), agent=True))
    assert peer.requests[-1] == ("PUT", "/v1-k3s/token", "server")
    assert peer.bodies == [{"newAgentToken": "n" * 16, "grace": "0s"}]
    gone = Supervisor(token=[status(503)])
    with pytest.raises(ServerRefusalError, match="rotating the agent token at"):
        gone.drive(access().rotate(None, timedelta(), agent=True))


def test_agent_tokens_are_read_from_the_sealed_row() -> None:
    assert Supervisor().drive(access().fetch_agent_tokens()) is None
    tokens = AgentTokens(Secret("a" * 16), (AgentTerm("1", digest(Secret("a" * 16)), 5),))
    row = json.loads(envelope.encode(sealed(**{AGENT_TOKENS: encode_agent_tokens(tokens)})))
    assert Supervisor(server_bootstrap=[bootstrap(sealedKeys=row)]).drive(access().fetch_agent_tokens()) == tokens
