"""Everything that the server hands to the runtime of an authenticator: its I/O as protocols, and the trust of the cluster.

A runtime (`mooring.server.authentication.providers`) gets a `Host`, and returns the `Running` authenticator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from mooring.api.view import Views
from mooring.authn.anonymous import AnonymousAccess
from mooring.authn.credentials import Authenticator
from mooring.authn.lastuses import LastUses
from mooring.authn.verdict import Rejected
from mooring.clock import Clock
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.settings.declaration import Settings
from mooring.trust.httpexchange import Exchange, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.kubeconfig import Selected

MAX_FILE = 4 << 20
"""Bytes of a file, unless its reader expects more."""

R = TypeVar("R")
S = TypeVar("S", bound=Settings)


class Configured(Protocol):
    """The settings of a server. `config[WebhookSettings]` are those of one subject."""

    def __getitem__(self, subject: type[S]) -> S:
        """Return the settings of a subject."""


class Files(Protocol):
    """Files that are read, and followed while the server runs. An error of the content is a ConfigError."""

    def follow(self, path: str, use: Callable[[bytes], None]) -> bytes:
        """Return the content of `path`, and call `use` with the new content after each change."""

    def follow_prepared(self, path: str, prepare: Callable[[bytes], Callable[[], None]]) -> bytes:
        """Likewise. `prepare` runs in a thread and changes nothing; the function that it returns runs on the event loop."""

    def follow_files(self, paths: Sequence[str], prepare: Callable[[], Callable[[], None]]) -> None:
        """Call `prepare` in a thread after each change of one of `paths`, some of which may be missing.

        The function that `prepare` returns runs on the event loop.
        """

    def read(self, path: str, limit: int = MAX_FILE) -> bytes:
        """Return the content of `path`. Raises ConfigError, also when it is larger than `limit` bytes."""

    def warn_if_exposed(self, path: str) -> None:
        """Log a warning when other users of this machine can change the file, or every user can read it."""


class Target(Protocol):
    """A server that receives HTTP requests under one trust."""

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply. Raises nothing but cancellation."""

    async def close(self) -> None:
        """Close the connections at once."""


class RetirableTarget(Target, Protocol):
    """A target whose place another one may take."""

    def retire(self) -> None:
        """Close the connections as soon as the requests under way have their replies."""


class DescribedTarget(RetirableTarget, Protocol):
    """A target that the current context of a kubeconfig describes."""

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may hold a key."""


class Connector(Protocol):
    """Makes targets. Raises ConfigError for a trust or a kubeconfig that cannot be used."""

    def https(self, url: str, ca_pem: bytes) -> RetirableTarget:
        """Return the server at `url`, verified under the CAs in `ca_pem`; the machine's own roots when that is empty."""

    def kubeconfig(self, selected: Selected) -> DescribedTarget:
        """Return the server of a kubeconfig. The files that it names are read now."""


class ExchangeDriver(Protocol):
    """Drives exchanges with the targets of the host."""

    async def drive(self, exchange: Exchange[R]) -> R:
        """Run an exchange to its end and return its result."""


class Crls(Protocol):
    """The CRLs in force (`mooring.authn.x509`)."""

    def state(self, now: datetime) -> Hashable:
        """Return a value that differs from an earlier one when `rejection` may have another result."""

    def rejection(self, peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
        """Return the rejection of a certificate with a revoked one on its path, or of one that must wait for a CRL."""


class ClientCas(Protocol):
    """The CAs that verify client certificates and authenticating proxies, which change with their files."""

    @property
    def clients(self) -> tuple[Certificate, ...]:
        """The CAs that verify clients now."""

    @property
    def proxies(self) -> tuple[Certificate, ...]:
        """The CAs that verify authenticating proxies now."""

    @property
    def issuing(self) -> tuple[Certificate, ...]:
        """The cluster's own CAs, whose certificates begin `BACKDATE` before they are issued."""

    @property
    def retired(self) -> tuple[Certificate, ...]:
        """The CAs that a rollover retired. They verify only the way back of a machine that was off."""

    @property
    def distrusted(self) -> tuple[Certificate, ...]:
        """The CAs whose keys may stand on no path."""

    @property
    def forgotten(self) -> tuple[Certificate, ...]:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""

    @property
    def crls(self) -> Crls:
        """The CRLs of the CAs of clients and proxies. The object stays, and what it holds changes with the files."""

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""


class VerifyingKeys(Protocol):
    """The keys of service account tokens, which change with their files."""

    @property
    def verifying(self) -> KeySet:
        """The keys that verify now."""

    def subscribe(self, use: Callable[[KeySet], None]) -> None:
        """Call `use` with the keys that verify from then on, after each change."""


class Configuration(Protocol):
    """The AuthenticationConfiguration of the server, from its file or from flags.

    Issuers are `mooring.authn.oidc.authenticator.IssuerConfig`. The host imports no single authenticator, so their type is not
    named here.
    """

    @property
    def issuers(self) -> tuple[Any, ...]:
        """The issuers at start."""

    @property
    def anonymous(self) -> AnonymousAccess | None:
        """Access without a credential; None when the configuration leaves that to the flag. It never changes."""

    def subscribe(self, use: Callable[[tuple[Any, ...]], None]) -> None:
        """Call `use` with the issuers after each change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One server, as runtimes see it: I/O, and the trust of the cluster that several authenticators share."""

    clock: Clock
    entropy: Callable[[int], bytes]
    files: Files
    connect: Connector
    targets: MutableMapping[str, Target]
    """Targets by the names that requests carry."""
    exchanges: ExchangeDriver
    count_review: Callable[[str], None]
    """Counts one answer of the token webhook: `accepted`, `not-mine` or the reason of a rejection."""
    credentials_changed: Callable[[], None]
    """Is called after a change that may end credentials, beside those of followed files: running watches are judged again."""
    client_cas: ClientCas
    token_keys: VerifyingKeys
    last_uses: LastUses
    configuration: Configuration
    names: frozenset[str]
    """Names of all rows, which a custom authenticator cannot have."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of the server's metrics. `read` is called at each scrape."""

    name: str
    help: str
    read: Callable[[], float]


ONCE_A_SERVER: Mapping[str, object] = {"once_a_server": True}
"""`extra` of a log record about the settings, which are the same in each worker: only the first worker logs it."""

ALWAYS = "always"


def _nothing() -> None:
    pass


async def _closed() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The authenticators of one row at work. Only custom authenticators are several.

    `schemes`: HTTP authentication schemes beside Bearer that they judge, by their names in lower case, as a challenge spells them.
    """

    authenticators: tuple[Authenticator, ...]
    turned_on_by: str = ALWAYS
    """Key of the setting that turns them on."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    supervisor: bool = False
    """True when they judge requests to the supervisor API only, beside all others."""
    gauges: tuple[Gauge, ...] = ()
    start: Callable[[], None] = _nothing
    """Begins background work, in the event loop."""
    close: Callable[[], Awaitable[None]] = _closed
    """Ends background work and connections."""
