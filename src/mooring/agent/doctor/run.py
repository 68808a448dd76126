"""Diagnosis of the way from this machine to its cluster: performs the steps of `mooring.trust.doctor`.

Rules kept here (docs/find-what-is-broken.md):
* Nothing is written: neither a file here, nor an object in the cluster. Reviews are judged by a server and not stored.
* A credential is sent over TLS only that the CA of the cluster verified.
* Each request, connection and handshake ends within `timeout`. A step that cannot be done says why, and the next ones go on.
* Of several addresses the first that passes the steps of the network is used, else the one that came furthest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from mooring.agent import certificaterequest, machineid, node, registration
from mooring.agent.doctor import probes
from mooring.agent.doctor.machine import (
    WITH_TOKEN,
    LocalFiles,
    judge_disk,
    judge_files,
    judge_machine,
    judge_service,
    read_files,
)
from mooring.agent.doctor.probes import DialledPlace, Handshake, UnresolvedError
from mooring.agent.machineid import MachineIdentity
from mooring.agent.steps import described, server_date
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http import tls
from mooring.client.http.connection import proxies_for
from mooring.client.http.requests import drive_notifying, fetch
from mooring.clock import Clock, parse_rfc3339
from mooring.errors import ConfigError, ForbiddenError, MooringError, NotFoundError, UnauthorizedError
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles, names
from mooring.secret import Secret
from mooring.trust.answertext import explained_by
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import SIGNATURE_PREFIX
from mooring.trust.discovery.errors import SignatureMissingError
from mooring.trust.discovery.fetch import (
    DiscoveryExchange,
    Polling,
    cluster_info_request,
    connection_error,
    discover_by_token,
    pinned_ca,
    read_cluster_info,
    trust_of,
)
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.discovery.trustedcluster import TrustedCluster, published_cluster
from mooring.trust.doctor import (
    BY_NAME,
    CONNECTED,
    FAILED,
    NETWORK_STEPS,
    OK,
    STEPS,
    Diagnosis,
    FinishedStep,
    Judgement,
    SeenCertificate,
    blocking,
    failed,
    failed_by,
    judge_api,
    judge_certificate,
    judge_clock,
    judge_closed_handshake,
    judge_first_bytes,
    judge_names,
    judge_silent_handshake,
    judge_tcp,
    judge_unresolved,
    judge_unverified,
    ok,
    skipped,
    warning,
)
from mooring.trust.httpexchange import UNVERIFIED, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpproxy import Proxy, ProxySettingError
from mooring.trust.httpsurl import dialled_host, is_address, tls_name, url_of
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, address_of

MAX_VERSION = 1 << 16
"""Bytes of a response to /version: real ones have a kilobyte, a page of a portal some more."""
LEASE_SECONDS = 40
"""`leaseDurationSeconds` of a kubelet and of the agent."""
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy")
EXCEPTION_VARIABLES = ("NO_PROXY", "no_proxy")
REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ACCESS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

Notify = Callable[[str], None]
"""Is told the name of each step that begins."""


def ignore(name: str) -> None:
    """Drop the name of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Knowledge of the cluster, and the time to wait. Without `addresses` those of the files of this machine are used."""

    addresses: tuple[str, ...] = ()
    """Each `host:port`."""
    token: BootstrapToken | None = None
    pins: tuple[Pin, ...] = ()
    ca_hash: str = ""
    document: TrustedCluster | None = None
    """The cluster of a discovery document."""
    node_name: str = ""
    """The name that was given; "" for that of the certificate, else that of the machine."""
    host_name: str = ""
    root: Path = Path("/")
    timeout: float = 5.0
    """Seconds of each request, connection and handshake."""
    machine: MachineIdentity = field(default_factory=lambda: machineid.this_machine())


class NoAddressError(ConfigError):
    """Neither the caller nor the files of this machine name a server."""


async def diagnose(options: DoctorOptions, clock: Clock, notify: Notify = ignore) -> Diagnosis:
    """Perform every step and return what was found. Raises NoAddressError."""
    return await _Doctor(options, clock, notify).run()


@dataclass(slots=True)
class _Target:
    """Findings of the steps about one address."""

    address: str
    way: Cluster
    proxy: Proxy | None = None
    place: DialledPlace | None = None
    """Where to connect; None before a connection passed, and where only the HTTP client knows the way."""
    resolved: probes.Addresses = ()
    seen: SeenCertificate | None = None
    version: HttpResponse | HttpFailure | None = None
    cluster_info: HttpResponse | HttpFailure | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    trusted: Cluster | None = None
    """The way by which credentials may be sent."""

    @property
    def host(self) -> str:
        return dialled_host(urlsplit(self.way.server))

    @property
    def port(self) -> int:
        return urlsplit(self.way.server).port or 443


class _Doctor:
    def __init__(self, options: DoctorOptions, clock: Clock, notify: Notify) -> None:
        self.options = options
        self.clock = clock
        self.notify = notify
        self.files: LocalFiles = read_files(options.root)
        self.finished: dict[str, FinishedStep] = {}

    async def run(self) -> Diagnosis:
        addresses = self._addresses()
        for name, judge in (("files", self._files), ("machine-id", self._machine_id), ("disk", self._disk)):
            await self._step(name, judge)
        others: list[tuple[str, FinishedStep]] = []
        tried: list[tuple[int, _Target, dict[str, FinishedStep]]] = []
        for address in addresses:
            target = _Target(address, self._way(address))
            steps = await self._network(target)
            broken = next((at for at, one in enumerate(NETWORK_STEPS) if steps[one].judgement.result == FAILED), None)
            tried.append((len(NETWORK_STEPS) if broken is None else broken, target, steps))
            if broken is None:
                break
        _, target, steps = max(tried, key=lambda one: one[0])
        for at, other, found in tried:
            if other is not target:
                others.append((other.address, found[NETWORK_STEPS[at]]))
        self.finished |= steps
        for name, work in (
            ("cluster-info", self._cluster_info),
            ("signature", self._signature),
            ("pin", self._pin),
            ("token", self._token),
            ("name", self._name),
            ("request", self._request),
            ("certificate", self._certificate),
            ("node", self._node),
            ("service", self._service),
        ):
            await self._step(name, partial(work, target))
        return Diagnosis(target.address, tuple(self.finished[one.name] for one in STEPS), tuple(others))

    def _addresses(self) -> tuple[str, ...]:
        options = self.options
        found = options.addresses or (
            tuple(address_of(one.server) for one in options.document.clusters) if options.document is not None else ()
        )
        found = found or tuple(dict.fromkeys(address_of(one.server) for one in self.files.clusters))
        if not found:
            where = "" if options.root == Path("/") else f" below {options.root}"
            hidden = "; files of a cluster are there, and only root may read them" if self.files.unreadable else ""
            raise NoAddressError(
                f"no address of a server is given, and no files of this machine{where} name one{hidden}: "
                "give ADDRESS (host:port)"
            )
        return found

    def _way(self, address: str) -> Cluster:
        document = self.options.document.clusters if self.options.document is not None else ()
        found = next((one for one in document if address_of(one.server) == address), None)
        return found or self.files.cluster_at(address) or Cluster("", url_of(address))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _step(
        self, name: str, work: Callable[[], Awaitable[Judgement]], into: dict[str, FinishedStep] | None = None
    ) -> None:
        steps = self.finished if into is None else into
        self.notify(name)
        step = BY_NAME[name]
        if blocked := blocking(name, self.finished | steps):
            steps[name] = FinishedStep(step, skipped(f"{blocked} failed"), blocked_by=blocked)
            return
        started = self.clock.monotonic()
        try:
            judgement = await work()
        except MooringError as error:
            judgement = failed_by(described(error))
        except TimeoutError:
            judgement = failed(
                f"no answer within {self.options.timeout:g} s", "see the load of the server, or give a longer --timeout"
            )
        steps[name] = FinishedStep(step, judgement, self.clock.monotonic() - started)

    async def _files(self) -> Judgement:
        return judge_files(self.files, self.options.node_name, self.clock.now())

    async def _machine_id(self) -> Judgement:
        return judge_machine(self.files, self.options.machine)

    async def _disk(self) -> Judgement:
        return judge_disk(self.files, self.options.root)

    async def _network(self, target: _Target) -> dict[str, FinishedStep]:
        steps: dict[str, FinishedStep] = {}
        for name, work in (
            ("proxy", self._proxy),
            ("names", self._names),
            ("tcp", self._tcp),
            ("tls", self._tls),
            ("clock", self._clock),
            ("api", self._api),
        ):
            await self._step(name, partial(work, target), steps)
        return steps

    # ── the network ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _proxy(self, target: _Target) -> Judgement:
        try:
            target.proxy = proxies_for(target.way)(target.way.server)
        except ProxySettingError as error:
            return failed(str(error), "correct the variable, or except the server by NO_PROXY")
        if target.proxy is not None:
            return ok(f"requests go by {target.proxy}", proxy=target.proxy.shown_url, source=target.proxy.source)
        variable = next((one for one in PROXY_VARIABLES if os.environ.get(one)), "")
        if not variable:
            return ok("no variable names a proxy", proxy="", source="")
        if target.way.is_k3s:
            return ok(f"{variable} is set, and agents of k3s do not use it", proxy="", source=variable)
        exception = next((one for one in EXCEPTION_VARIABLES if os.environ.get(one)), "")
        reason = f"{exception} excepts {target.host}" if exception else "loopback addresses use no proxy"
        return ok(f"{variable} is set, and {reason}", proxy="", source=variable)

    async def _names(self, target: _Target) -> Judgement:
        host, port = self._dialled(target)
        if is_address(host.partition("%")[0]):
            version = 6 if ":" in host else 4
            target.resolved = ((version, host),)
            return judge_names(host, target.resolved, is_address=True, in_hosts=False)
        in_hosts = probes.is_in_hosts(host)
        try:
            async with asyncio.timeout(self.options.timeout):
                target.resolved = await probes.resolve(host, port)
        except UnresolvedError as error:
            return judge_unresolved(host, str(error), is_final=error.is_final, in_hosts=in_hosts)
        except TimeoutError:
            reason = f"no answer within {self.options.timeout:g} s"
            return judge_unresolved(host, reason, is_final=False, in_hosts=in_hosts)
        return judge_names(host, target.resolved, is_address=False, in_hosts=in_hosts)

    async def _tcp(self, target: _Target) -> Judgement:
        _, port = self._dialled(target)
        attempts = await asyncio.gather(
            *(
                probes.connect_to(address, port, self.options.timeout)
                for _, address in target.resolved[: probes.MAX_ADDRESSES]
            )
        )
        good = next((one for one in attempts if one.outcome == CONNECTED), None)
        if good is not None:
            tunnel = address_of(target.way.server).partition("/")[0] if target.proxy is not None else ""
            target.place = DialledPlace(good.address, port, tunnel)
        return judge_tcp(port, attempts)

    def _dialled(self, target: _Target) -> tuple[str, int]:
        """Return host and port to which this machine connects: those of the proxy, where there is one."""
        if target.proxy is None:
            return target.host, target.port
        parts = urlsplit(target.proxy.url)
        return dialled_host(parts), parts.port or {"https": 443, "http": 80}.get(parts.scheme, 1080)

    async def _tls(self, target: _Target) -> Judgement:
        place, name = target.place, tls_name(target.way.tls_server_name or target.host)
        assert place is not None  # a connection passed
        proxy = urlsplit(target.proxy.url) if target.proxy is not None else None
        if proxy is not None and (proxy.scheme != "http" or proxy.username):
            return skipped(f"the proxy alone connects the server ({proxy.scheme}): step api says whether it does")
        done = await probes.handshake(place, name, probes.unverifying(), self.options.timeout)
        if not done.certificate:
            return await self._judge_no_handshake(target, place, done)
        seen = target.seen = probes.read_certificate(done.certificate)
        if seen is None:
            return failed("the server shows a certificate that cannot be read", "replace the certificate of the server")
        now = self.clock.now()
        server_time = None if seen.valid_at(now) else self._server_time(await self._version(target))
        judgement = judge_certificate(seen, now, server_time)
        if judgement.result != OK:
            return judgement
        return await self._verified(target, place, name, seen) or judgement

    async def _judge_no_handshake(self, target: _Target, place: DialledPlace, done: Handshake) -> Judgement:
        if done.refusal:
            assert target.proxy is not None  # only a proxy refuses a tunnel
            return failed(
                f"{target.proxy.refusal(done.refusal)}",
                "check the proxy, and the setting that names it: NO_PROXY excepts servers",
            )
        first = done.first
        if not probes.looks_like_tls(first) and not place.tunnel:
            # A server in plain HTTP may wait for the end of a line, close without a word, or answer by a page alone.
            first = await probes.first_bytes(place, target.host, self.options.timeout) or first
        if first and not probes.looks_like_tls(first):
            return judge_first_bytes(first)
        if done.silent:
            return judge_silent_handshake(self.options.timeout, done.received)
        return judge_closed_handshake(done.error)

    async def _verified(
        self, target: _Target, place: DialledPlace, name: str, seen: SeenCertificate
    ) -> Judgement | None:
        """Return a judgement when the CA of the cluster is known and does not verify the server."""
        anchors = await self._known_anchors(target)
        if not anchors:
            return None
        done = await probes.handshake(place, name, tls.for_api_server(anchors), self.options.timeout)
        if not done.unverified or done.is_time:
            return None
        subjects = ", ".join(names.printable(one.subject) for one in bundles.certificates_among(anchors))
        return judge_unverified(seen, done.unverified, subjects, is_name=done.is_name)

    async def _known_anchors(self, target: _Target) -> bytes:
        """Return the CA that must verify the server, as PEM: from the files, a document, or what pins and token vouch for."""
        options = self.options
        if target.way.ca_pem:
            return target.way.ca_pem
        if options.token is None and not options.pins and not options.ca_hash:
            return b""
        # Errors of these are those of later steps.
        with suppress(MooringError):
            data = read_cluster_info(
                f"fetching cluster-info from {target.address}", await self._fetch_cluster_info(target)
            )
            if options.token is not None:
                clusterinfo.verify(data, options.token)
            _, cluster = published_cluster("cluster-info", data.get(clusterinfo.KUBECONFIG_KEY, ""))
            return self._vouched(cluster.ca_pem)
        return b""

    def _vouched(self, ca_pem: bytes) -> bytes:
        """Return the certificates that the hash of a token and the pins vouch for. Raises DiscoveryError, ConfigError."""
        if self.options.ca_hash:
            ca_pem = check_ca_hash(ca_pem, self.options.ca_hash)
        if self.options.pins:
            ca_pem = bundles.certificates_pem(check_pins(ca_pem, self.options.pins))
        return ca_pem

    async def _send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        return await fetch(replace(request, timeout=self.options.timeout, within=self.options.timeout), self.clock)

    async def _version(self, target: _Target) -> HttpResponse | HttpFailure:
        if target.version is None:
            trust = replace(trust_of(target.way), ca_pem=b"", verify=False)
            url = f"{target.way.server.rstrip('/')}/version"
            target.version = await self._send(HttpRequest(trust, url=url, max_bytes=MAX_VERSION))
        return target.version

    async def _fetch_cluster_info(self, target: _Target) -> HttpResponse | HttpFailure:
        if target.cluster_info is None:
            trust = trust_of(target.way) if self.options.document is not None else UNVERIFIED
            target.cluster_info = await self._send(cluster_info_request(target.way.server, trust))
        return target.cluster_info

    @staticmethod
    def _server_time(reply: HttpResponse | HttpFailure) -> datetime | None:
        return server_date(reply.headers) if isinstance(reply, HttpResponse) else None

    async def _clock(self, target: _Target) -> Judgement:
        reply = await self._version(target)
        if isinstance(reply, HttpFailure):
            return skipped("no response came that has a Date")
        certificates: list[tuple[str, datetime, datetime]] = []
        if target.seen is not None:
            certificates.append(("the certificate of the server", target.seen.begin, target.seen.end))
        if (pair := self.files.pair) is not None:
            leaf = pair.leaf
            certificates.append(("the certificate of this node", leaf.not_valid_before_utc, leaf.not_valid_after_utc))
        return judge_clock(self.clock.now(), self._server_time(reply), certificates)

    async def _api(self, target: _Target) -> Judgement:
        reply = await self._version(target)
        if isinstance(reply, HttpFailure):
            return failed_by(str(connection_error("asking for /version", reply)))
        return judge_api(reply.status, reply.headers, reply.body)

    # ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _cluster_info(self, target: _Target) -> Judgement:
        options = self.options
        is_asked = options.token is not None or options.pins or options.ca_hash or options.document is not None
        if not is_asked and target.way.ca_pem:
            return skipped("the files of this machine hold the CA of the cluster")
        target.data = read_cluster_info(
            f"fetching cluster-info from {target.address}", await self._fetch_cluster_info(target)
        )
        if not target.data.get(clusterinfo.KUBECONFIG_KEY):
            return failed(
                'the ConfigMap cluster-info has no key "kubeconfig"',
                "the cluster is not set up for token discovery: ask its administrator, or join with --discovery-file",
            )
        signers = self._signers(target)
        return ok(f"cluster-info is there, signed by {len(signers)} tokens", signers=signers)

    @staticmethod
    def _signers(target: _Target) -> list[str]:
        return sorted(one.removeprefix(SIGNATURE_PREFIX) for one in target.data if one.startswith(SIGNATURE_PREFIX))

    async def _signature(self, target: _Target) -> Judgement:
        token = self.options.token
        if token is None:
            return skipped("no token is given")
        if self.options.document is not None:
            return skipped("the discovery document vouches for the cluster")
        signers = self._signers(target)
        try:
            clusterinfo.verify(target.data, token, "cluster-info")
        except SignatureMissingError as error:
            listed = ", ".join(signers) or "none"
            judgement = failed_by(str(error), tokenId=token.id, signers=signers)
            return replace(judgement, message=f"{judgement.message} (tokens that sign: {listed})")
        except MooringError as error:
            return failed_by(str(error), tokenId=token.id, signers=signers)
        if not self._is_pinned:
            target.trusted = self._published(target)
        return ok(f"cluster-info is signed by token {token.id}", tokenId=token.id, signers=signers)

    @property
    def _is_pinned(self) -> bool:
        return bool(self.options.pins or self.options.ca_hash)

    def _published(self, target: _Target) -> Cluster:
        """Return the way to this address with the CA that cluster-info names."""
        _, cluster = published_cluster("cluster-info", target.data[clusterinfo.KUBECONFIG_KEY])
        return replace(cluster, server=target.way.server, extensions=())

    async def _pin(self, target: _Target) -> Judgement:
        options = self.options
        if options.document is not None:
            target.trusted = target.way
            return skipped("the discovery document holds the CA")
        if not self._is_pinned:
            if target.trusted is not None:
                return warning(
                    "no pin is given: the token alone vouches for the cluster",
                    "give --discovery-token-ca-cert-hash, as mooring token create --print-join-command prints it",
                )
            if target.way.ca_pem:
                target.trusted = target.way
            return skipped("no pin is given")
        found = self._published(target)
        anchors = self._vouched(found.ca_pem)
        exchange: DiscoveryExchange[object]
        if options.token is not None:
            exchange = discover_by_token(
                (target.address,),
                options.token,
                options.pins,
                vouched=partial(check_ca_hash, wanted=options.ca_hash) if options.ca_hash else None,
                polling=Polling(attempts=1, total=options.timeout),
            )
        else:
            exchange = pinned_ca(target.way.server, options.pins)
        await drive_notifying(exchange, self._send, self.clock.sleep)
        target.trusted = replace(found, ca_pem=anchors)
        return ok("the CA of the cluster is pinned, and verifies the server")

    # ── the token ────────────────────────────────────────────────────────────────────────────────────────────────

    def _client(self, target: _Target, user: KubeconfigUser) -> ClusterClient:
        assert target.trusted is not None  # the callers checked it
        return ClusterClient(target.trusted, user, self.clock)

    def _token_user(self) -> KubeconfigUser | None:
        token = self.options.token
        return KubeconfigUser("doctor", token=Secret(token.reveal())) if token is not None else None

    async def _token(self, target: _Target) -> Judgement:
        token, user = self.options.token, self._token_user()
        if token is None or user is None:
            return skipped("no token is given")
        if target.trusted is None:
            return skipped("no CA is known with which the server could be verified")
        async with asyncio.timeout(self.options.timeout), self._client(target, user) as client:
            try:
                name, groups = await self._whoami(client)
                may = await self._may_request(client)
            except UnauthorizedError as error:
                return failed(
                    f'the server does not accept token id "{token.id}": it is unknown, was deleted or revoked, has expired, its '
                    "secret is wrong, it lacks the usage authentication, or it is not for the network of this machine",
                    "list tokens on the server with `mooring token list`, make one with `mooring token create`"
                    + explained_by(error.audit_id),
                    tokenId=token.id,
                )
        facts = {"tokenId": token.id, "username": name, "groups": groups}
        if not may:
            return failed(
                f"the server accepts token {token.id} as {name}, and does not let it request certificates",
                "bind its groups to the ClusterRole system:node-bootstrapper",
                **facts,
            )
        return ok(f"the server accepts token {token.id}{f' as {name}' if name else ''}", **facts)

    async def _whoami(self, client: ClusterClient) -> tuple[str, list[str]]:
        """Return name and groups of the caller; "" from a server without SelfSubjectReview. Raises ApiError, PeerError."""
        review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
        try:
            found = await client.post_path(REVIEW_PATH, review)
        except (NotFoundError, ForbiddenError):
            return "", []
        info = (found.get("status") or {}).get("userInfo") or {}
        return str(info.get("username", "")), [str(one) for one in info.get("groups") or ()]

    async def _may_request(self, client: ClusterClient) -> bool:
        """Return whether the caller may create certificate requests. Raises ApiError, PeerError."""
        wanted = {"group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create"}
        review = {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": wanted},
        }
        try:
            found = await client.post_path(ACCESS_PATH, review)
        except (NotFoundError, ForbiddenError):
            return True
        return bool((found.get("status") or {}).get("allowed"))

    def _node_name(self) -> str:
        return self.options.node_name or self.files.node_name or self.options.host_name

    async def _name(self, target: _Target) -> Judgement:
        name, user = self._node_name(), self._token_user()
        if self.files.is_member:
            return skipped(f"this machine has the name {self.files.node_name}: step node says what became of it")
        if user is None or target.trusted is None:
            return skipped("no token is given that could look up Nodes")
        try:
            async with asyncio.timeout(self.options.timeout), self._client(target, user) as client:
                existing = await client.get("nodes", name)
        except NotFoundError:
            return ok(f"the name {name} is free", nodeName=name)
        except ForbiddenError:
            return skipped("the server does not let this token look up Nodes", nodeName=name)
        if node.is_in_use(existing, self.clock.now()):
            return failed(
                f'the cluster has a node in use of the name "{name}"',
                f"choose another with --node-name, or if that machine is gone, delete it with `kubectl delete node {name}`",
                nodeName=name,
            )
        return ok(f"the node {name} is there and not in use", nodeName=name)

    # ── the request, the certificate, the Node ───────────────────────────────────────────────────────────────────

    def _pair_user(self) -> KubeconfigUser | None:
        pair = self.files.pair
        if pair is None:
            return None
        return KubeconfigUser("doctor", certificate_pem=pair.certificate_pem, key=pair.key_pem)

    async def _request(self, target: _Target) -> Judgement:
        key = self.files.pending_key
        if key is None:
            return skipped("no request of this machine waits")
        usages = certificaterequest.CertificateTemplate(self._node_name()).usages(key)
        user_name = NODE_PREFIX + self._node_name()
        name = certificaterequest.request_name(key, user_name, (NODES,), usages)
        user = self._token_user() or self._pair_user()
        if user is None or target.trusted is None or self.files.way == "k3s":
            return skipped("a key waits for its certificate; give the token to learn about its request", request=name)
        try:
            async with asyncio.timeout(self.options.timeout), self._client(target, user) as client:
                found = await client.get("certificatesigningrequests", name)
        except NotFoundError:
            return skipped("a key is here, and the cluster has no request for it", request=name)
        except (ForbiddenError, UnauthorizedError) as error:
            return skipped(f"the server does not let this credential read the request: {error}", request=name)
        return _judge_request(found, name)

    async def _certificate(self, target: _Target) -> Judgement:
        user = self._pair_user()
        if user is None:
            return skipped("this machine has no certificate")
        way = self._member_way(target)
        if way is None:
            return skipped("the certificate here is of another cluster")
        name = self.files.node_name
        try:
            async with asyncio.timeout(self.options.timeout), ClusterClient(way, user, self.clock) as client:
                await client.get("nodes", name)
        except UnauthorizedError as error:
            refused = registration.CertificateRefusedError(name, error.audit_id)
            return replace(failed_by(str(refused)), remedy=f"{WITH_TOKEN}{explained_by(error.audit_id)}")
        except (NotFoundError, ForbiddenError):
            pass
        return ok(f"the server accepts the certificate of {NODE_PREFIX}{name}", nodeName=name)

    def _member_way(self, target: _Target) -> Cluster | None:
        """Return the way by which the certificate may be sent to this address; None for a server of another cluster."""
        if (known := self.files.cluster_at(target.address)) is not None:
            return known
        if target.trusted is None or not self.files.clusters:
            return None
        try:
            shared = set(bundles.certificates_among(target.trusted.ca_pem)) & set(
                bundles.certificates_among(self.files.clusters[0].ca_pem)
            )
        except PkiError:
            return None
        return target.trusted if shared else None

    async def _node(self, target: _Target) -> Judgement:
        user, way, name = self._pair_user(), self._member_way(target), self.files.node_name
        if user is None or way is None:
            return skipped("this machine is not a member")
        uid = self.files.record.read().node_uid
        async with asyncio.timeout(self.options.timeout), ClusterClient(way, user, self.clock) as client:
            try:
                found: Obj | None = await client.get("nodes", name)
            except NotFoundError:
                found = None
            except ForbiddenError as error:
                return skipped(f"the server does not let this node read its Node: {error}")
            try:
                registration.check_registered(name, uid, found)
            except registration.NodeDeletedError as error:
                return failed(str(error), WITH_TOKEN, nodeName=name)
            if found is None:
                return warning(
                    f"there is no Node {name}", "mooring agent registers it, unless --register-node none", nodeName=name
                )
            try:
                lease: Obj = await client.get("leases", name, "kube-node-lease")
            except (NotFoundError, ForbiddenError):
                lease = {}
        return _judge_node(found, lease, self._time_of_server(target))

    def _time_of_server(self, target: _Target) -> datetime:
        server_time = self._server_time(target.version) if target.version is not None else None
        return server_time or self.clock.now()

    async def _service(self, target: _Target) -> Judgement:
        step = self.finished["node"].judgement
        is_fresh = step.result == OK and bool(step.facts.get("fresh"))
        return await judge_service(self.files, self.options.root, self.options.timeout, is_fresh=is_fresh)


def _judge_request(found: Obj, name: str) -> Judgement:
    conditions = (found.get("status") or {}).get("conditions") or ()
    by_type = {str(one.get("type")): one for one in conditions}
    for kind, word in (("Denied", "was denied"), ("Failed", "failed at the signer")):
        if kind in by_type:
            reason = by_type[kind].get("message") or by_type[kind].get("reason") or "no reason is given"
            return failed(f"the request {name} {word}: {reason}", "join again with a token that fits", request=name)
    if "Approved" not in by_type:
        return failed(
            f"the request {name} waits for a person",
            f"approve it with {certificaterequest.how_to_approve(name)}",
            request=name,
        )
    if certificaterequest.certificate_of(found):
        return ok(f"the request {name} is approved and signed: join again to fetch it", request=name)
    return failed(f"the request {name} is approved and not signed", "see the log of the signer", request=name)


def _judge_node(found: Obj, lease: Obj, now: datetime) -> Judgement:
    name, ready = found["metadata"]["name"], registration.ready_condition(found)
    age = _age(lease, now)
    status = str(ready.get("status", ""))
    facts = {
        "nodeName": name,
        "ready": status,
        "leaseAgeSeconds": None if age is None else round(age.total_seconds(), 1),
        "fresh": age is not None and age < timedelta(seconds=LEASE_SECONDS),
    }
    if (age is not None and not facts["fresh"]) or status == "Unknown":
        since = f" {round(age.total_seconds())} s ago" if age is not None else ""
        return failed(
            f"the Node {name} is there, and its last heartbeat came{since or ' long ago'}",
            "start the agent (mooring agent install) or the kubelet of this machine",
            **facts,
        )
    if status != "True":
        return warning(f"the Node {name} is not Ready: {ready.get('message') or 'no reason is given'}", "", **facts)
    if age is None:
        return ok(f"the Node {name} is Ready; it has no Lease", **facts)
    return ok(f"the Node {name} is Ready, with a heartbeat {round(age.total_seconds())} s ago", **facts)


def _age(lease: Obj, now: datetime) -> timedelta | None:
    text = (lease.get("spec") or {}).get("renewTime")
    try:
        return max(timedelta(0), now - parse_rfc3339(text)) if isinstance(text, str) else None
    except ValueError:
        return None
