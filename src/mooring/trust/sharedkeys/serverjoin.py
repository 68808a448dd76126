"""Requests of servers and their operator to the supervisor API of another server, and the rotation of the server token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.answertext import after_colon, answer_text
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import DiscoveryExchange, Polling, Rounds, connection_error
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, send
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.k3s.exchanges import JOIN_POLLING, TrustedCa, establish_trust
from mooring.trust.k3s.identity import CONFIG, SERVER_BOOTSTRAP, TOKEN
from mooring.trust.k3s.refusals import NotASupervisorError
from mooring.trust.k3s.token import NODE, SERVER, K3sToken, TokenFormatError, parse_token
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.sharedkeys import servertoken
from mooring.trust.sharedkeys.envelope import MAX_WRAPS, SharedKeysRow, TokenTerm, decode, open_keys, unlock
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from mooring.trust.sharedkeys.servertoken import AgentTokens, decode_agent_tokens

# Rotation of the server token: the tokens that a row is sealed for, before and after.
#
# Rules kept here (docs/adr/0054-rotation-of-the-server-token.md):
# * The new token comes first and has no end. The one before it gets an end, which no later rotation moves back.
# * Tokens whose end has passed are left out. Without a grace every former token is.
# * A token that the row knows already is refused: its end could not be told.

DEFAULT_GRACE = timedelta(hours=24)
"""Time for which the former token still works: a day of work to change what starts servers and joins machines."""
MAX_GRACE = timedelta(days=30)
"""A former token that works longer is a second server token that no list shows."""


class RotationRefusedError(ConfigError):
    """The new token, or the number of tokens, is not accepted."""


class KnownTokenError(RotationRefusedError):
    """The new token is the present one, or a former one."""


class TooManyTokensError(RotationRefusedError):
    """The most former tokens that a row may have work already."""


def check_grace(grace: timedelta) -> timedelta:
    """Return the grace. Raises ConfigError for one that is negative or too long."""
    if not timedelta() <= grace <= MAX_GRACE:
        raise ConfigError(f"the grace of the former token is 0 to {MAX_GRACE.days * 24} hours")
    return grace


def rotated(terms: Sequence[TokenTerm], new: Secret, grace: timedelta, now: datetime) -> tuple[TokenTerm, ...]:
    """Return the tokens after a rotation. Raises RotationRefusedError."""
    if any(one.token == new for one in terms):
        raise KnownTokenError(
            "the new server token is the present one, or one that was replaced lately; give another one"
        )
    seconds = int(now.timestamp())
    end = seconds + int(grace.total_seconds())
    # A rotation ends no former token later than before. Without a grace all of them end now.
    former = [replace(one, until=min(one.until or end, end)) for one in terms if end > seconds]
    # The present one first: that is its place in the row.
    after = (TokenTerm(new, seconds), *unexpired(former, now))
    if len(after) > MAX_WRAPS:
        raise TooManyTokensError(
            f"{MAX_WRAPS} server tokens open the keys of this cluster already: wait until the grace of one ends, or end them all "
            "with --grace 0"
        )
    return after


def unexpired(terms: Iterable[TokenTerm], now: datetime) -> tuple[TokenTerm, ...]:
    """Return the tokens that work now."""
    return tuple(one for one in terms if not 0 < one.until <= now.timestamp())


# Requests of a server, or of its operator, to the supervisor API of a server of the cluster, as exchanges.
#
# Rules kept here (docs/protocol/k3s.md#join-of-a-server):
# * The token is the server token. An agent token and a bootstrap token are refused by their form, before anything is asked; an
#   agent token without its user is recognised by the server, which accepts it for agents alone.
# * The token needs the hash of the CA. k3s warns and goes on.
# * Trust comes first (`exchanges`). The password is sent over TLS that verifies under the CAs that the hash vouches for.
# * Settings that all servers must share are compared before the keys are opened, and each difference is named. In a cluster with
#   an agent token user `node` has another password: there the configuration comes with the sealed keys.
# * The keys come sealed, and the token opens them here.
# * A request is sent once more when nothing answers, for as long as the polling allows. A refusal is final at once.

ONCE = Polling(attempts=1)
"""For commands of a person, who waits."""
MAX_BOOTSTRAP = 2 << 20
"""Bytes of the sealed keys and the place of the store."""
_VERSION = 1
ETCD_DISABLED = "etcd disabled"
"""k3s's words, with which a refusal begins when the store is a file of its server."""


class ServerRefusalError(DiscoveryError):
    """The server does not do what a server of the cluster asks. Another attempt cannot help."""

    code: ClassVar[str] = "server-refusal"
    final = True


class NotTheServerTokenError(ServerRefusalError):
    code = "not-the-server-token"


class StoreNotSharedError(ServerRefusalError):
    code = "store-not-shared"


class ConfigurationMismatchError(ServerRefusalError):
    code = "configuration-mismatch"


class UnusableAnswerError(ServerRefusalError):
    code = "unusable-answer"


@dataclass(frozen=True, slots=True)
class Datastore:
    """Place of the store: URLs of etcd, the prefix of objects in it, and what else its clients need."""

    etcd_servers: tuple[str, ...]
    etcd_prefix: str
    needs_client_certificate: bool = False
    needs_password: bool = False


@dataclass(frozen=True, slots=True)
class ServerBootstrap:
    """Sealed row, place of the store, and configuration of the server, as a joining server learns them."""

    row: SharedKeysRow
    datastore: Datastore
    configuration: Mapping[str, Any]


def parse_server_token(text: str | bytes, least: int = servertoken.MIN_SECRET) -> K3sToken:
    """Return a server token with a hash, for user `server`. Raises ConfigError, which does not repeat it.

    `least`: characters that its password must have.
    """
    try:
        token = parse_token(text.strip())
    except TokenFormatError as error:
        raise ConfigError(f"{error}; a server token is K10<hash of the CA>::server:<secret>") from None
    if token.bootstrap is not None:
        raise ConfigError("this is a bootstrap token, with which machines join; a server needs the server token")
    if token.username == NODE:
        raise ConfigError(
            "this is an agent token (its user is node), with which machines join; a server needs the server token"
        )
    if token.username not in ("", SERVER):
        raise ConfigError("the server token must end with ::server:<secret>")
    # Every token without a bootstrap token has one.
    assert token.password is not None
    servertoken.parse_token(token.password.reveal(), least)
    # Trust on first use would be too little: an attacker on the way would get the password, and with the store the keys.
    if not token.ca_hash:
        raise ConfigError(
            "this server token has no hash of the CA, without which anybody on the way could take it: give the whole token "
            "(K10<hash>::server:<secret>), which stands in server/token in the data directory of a server"
        )
    return token.as_user(SERVER)


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server of the cluster, and the server token. Each exchange establishes trust by itself."""

    url: str
    token: K3sToken
    polling: Polling = ONCE

    def connect(self) -> DiscoveryExchange[TrustedServer]:
        """Return the server once its CA is the one that the token names. Raises DiscoveryError."""
        ca = yield from establish_trust((self.url,), self.token.ca_hash, self.polling)
        # See parse_server_token.
        assert self.token.password is not None
        return TrustedServer(ca, self.token.password, self.polling)

    def fetch_sealed_row(self) -> DiscoveryExchange[SharedKeysRow]:
        """Return the sealed row. Raises DiscoveryError, DamagedKeysError."""
        server = yield from self.connect()
        return (yield from server.fetch_bootstrap()).row

    def rotate(self, new: Secret | None, grace: timedelta, *, agent: bool = False) -> DiscoveryExchange[None]:
        """Replace the server token, or the agent token; the server makes one when none is given. Raises DiscoveryError."""
        server = yield from self.connect()
        yield from server.rotate(new, grace, agent=agent)

    def fetch_agent_tokens(self) -> DiscoveryExchange[AgentTokens | None]:
        """Return the agent tokens in the sealed row; None before their first rotation. Raises DiscoveryError, DamagedKeysError."""
        server = yield from self.connect()
        row = (yield from server.fetch_bootstrap()).row
        content = open_keys(row, unlock(row, server.password)).files.get(AGENT_TOKENS)
        return decode_agent_tokens(content.reveal()) if content is not None else None


def server_access(url: str, token: K3sToken, polling: Polling = JOIN_POLLING) -> ServerAccess:
    """Return the access to a server. Raises ConfigError for a URL that k3s would not take."""
    if problem := https_url_problem(url):
        raise ConfigError(f"server: {problem}; give https://<address>:<port> of a server of the cluster")
    return ServerAccess(url.rstrip("/"), token, polling)


@dataclass(frozen=True, slots=True)
class TrustedServer:
    """A server of the cluster whose CA was verified."""

    ca: TrustedCa
    password: Secret
    polling: Polling = ONCE

    def fetch_configuration(self) -> DiscoveryExchange[Mapping[str, Any] | None]:
        """Return the configuration, as user `node`. Returns None when the server token is none of an agent's.

        Raises DiscoveryError.
        """
        step = f"reading the configuration of {self.ca.url}"
        try:
            return _document(step, (yield from self._ask(step, HttpRequest(self.ca.trust, url=CONFIG), NODE)))
        except NotTheServerTokenError:
            return None

    def check_configuration(self, found: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Compare settings that all servers must share. Raises ConfigurationMismatchError that names each difference."""
        step = f"comparing the configuration with that of {self.ca.url}"
        if differences := critical_differences(found, own):
            raise ConfigurationMismatchError(
                step,
                f"critical configuration value mismatch: {', '.join(differences)}; give this server the values of the other",
            )

    def fetch_bootstrap(self) -> DiscoveryExchange[ServerBootstrap]:
        """Return the sealed keys and the place of the store. Raises DiscoveryError, DamagedKeysError."""
        step = f"fetching the sealed keys of the cluster from {self.ca.url}"
        request = HttpRequest(self.ca.trust, url=SERVER_BOOTSTRAP, max_bytes=MAX_BOOTSTRAP)
        found = _document(step, (yield from self._ask(step, request, SERVER)))
        # Before anything of it is read: keys in clear are not used.
        if found.get("version") != _VERSION:
            raise UnusableAnswerError(
                step,
                "the server did not answer with sealed keys of version 1: it is a k3s server, whose keys travel in clear, or a "
                "later Mooring; nothing was used of the answer",
            )
        place, configuration = found.get("datastore"), found.get("configuration")
        if not isinstance(configuration, dict):
            raise UnusableAnswerError(step, "the configuration of the server is missing")
        try:
            store = msgspec.convert(place, _DatastoreMessage)
        except msgspec.ValidationError:
            raise UnusableAnswerError(step, "the place of the store is missing, or cannot be read") from None
        # By the decoder of the store, with its bounds.
        row = decode(msgspec.json.encode(found.get("sealedKeys")))
        return ServerBootstrap(
            row,
            Datastore(
                tuple(store.etcd_servers), store.etcd_prefix, store.needs_client_certificate, store.needs_password
            ),
            configuration,
        )

    def rotate(self, new: Secret | None, grace: timedelta, *, agent: bool = False) -> DiscoveryExchange[None]:
        """Replace the server token, or the agent token. Raises DiscoveryError.

        Sent once: a second rotation would end the token of the first.
        """
        step = f"rotating the {'agent' if agent else 'server'} token at {self.ca.url}"
        field = "newAgentToken" if agent else "newToken"
        body = {field: new.reveal().decode() if new is not None else "", "grace": format_duration(grace)}
        request = HttpRequest(
            self.ca.trust, method="PUT", url=TOKEN, body=msgspec.json.encode(body), timeout=_ROTATION_SECONDS
        )
        yield from self._ask(step, request, SERVER, ONCE, (new,) if new is not None else ())

    def _ask(
        self,
        step: str,
        request: HttpRequest,
        user: str,
        polling: Polling | None = None,
        sent: tuple[Secret, ...] = (),
    ) -> DiscoveryExchange[bytes]:
        """Return the body of a response with status 2xx. `request` has the path of its URL, and lacks the credential.

        `sent`: secrets in its body, which no error may repeat.
        """
        rounds, secrets = Rounds(polling or self.polling), (self.password, *sent)
        while True:
            reply = yield from rounds.send(self._request(request, user))
            if isinstance(reply, HttpFailure):
                last: DiscoveryError = connection_error(step, reply)
            elif 200 <= reply.status < 300:
                return reply.body
            elif reply.status == 429 or reply.status in (502, 503, 504):
                last = ServerRefusalError(step, f"the server answered {reply.status}{_detail(reply.body, secrets)}")
            else:
                raise (yield from self._refusal(step, reply, user, secrets))
            wait = rounds.next_wait()
            if wait is None:
                raise last
            yield rounds.report(last, retried=True)
            yield wait

    def _request(self, request: HttpRequest, user: str) -> HttpRequest:
        credentials = KubeconfigUser(user, username=user, password=self.password)
        return replace(request, url=self.ca.url + request.url, credentials=credentials)

    def _refusal(
        self, step: str, reply: HttpResponse, user: str, secrets: tuple[Secret, ...]
    ) -> DiscoveryExchange[DiscoveryError]:
        """Return the error for a refusal. The server is asked once more, to tell an agent token from one that is wrong."""
        detail = _detail(reply.body, secrets)
        if reply.status == 404:
            return NotASupervisorError(step, reply.status, detail.removeprefix(": "))
        if reply.status not in (401, 403):
            kind = StoreNotSharedError if detail.startswith(f": {ETCD_DISABLED}") else ServerRefusalError
            return kind(step, f"the server answered {reply.status}{detail}")
        if user == SERVER:
            # Only after the refusal, and to the same server, which has the password already.
            as_agent = yield from send(self._request(HttpRequest(self.ca.trust, url=CONFIG), NODE))
            if isinstance(as_agent, HttpResponse) and as_agent.status == 200:
                return NotTheServerTokenError(
                    step,
                    "this is the agent token of the cluster, with which machines join; a server needs the server token",
                )
        return NotTheServerTokenError(
            step,
            f"the server answered {reply.status}: it does not accept this server token; it is of another cluster, or was replaced: "
            "take the one in server/token in the data directory of a server",
        )


_ROTATION_SECONDS = 60.0
"""A rotation takes one scrypt for each token that stays, on a machine that may be busy."""

CRITICAL: Mapping[str, str] = MappingProxyType(
    {
        "ClusterDNS": "cluster-dns",
        "ClusterDNSs": "cluster-dns",
        "ClusterDomain": "cluster-domain",
        "ClusterIPRange": "cluster-cidr",
        "ClusterIPRanges": "cluster-cidr",
        "DisableCCM": "disable-cloud-controller",
        "DisableHelmController": "disable-helm-controller",
        "DisableNPC": "disable-network-policy",
        "DisableServiceLB": "disable-service-lb",
        "EgressSelectorMode": "egress-selector-mode",
        "EmbeddedRegistry": "embedded-registry",
        "EncryptSecrets": "secrets-encryption",
        "FlannelBackend": "flannel-backend",
        "FlannelExternalIP": "flannel-external-ip",
        "FlannelIPv6Masq": "flannel-ipv6-masq",
        "ServiceIPRange": "service-cidr",
        "ServiceIPRanges": "service-cidr",
    }
)
"""Fields of the configuration that must be the same on all servers, and the flag of k3s for each."""


def critical_differences(found: Mapping[str, Any], own: Mapping[str, Any]) -> Sequence[str]:
    """Return the flags whose values differ, each once. A field that the server does not have is not compared."""
    return tuple(
        dict.fromkeys(flag for name, flag in CRITICAL.items() if name in found and found[name] != own.get(name))
    )


class _DatastoreMessage(msgspec.Struct, rename="camel"):
    etcd_servers: list[str]
    etcd_prefix: str
    needs_client_certificate: bool = False
    needs_password: bool = False


def _document(step: str, body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnusableAnswerError(step, "the answer is no JSON object")
    return found


def _detail(body: bytes, secrets: tuple[Secret, ...]) -> str:
    """Return the text of an answer, in one line; "" without one, or when it repeats a secret."""
    return after_colon(answer_text(body, secrets, (SERVER, NODE)))
