"""Examination of one machine: what is known of the cluster, its files, and what the steps learn about an address.

Rules kept here: each request ends within the timeout, and one that several steps need is sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from mooring.agent import machineid
from mooring.agent.doctor import probes
from mooring.agent.doctor.machine import LocalFiles, read_files
from mooring.agent.doctor.probes import DialledPlace
from mooring.agent.k3s.files import DATA_DIR
from mooring.agent.machineid import MachineIdentity
from mooring.agent.steps import server_date
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import drive_notifying, fetch
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import SIGNATURE_PREFIX
from mooring.trust.discovery.fetch import DiscoveryExchange, Polling, cluster_info_request, trust_of
from mooring.trust.discovery.pins import Pin
from mooring.trust.discovery.trustedcluster import TrustedCluster, published_cluster, trusted_cluster
from mooring.trust.doctor import SeenCertificate
from mooring.trust.httpexchange import UNVERIFIED, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpproxy import Proxy
from mooring.trust.httpsurl import dialled_host, url_of
from mooring.trust.joinconfiguration import IdentityToken
from mooring.trust.k3s.token import K3sToken
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, address_of, cluster_id

R = TypeVar("R")
MAX_VERSION = 1 << 16
"""Bytes of a response to /version: real ones have a kilobyte, a page of a portal some more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Knowledge of the cluster, and the time to wait. Without `addresses` those of the files of this machine are used."""

    addresses: tuple[str, ...] = ()
    """Each `host:port`."""
    token: BootstrapToken | None = None
    tls_token: BootstrapToken | None = None
    """Token of the certificate request; None: `token`."""
    identity: IdentityToken | None = None
    """Identity token of the certificate request, in place of both."""
    pins: tuple[Pin, ...] = ()
    ca_hash: str = ""
    k3s_token: K3sToken | None = None
    """A token in k3s's form. One with a password joins k3s's way alone."""
    is_k3s_way: bool = False
    """Examine the steps of a join k3s's way."""
    document: TrustedCluster | None = None
    """The cluster of a discovery document."""
    node_name: str = ""
    """The name that was given; "" for that of the certificate, else that of the machine."""
    host_name: str = ""
    root: Path = Path("/")
    data_dir: str = DATA_DIR
    """Directory of k3s, below the root."""
    timeout: float = 5.0
    """Seconds of each request, connection and handshake."""
    machine: MachineIdentity = field(default_factory=lambda: machineid.this_machine())


class NoAddressError(ConfigError):
    """Neither the caller nor the files of this machine name a server."""


@dataclass(slots=True)
class ProbedAddress:
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
    node: Obj | MooringError | None = None
    """The Node, or the error for the certificate's request; None before it was sent."""
    trusted: Cluster | None = None
    """The way by which credentials may be sent."""

    @property
    def url(self) -> str:
        """URL of the server, to which a path is added."""
        return self.way.server.rstrip("/")

    @property
    def server_time(self) -> datetime | None:
        """Time in the Date of the response to /version; None without one."""
        return server_date(self.version.headers) if isinstance(self.version, HttpResponse) else None

    @property
    def signers(self) -> list[str]:
        """Ids of the tokens that sign cluster-info."""
        return sorted(one.removeprefix(SIGNATURE_PREFIX) for one in self.data if one.startswith(SIGNATURE_PREFIX))

    @property
    def host(self) -> str:
        """Host of the server."""
        return dialled_host(urlsplit(self.way.server))

    @property
    def port(self) -> int:
        """Port of the server."""
        return urlsplit(self.way.server).port or 443


class Examination:
    """One run: its options, its clock, the files of the machine, and the requests that steps share."""

    def __init__(self, options: DoctorOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.files: LocalFiles = read_files(options.root, options.data_dir)

    def addresses(self, *, may_lack: bool = False) -> tuple[str, ...]:
        """Return the addresses to examine, as `host:port`. Raises NoAddressError when there is none, unless that `may_lack`."""
        options = self.options
        document = options.document.clusters if options.document is not None else ()
        ways = document or self.files.clusters
        found = options.addresses or tuple(dict.fromkeys(address_of(one.server) for one in ways))
        if not found and not may_lack:
            where = "" if options.root == Path("/") else f" below {options.root}"
            hidden = "; files of a cluster are there, and only root may read them" if self.files.unreadable else ""
            raise NoAddressError(
                f"no address of a server is given, and no files of this machine{where} name one{hidden}: "
                "give ADDRESS (host:port)"
            )
        return found

    def way(self, address: str) -> Cluster:
        """Return the way to an address: by a document, by the files of this machine, or the direct one."""
        options, url = self.options, url_of(address)
        known = (*(options.document.clusters if options.document is not None else ()), *self.files.clusters)
        if (found := next((one for one in known if address_of(one.server) == address), None)) is not None:
            return found
        # A member trusts the CA in its files, by whichever address. A token, a pin or a document may be of another cluster.
        if self.files.clusters and not (options.token or options.k3s_token or options.pins or options.document):
            member = self.files.clusters[0]
            return Cluster("", url, member.ca_pem, proxy_url=member.proxy_url, is_k3s=member.is_k3s)
        return Cluster("", url, is_k3s=self.joins_k3s_way_alone)

    @property
    def joins_k3s_way_alone(self) -> bool:
        """True when no cluster-info is needed."""
        token = self.options.k3s_token
        return self.options.is_k3s_way or (token is not None and token.bootstrap is None)

    @property
    def ca_hash_of_k3s(self) -> str:
        """Hash of the CA in the token of a join k3s's way; "" without one."""
        token = self.options.k3s_token
        return token.ca_hash if token is not None else ""

    @property
    def polling(self) -> Polling:
        """One attempt of an exchange."""
        return Polling(attempts=1, total=self.options.timeout)

    async def drive(self, exchange: DiscoveryExchange[R]) -> R:
        """Return the result of an exchange. Raises its errors."""
        return await drive_notifying(exchange, self.send, self.clock.sleep)

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send a request, with the deadline of this run."""
        return await fetch(replace(request, timeout=self.options.timeout, within=self.options.timeout), self.clock)

    async def version(self, target: ProbedAddress) -> HttpResponse | HttpFailure:
        """Return the response to an anonymous GET /version, which is not verified."""
        if target.version is None:
            trust = replace(trust_of(target.way), ca_pem=b"", verify=False)
            target.version = await self.send(HttpRequest(trust, url=f"{target.url}/version", max_bytes=MAX_VERSION))
        return target.version

    async def fetch_cluster_info(self, target: ProbedAddress) -> HttpResponse | HttpFailure:
        """Return the response to an anonymous request for cluster-info, verified by a document alone."""
        if target.cluster_info is None:
            trust = trust_of(target.way) if self.options.document is not None else UNVERIFIED
            target.cluster_info = await self.send(cluster_info_request(target.way.server, trust))
        return target.cluster_info

    @property
    def is_pinned(self) -> bool:
        """True when pins or the hash in a token vouch for the CA."""
        return bool(self.options.pins or self.options.ca_hash)

    def published(self, target: ProbedAddress, data: Mapping[str, str]) -> Cluster:
        """Return the way to this address with the CA that cluster-info names. Raises DiscoveryError."""
        step = "reading cluster-info"
        config, cluster = published_cluster(step, data.get(clusterinfo.KUBECONFIG_KEY, ""))
        found = trusted_cluster(step, config, cluster, "token").led_by_endpoint(target.address)
        return next(one for one in found.clusters if address_of(one.server) == target.address)

    def is_own_cluster(self, data: Mapping[str, str]) -> bool:
        """Return whether cluster-info has the id of the cluster that the files of this machine remember."""
        _, cluster = published_cluster("reading cluster-info", data.get(clusterinfo.KUBECONFIG_KEY, ""))
        return self.files.cluster_id != "" and cluster_id(cluster) == self.files.cluster_id

    @asynccontextmanager
    async def client(self, way: Cluster, user: KubeconfigUser) -> AsyncIterator[ClusterClient]:
        """Yield the client of a verified way for one step. Raises TimeoutError."""
        async with asyncio.timeout(self.options.timeout), ClusterClient(way, user, self.clock) as client:
            yield client

    @property
    def tls_token(self) -> BootstrapToken | None:
        """Token of the certificate request; None without one."""
        return self.options.tls_token or self.options.token

    def token_user(self) -> KubeconfigUser | None:
        """Return the user of the token of the certificate request; None without one."""
        if self.options.identity is not None:
            return self.options.identity.user()
        token = self.tls_token
        return KubeconfigUser("doctor", token=Secret(token.reveal())) if token is not None else None

    def node_name(self) -> str:
        """Return the name of the node: as given, as in the certificate, or that of the machine."""
        return self.options.node_name or self.files.node_name or self.options.host_name

    def member_way(self, target: ProbedAddress) -> Cluster | None:
        """Return the way by which the certificate may be sent to this address; None for a server of another cluster."""
        if (known := self.files.cluster_at(target.address)) is not None:
            return known
        return target.trusted if target.trusted is not None and self.has_ca_of_files(target.trusted) else None

    def has_ca_of_files(self, found: Cluster) -> bool:
        """Return whether a cluster has a CA in common with the files of this machine."""
        if not self.files.clusters:
            return False
        try:
            return bundles.have_common(self.files.clusters[0].ca_pem, found.ca_pem)
        except PkiError:
            return False
