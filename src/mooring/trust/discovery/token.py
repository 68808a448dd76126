"""Discovery: find a cluster and come to trust it, as generators that yield requests (law 8).

Rules kept here (docs/protocol/discovery-and-join.md, docs/differences.md#super-simple-discovery-api), the numbers in prose and code
the same.

By token:
 1. fetch cluster-info without trust and without credentials, from each address in turn, until it holds what step 2 needs;
 2. verify its signature by our token: from here the text is the cluster's own;
 3. read the kubeconfig in it and choose the cluster;
 4. compare its CA with the pins; without pins, which needs a flag named unsafe, the signature is all the trust there is;
 5. fetch cluster-info again, TLS verified under the pinned CA alone;
 6. both texts must be equal to the byte, and the second signed as well.
By file or HTTPS URL:
 1. read the document, refuse credentials in it unless they were allowed, choose the cluster;
 2. fetch cluster-info with the document's trust: 403 is success (TLS proved the server), the document's own data wins.

A refusal that cannot heal ends a server's turn; the others are polled on. When none is left or the budget is spent, the last
error is raised; every error before it is told, to be kept where it is a new one. Step 5 trusts only pinned certificates:
kubeadm trusts the whole bundle there, which lets a thief of the token put a CA of his own beside the pinned one.

The addresses used afterwards are those that cluster-info names, first the one that answered. An address that was typed and is
not published comes last. The CA of the servers and the CA of client certificates are kept apart (`TrustedCluster`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import jws
from mooring.trust.discovery.exchange import (
    SYSTEM_ROOTS,
    Fetch,
    Step,
    Told,
    cluster_info_data,
    cluster_info_url,
    failure,
    fetch,
)
from mooring.trust.discovery.failures import (
    ClusterInfoChangedError,
    CredentialsRefusedError,
    DiscoveryError,
    ForbiddenAnswerError,
    RefusedAnswerError,
    UnauthorizedAnswerError,
    UnusableClusterInfoError,
)
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.httpexchange import HttpFailure, HttpResponse, Reply, Wait
from mooring.trust.kubeconfig import model as kubeconfig
from mooring.trust.kubeconfig import text as kubeconfigtext
from mooring.trust.kubeconfig.model import Cluster, Kubeconfig, KubeconfigError, User

SIGNATURE_ALONE = "token"
"""`TrustedCluster.via` without pins."""
_HTTPS_SERVER = re.compile(r"https://[^\s/?#@]+(/[^\s?#]*)?")


@dataclass(frozen=True, slots=True)
class Polling:
    """How long to ask again: every `interval` seconds until `total` seconds are spent, or after `attempts` rounds."""

    interval: float = 5.0
    total: float = 300.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("polling waits between its rounds: the interval is more than 0 seconds")


@dataclass(frozen=True, slots=True)
class TrustedCluster:
    """A cluster that passed every step. An empty `ca_pem` means the machine's own roots."""

    server: str
    ca_pem: bytes
    cluster_name: str
    client_credentials: User | None
    warnings: tuple[str, ...]
    via: str
    """`token+pins`, `token`, `file` or `url`."""
    tls_server_name: str = ""
    proxy_url: str = ""
    others: tuple[Cluster, ...] = ()
    """Further addresses of the cluster, in the order in which they are to be tried."""
    client_ca_pem: bytes = b""
    """CAs that sign client certificates, as far as they are known; empty: they are not."""
    published_servers: tuple[str, ...] = ()
    """The addresses that cluster-info names; empty when it was not read."""
    published_ca_pem: bytes = b""
    """What verifies those servers, as cluster-info says."""
    client_ca_named: bool = False
    """Whether the cluster published them as such. Otherwise they are what cluster-info has for its servers, as kubeadm assumes."""

    @property
    def cluster(self) -> Cluster:
        """The first address."""
        return Cluster(
            self.cluster_name,
            self.server,
            self.ca_pem,
            tls_server_name=self.tls_server_name,
            proxy_url=self.proxy_url,
        )

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Every address, first the one to use."""
        return (self.cluster, *self.others)


Discovery = Generator[Step, Reply, TrustedCluster]


class _Budget:
    """Counts what polling spends; there is no clock here."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._spent = 0.0
        self._rounds = 0

    def charge(self, reply: HttpResponse | HttpFailure) -> None:
        self._spent += reply.elapsed

    def next_round(self) -> Wait | None:
        """The wait before another round; None when there is none left."""
        self._rounds += 1
        self._spent += self._polling.interval
        if self._spent > self._polling.total or self._rounds == self._polling.attempts:
            return None
        return Wait(self._polling.interval)


# ── by token ─────────────────────────────────────────────────────────────────────────────────────────────────────


def discover_by_token(
    endpoints: Sequence[str],
    token: BootstrapToken,
    pins: Collection[Pin],
    *,
    unsafe_skip_ca_verification: bool = False,
    polling: Polling = Polling(),
) -> Discovery:
    """Discovery by token. `endpoints` are `host:port`, tried in turn. Without pins the unsafe flag must be set.

    Raises DiscoveryError; ValueError when called without endpoints, or without pins and without the flag.
    """
    if not endpoints:
        raise ValueError("discovery by token needs the address of an API server")
    if not pins and not unsafe_skip_ca_verification:
        raise ValueError("discovery by token needs pins, or the flag unsafe_skip_ca_verification")
    budget = _Budget(polling)
    left = list(dict.fromkeys(endpoints))
    told: set[str] = set()
    while True:
        last: DiscoveryError | None = None
        for endpoint in tuple(left):
            if last is not None:
                yield _told(last, told)
            try:
                return (yield from _try_endpoint(endpoint, token, pins, budget))
            except DiscoveryError as error:
                last = error
            if last.final:
                left.remove(endpoint)
        assert last is not None  # there was an endpoint, and none passed
        wait = budget.next_round() if left else None
        if wait is None:
            raise last
        yield _told(last, told)
        yield wait


def _told(error: DiscoveryError, told: set[str]) -> Told:
    """A failure that something follows; the same one again is not worth a line of its own."""
    message = str(error)
    new = message not in told
    told.add(message)
    return Told(message, kept=new)


def _try_endpoint(endpoint: str, token: BootstrapToken, pins: Collection[Pin], budget: _Budget) -> Discovery:
    url = cluster_info_url(f"https://{endpoint}")

    yield Told(f"Fetching cluster-info from {endpoint} without trust, to check it by token {token.id}")
    step = f"fetching cluster-info from {endpoint} (step 1)"
    reply = yield from fetch(Fetch(url))
    budget.charge(reply)
    data = cluster_info_data(step, reply)

    text = jws.verify(data, token, f"verifying cluster-info from {endpoint} (step 2)")
    yield Told(f"Cluster-info from {endpoint} is signed by token {token.id}")

    step = f"reading the kubeconfig of cluster-info from {endpoint} (step 3)"
    config, cluster = _signed_cluster(step, text)
    warnings = ("cluster-info carries users, which were ignored",) if config.users else ()
    found = _answering(_published(step, config, cluster, None, warnings, SIGNATURE_ALONE), endpoint)
    if pins and not cluster.ca_pem:
        raise UnusableClusterInfoError(
            step, "it names no CA, so its servers are verified with a machine's own roots and there is nothing to pin",
            "join with --discovery-file, or have the administrator name the CA in cluster-info",
        )  # fmt: skip
    if not pins:
        yield Told("The CA was not compared with a pin: the token alone vouches for the cluster")
        return found

    pinned = check_pins(cluster.ca_pem, pins, f"comparing the CA from {endpoint} with the pins (step 4)")
    yield Told("The CA of the cluster is pinned; fetching cluster-info again with TLS verified")

    step = f"fetching cluster-info from {endpoint} with TLS verified (step 5)"
    reply = yield from fetch(Fetch(url, pem.certificates_pem(pinned)))
    budget.charge(reply)
    data = cluster_info_data(step, reply)

    step = f"comparing both copies of cluster-info from {endpoint} (step 6)"
    if data.get(jws.KUBECONFIG_KEY, text) != text:
        raise ClusterInfoChangedError(step)
    jws.verify(data, token, step)
    return replace(found, via="token+pins")


def _published(
    step: str, config: Kubeconfig, cluster: Cluster, user: User | None, warnings: tuple[str, ...], via: str
) -> TrustedCluster:
    """What a kubeconfig of the cluster says about its addresses and CAs. Raises UnusableClusterInfoError."""
    try:
        named = kubeconfig.client_cas(cluster)
        if named:
            pem.certificates(named)
    except (KubeconfigError, PkiError) as error:
        raise UnusableClusterInfoError(step, f"its CA of client certificates cannot be read: {error}") from None
    others = kubeconfig.other_addresses(config, cluster)
    return TrustedCluster(
        cluster.server,
        cluster.ca_pem,
        cluster.name,
        user,
        warnings,
        via,
        cluster.tls_server_name,
        cluster.proxy_url,
        others,
        named or cluster.ca_pem,
        published_servers=tuple(one.server for one in (cluster, *others)),
        published_ca_pem=cluster.ca_pem,
        client_ca_named=bool(named),
    )


def _answering(found: TrustedCluster, endpoint: str) -> TrustedCluster:
    """The same cluster with the published address that answered in front; one that is not published comes last."""
    for turn, one in enumerate(found.clusters):
        if kubeconfig.address_of(one.server) == endpoint:
            return _in_front(found, turn)
    return replace(found, others=(*found.others, Cluster(endpoint, f"https://{endpoint}", found.ca_pem)))


def _in_front(found: TrustedCluster, turn: int) -> TrustedCluster:
    """The same cluster beginning with another of its addresses."""
    first = found.clusters[turn]
    return replace(
        found,
        server=first.server,
        tls_server_name=first.tls_server_name,
        proxy_url=first.proxy_url,
        others=tuple(one for one in found.clusters if one is not first) if turn else found.others,
    )


def _signed_cluster(step: str, text: str) -> tuple[Kubeconfig, Cluster]:
    try:
        config = kubeconfigtext.parse(text)
        cluster = kubeconfig.discovery_cluster(config)
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None
    _refuse_untrusting(step, cluster)
    _refuse_broken_ca(step, cluster.ca_pem)
    if cluster.ca_file:
        raise UnusableClusterInfoError(step, "it names a file as its CA, which this machine does not have")
    return config, cluster


def _refuse_untrusting(step: str, cluster: Cluster) -> None:
    """Whoever joins will send credentials to this server: it must be HTTPS, and verified."""
    if _HTTPS_SERVER.fullmatch(cluster.server) is None:
        raise UnusableClusterInfoError(step, "its server is not an https URL")
    if cluster.insecure_skip_tls_verify:
        raise UnusableClusterInfoError(step, "it says insecure-skip-tls-verify, so nothing would prove the server")


def _refuse_broken_ca(step: str, ca_pem: bytes) -> None:
    try:
        _ = pem.certificates_among(ca_pem) if ca_pem else ()
    except PkiError as error:
        raise UnusableClusterInfoError(step, f"its CA cannot be read: {error}") from None


# ── by document ──────────────────────────────────────────────────────────────────────────────────────────────────


def discover_by_file(
    text: str | bytes,
    *,
    allow_credentials: bool = False,
    polling: Polling = Polling(),
    read: kubeconfig.Read | None = None,
    via: str = "file",
) -> Discovery:
    """Discovery by a document the caller has read (file or standard input). `read` opens the files that it names.

    Raises DiscoveryError.
    """
    step = "reading the discovery document (step 1)"
    try:
        config = kubeconfigtext.parse(text)
        cluster, user = _document(step, config, allow_credentials, read or _no_files)
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error), "correct the discovery document, or give another") from None
    found = replace(_published(step, config, cluster, user, (), via), published_servers=(), published_ca_pem=b"")
    budget = _Budget(polling)
    told: set[str] = set()
    while True:
        last: DiscoveryError | None = None
        for turn, asked in enumerate(found.clusters):
            if last is not None:
                yield _told(last, told)
            yield Told(f"Asking {asked.server} for cluster-info with the trust of the discovery document")
            step = f"fetching cluster-info from {asked.server} (step 2)"
            reply = yield from fetch(replace(_verified(asked, asked.ca_pem), credentials=user))
            budget.charge(reply)
            try:
                published = cluster_info_data(step, reply).get(jws.KUBECONFIG_KEY)
                return (yield from _completed(_in_front(found, turn), published))
            except ForbiddenAnswerError:
                yield Told("The server keeps cluster-info to itself; TLS proved it, so the discovery document stands")
                return _in_front(found, turn)
            except DiscoveryError as error:
                last = error
        assert last is not None  # every address was asked, and none passed
        wait = budget.next_round()
        if wait is None:
            raise last
        yield _told(last, told)
        yield wait


def _no_files(path: str) -> bytes:
    raise OSError(0, "files named by this document are not read")


def _document(
    step: str, config: Kubeconfig, allow_credentials: bool, read: kubeconfig.Read
) -> tuple[Cluster, User | None]:
    if not config.clusters:
        raise KubeconfigError("the kubeconfig has no cluster")
    cluster = kubeconfig.discovery_cluster(config)
    kubeconfig.validate(config)
    _refuse_untrusting(step, cluster)
    carrying = [user.name for user in config.users if user.credentials]
    if carrying and not allow_credentials:
        raise CredentialsRefusedError(step, ", ".join(f'"{name}"' for name in carrying))
    context = config.context(config.current_context)
    user = config.user(context.user) if context else None
    if user is not None:
        user = kubeconfig.flatten_user(user, read) if user.credentials else None
    cluster = kubeconfig.flatten_cluster(cluster, read)
    _refuse_broken_ca(step, cluster.ca_pem)
    return cluster, user


def _completed(found: TrustedCluster, published: str | None) -> Discovery:
    """What the document says, completed by what the cluster publishes now: differences are told, the document wins."""
    if published is None:
        return replace(found, warnings=('the cluster-info ConfigMap has no key "kubeconfig"',))
    try:
        config = kubeconfigtext.parse(published)
        cluster = kubeconfig.discovery_cluster(config)
        _refuse_broken_ca("reading cluster-info", cluster.ca_pem)
        now = _published("reading cluster-info", config, cluster, None, (), "")
    except (KubeconfigError, UnusableClusterInfoError) as error:
        return replace(found, warnings=(f"the kubeconfig of cluster-info cannot be used: {error}",))
    if cluster.server != found.server:
        warning = f'the server in the discovery document ("{found.server}") is not the one in cluster-info ("{cluster.server}")'
        found = replace(found, warnings=(warning,))
    known = {one.server for one in found.clusters}
    more = (replace(one, ca_pem=found.ca_pem) for one in now.clusters if one.server not in known)
    found = replace(
        found,
        others=(*found.others, *more),
        published_servers=now.published_servers,
        published_ca_pem=now.published_ca_pem,
    )
    if now.client_ca_pem and not found.client_ca_named:
        found = replace(found, client_ca_pem=now.client_ca_pem, client_ca_named=now.client_ca_named)
    if found.ca_pem or not cluster.ca_pem:
        return found
    try:
        yield from works(replace(found.cluster, ca_pem=cluster.ca_pem))
    except DiscoveryError as error:
        warning = f"the CA in cluster-info does not verify {found.server}, the machine's own roots do: {error}"
        return replace(found, warnings=(*found.warnings, warning))
    others = tuple(replace(one, ca_pem=cluster.ca_pem) for one in found.others)
    return replace(found, ca_pem=cluster.ca_pem, others=others)


def _verified(cluster: Cluster, ca_pem: bytes) -> Fetch:
    """Fetch cluster-info anonymously, TLS verified under `ca_pem`, or the machine's roots when that is empty."""
    return Fetch(
        cluster_info_url(cluster.server),
        ca_pem or None,
        roots="" if ca_pem else SYSTEM_ROOTS,
        tls_server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url,
    )


# ── for a member ─────────────────────────────────────────────────────────────────────────────────────────────────


def published_at(cluster: Cluster) -> Discovery:
    """cluster-info of a server that the CAs of `cluster` verify. Raises DiscoveryError."""
    step = f"fetching cluster-info from {cluster.server} with TLS verified"
    data = cluster_info_data(step, (yield from fetch(_verified(cluster, cluster.ca_pem))))
    if jws.KUBECONFIG_KEY not in data:
        raise UnusableClusterInfoError(step, f'it has no key "{jws.KUBECONFIG_KEY}"')
    config, found = _signed_cluster(step, data[jws.KUBECONFIG_KEY])
    return _published(step, config, found, None, (), "member")


def works(cluster: Cluster) -> Generator[Step, Reply, None]:
    """Prove that the CAs of `cluster` verify the server at its address. Raises DiscoveryError."""
    step = f"asking {cluster.server} with the CA that cluster-info names"
    with suppress(ForbiddenAnswerError, UnauthorizedAnswerError):  # TLS has proved the server
        cluster_info_data(step, (yield from fetch(_verified(cluster, cluster.ca_pem))))


# ── by URL ───────────────────────────────────────────────────────────────────────────────────────────────────────


def discover_by_url(url: str, *, allow_credentials: bool = False, polling: Polling = Polling()) -> Discovery:
    """Discovery by a document behind an https URL, verified with the machine's own roots, fetched once. Raises DiscoveryError."""
    shown = _public(url)
    yield Told(f"Fetching the discovery document {shown}")
    step = f"fetching the discovery document {shown} (step 1)"
    reply = yield from fetch(Fetch(url, roots=SYSTEM_ROOTS))
    if isinstance(reply, HttpFailure):
        raise failure(step, reply)
    if reply.status != 200:
        raise RefusedAnswerError(step, reply.status)
    return (yield from discover_by_file(reply.body, allow_credentials=allow_credentials, polling=polling, via="url"))


def _public(url: str) -> str:
    """The URL without what may be a password: whoever is named before the host, and the query, which signs some URLs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
