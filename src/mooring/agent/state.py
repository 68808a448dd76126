"""Files of a member, under a chosen root. They are those of kubeadm and kubelet, so that both can use them.

    etc/kubernetes/pki/ca.crt                          the CAs that sign client certificates
    etc/kubernetes/bootstrap-kubelet.conf              the token, until the certificate is issued
    etc/kubernetes/kubelet.conf                        addresses, CAs of the server, and the path of the certificate
    var/lib/kubelet/pki/kubelet-client.key.tmp         the key of a pending request
    var/lib/kubelet/pki/kubelet-client-*.pem           the client certificate (`mooring.agent.pairfiles`)
    var/lib/kubelet/pki/kubelet-server-*.pem           the serving certificate, likewise
    var/lib/mooring/agent.json                         what the agent has to remember (`mooring.agent.disk`)

Rules kept here (docs/protocol/discovery-and-join.md#files-and-waits, docs/protocol/kubelet-certificates.md):
* Every file but ca.crt has mode 0600. Each is written whole or not at all, and is durable before the next step depends on it.
* The key survives a crash until its certificate is on disk, so that a second run continues with the same request.
* ca.crt is never replaced by that of another cluster. It changes only while it is as it was written
  (`mooring.trust.discovery.refresh`).
* Only the cluster's addresses and CAs in kubelet.conf change; entries of other programs stay.
* With a load balancer the cluster of the context is the load balancer. An extension marks it, and holds its address and its seeds.
  The servers are the entries named by their addresses, and are all that this program reads. A cluster with the mark and another
  address is a server: a person, or a version that does not know the mark, has put it there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mooring.agent import disk
from mooring.agent.disk import RecordFile
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.pairfiles import CLIENT, SERVING, PairFiles
from mooring.apimachinery.schema import Obj
from mooring.client import kubeconfigfiles
from mooring.client.files import check_writable, exposure, read_limited
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, load_private_key, private_key_pem
from mooring.pki.x509 import bundles
from mooring.trust.discovery.refresh import BASE, MergeBase, digest, merge_base
from mooring.trust.httpproxy import proxy_url_problem
from mooring.trust.kubeconfig import (
    CLUSTER_NAME,
    Cluster,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    address_of,
    flatten_cluster,
    kubelet_kubeconfig,
    other_addresses,
    select_context,
    user_kubeconfig,
    validate_kubeconfig,
)
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from mooring.trust.serverlist import valid_addresses

LOAD_BALANCER = "mooring.dev/load-balancer"
"""Extension of the cluster in kubelet.conf that is the load balancer of the agent."""
SERVICE_NAME = "kubernetes.default.svc"
"""Name by which a kubelet verifies a server behind the load balancer: kubeadm and Mooring put it into each server's certificate."""
CA_MODE = 0o644
"""Mode of kubeadm: every user of this machine may verify the cluster."""


class NodeState:
    """Files of one member. `balancer` is the load balancer that kubelet.conf may name; None without one."""

    def __init__(self, root: Path, balancer: LoadBalancer | None = None) -> None:
        self.root = root.absolute()
        self.balancer = balancer
        kubernetes = self.root / "etc/kubernetes"
        self.certificates = self.root / "var/lib/kubelet/pki"
        self.ca = kubernetes / "pki/ca.crt"
        self.kubeconfig = kubernetes / "kubelet.conf"
        self.bootstrap = kubernetes / "bootstrap-kubelet.conf"
        self.client = PairFiles(self.certificates, CLIENT)
        self.serving = PairFiles(self.certificates, SERVING)
        self.pending_key = self.certificates / "kubelet-client.key.tmp"
        self.record = RecordFile(self.root / "var/lib/mooring/agent.json")

    def exposures(self) -> list[str]:
        """Return how other users can read or change the keys of this member, each with the command that corrects it."""
        pairs = (self.client.current, self.serving.current)
        keys = (self.certificates, *pairs, self.pending_key, self.kubeconfig, self.bootstrap)
        found = (exposure(path, 0 if path == self.certificates else stat.S_IROTH) for path in keys)
        return [one for one in found if one]

    def check_places(self) -> None:
        """Raise ConfigError when another user may replace files of this member, or a link leads out of the root."""
        disk.check_places(self.root, *self._directories, files=self._files)

    def make_places(self) -> None:
        """Make the directories, and check them and kubelet.conf once more, before a secret is written. Raises ConfigError."""
        disk.make_places(self.root, *self._directories, files=self._files)
        # Before a certificate is requested that could not be put to use.
        check_writable(self.kubeconfig)

    @property
    def _directories(self) -> tuple[Path, ...]:
        return (self.kubeconfig.parent, self.ca.parent, self.certificates, self.record.path.parent)

    @property
    def _files(self) -> tuple[Path, ...]:
        return (self.ca, self.kubeconfig, self.bootstrap, self.pending_key, self.record.path)

    # ── the CA ───────────────────────────────────────────────────────────────────────────────────────────────────

    def read_ca(self) -> bytes:
        """Return the content of ca.crt; empty when there is none. Raises ConfigError."""
        return read_limited(self.ca) if self.ca.exists() else b""

    def check_ca(self, ca_pem: bytes) -> None:
        """Raise ConfigError when ca.crt and `ca_pem` have no CA in common. One is enough, because CAs are rotated."""
        kept = self.read_ca()
        if not kept or not ca_pem:
            return
        try:
            shared = set(bundles.certificates_among(kept)) & set(bundles.certificates_among(ca_pem))
        except PkiError as error:
            raise ConfigError(f"{self.ca} cannot be used: {error}; move it away and join again") from None
        if not shared:
            raise ConfigError(
                f"{self.ca} holds the CA of another cluster; if this machine shall leave that cluster, "
                f"remove {self.ca}, {self.kubeconfig} and {self.certificates}, then join again"
            )

    def write_ca(self, ca_pem: bytes, base: MergeBase | None = None) -> bool:
        """Write ca.crt when it is absent or unchanged since `base`. Return True when it was written.

        Raises ConfigError when it holds the CA of another cluster.
        """
        kept = self.read_ca()
        if kept and (base is None or digest(kept) != base.client_ca):
            self.check_ca(ca_pem)
            return False
        if not ca_pem or kept == ca_pem:
            return False
        disk.write(self.ca, ca_pem, CA_MODE)
        return True

    # ── the key of a request ─────────────────────────────────────────────────────────────────────────────────────

    def read_pending_key(self) -> PrivateKey | None:
        """Return the key of a pending request; None when there is no usable one."""
        try:
            return load_private_key(read_limited(self.pending_key))
        except MooringError:
            return None

    def write_pending_key(self, key: PrivateKey) -> None:
        disk.write(self.pending_key, private_key_pem(key))

    def drop_pending_key(self) -> None:
        """Remove the key of a request that has ended."""
        disk.remove(self.pending_key)

    # ── kubeconfigs ──────────────────────────────────────────────────────────────────────────────────────────────

    def write_bootstrap(self, cluster: Cluster, user: KubeconfigUser) -> None:
        """Write bootstrap-kubelet.conf, with which a kubelet requests its certificate, also after a crash of a join."""
        named = replace(user, name="tls-bootstrap-token-user")
        config = user_kubeconfig(cluster.server, cluster.ca_pem, named)
        reached = replace(cluster.way, name=CLUSTER_NAME)
        disk.write(self.bootstrap, format_kubeconfig(replace(config, clusters=(reached,))).encode())

    def drop_bootstrap(self) -> None:
        """Remove bootstrap-kubelet.conf."""
        disk.remove(self.bootstrap)

    def write_kubeconfig(
        self,
        clusters: Sequence[Cluster],
        base: MergeBase | None = None,
        *,
        from_scratch: bool = False,
        balanced: bool = False,
    ) -> bool:
        """Write the addresses of the cluster, first the one to use, and the merge base. Return True when the file changed.

        An existing file keeps its users and contexts, unless `from_scratch` writes a new one that names the current certificate.
        An entry that is named by a further address and has it is replaced, whatever its CA. A further address whose `proxy-url`
        cannot be used, that is there already in another spelling, or whose name another entry has, is left out. Raises ConfigError
        for other content with which no program could read the file.
        `balanced`: the load balancer is the one to use.
        """
        config = None if from_scratch else self._read_kubeconfig()
        config = config or kubelet_kubeconfig(clusters[0].server, str(self.client.current))
        present = select_context(config).cluster
        dropped = {present.name, *(one.name for one in other_addresses(config, self._flatten(present)))}
        extensions = tuple(one for one in present.extensions if one.get("name") not in (BASE, LOAD_BALANCER))
        if base is not None:
            extensions = (*extensions, base.extension())
        by_address: dict[str, Cluster] = {}
        for one in clusters:
            # With a proxy-url that cannot be used no program could read the file. The first address stays, and an
            # error names it.
            if not (by_address and one.proxy_url and proxy_url_problem(one.proxy_url)):
                by_address.setdefault(address_of(one.server), one)
        used, *listed = by_address.values()
        if balanced and self.balancer is not None:
            used, listed = through(self.balancer, used), [used, *listed]
            content = {"address": self.balancer.url, "servers": list(self.balancer.servers.seeds)}
            extensions = (*extensions, {"name": LOAD_BALANCER, "extension": content})
        first = replace(used, name=present.name, ca_file="", extensions=extensions)
        addresses = {address_of(one.server) for one in listed}
        rest = [one for one in config.clusters if one.name not in dropped and not _is_named_by(one, addresses)]
        taken = {first.name, *(one.name for one in rest)}
        named = (replace(one, name=address_of(one.server), extensions=()) for one in listed)
        # Two entries of one name would make the file invalid.
        further = (one for one in named if one.name not in taken)
        try:
            text = format_kubeconfig(replace(config, clusters=(first, *further, *rest))).encode()
            with suppress(ConfigError):
                if read_limited(self.kubeconfig) == text:
                    return False
            # Before it is written: a file that cannot be read again would end the membership.
            validate_kubeconfig(parse_kubeconfig(text))
        except KubeconfigError as error:
            raise ConfigError(f"{self.kubeconfig} is not written, as it could not be read again: {error}") from None
        disk.write(self.kubeconfig, text)
        return True

    def read_cluster(self) -> Cluster | None:
        """Return the cluster of kubelet.conf with its CA inline; None without a usable file."""
        return next(iter(self.read_clusters()), None)

    def read_clusters(self) -> tuple[Cluster, ...]:
        """Return every server in kubelet.conf with its CA inline, first the one to use; none without a usable file."""
        config = self._read_kubeconfig()
        if config is None:
            return ()
        first = self._flatten(select_context(config).cluster)
        others = other_addresses(config, first)
        return (others or _servers_of(config, first)) if _is_balancer(first) else (first, *others)

    def is_balanced(self) -> bool:
        """Return True when kubelet.conf names a load balancer of an agent, of this run or an earlier one."""
        config = self._read_kubeconfig()
        return config is not None and _is_balancer(select_context(config).cluster)

    def read_seeds(self) -> tuple[str, ...]:
        """Return the seeds of the load balancer that kubelet.conf has named, as host and port; none without one."""
        config = self._read_kubeconfig()
        mark = _mark(select_context(config).cluster) if config else None
        servers = mark.get("servers") if mark else None
        return valid_addresses(one for one in servers if isinstance(one, str)) if isinstance(servers, list) else ()

    def settle_address(self) -> bool:
        """Replace the load balancer of an earlier run in kubelet.conf, by that of this run or by a server.

        Return True when the file changed. Raises ConfigError.
        """
        known = self.read_clusters() if self.is_balanced() else ()
        return bool(known) and self.write_kubeconfig(known, self.read_base(), balanced=self.balancer is not None)

    def read_base(self) -> MergeBase | None:
        """Return the merge base in kubelet.conf; None when there is none."""
        config = self._read_kubeconfig()
        return merge_base(select_context(config).cluster) if config else None

    def read_cluster_id(self) -> str:
        """Return the id of the cluster (docs/protocol/cluster-info.md#id-of-the-cluster); "" when it is not known."""
        base = self.read_base()
        return "" if base is None else base.cluster_id

    def problems(self) -> tuple[str, ...]:
        """Return the files of a membership that are there and cannot be used, each with its path and the reason."""
        found = [self.client.problem()]
        if os.path.lexists(self.kubeconfig):
            try:
                self._parse_kubeconfig()
            except MooringError as error:
                text = str(error)
                found.append(text if str(self.kubeconfig) in text else f"{self.kubeconfig}: {text}")
        return tuple(filter(None, found))

    def _read_kubeconfig(self) -> Kubeconfig | None:
        try:
            return self._parse_kubeconfig()
        except MooringError:
            return None

    def _parse_kubeconfig(self) -> Kubeconfig:
        config = kubeconfigfiles.read(self.kubeconfig)
        self._flatten(select_context(config).cluster)
        return config

    def _flatten(self, cluster: Cluster) -> Cluster:
        return flatten_cluster(cluster, lambda path: read_limited(Path(path)))


def through(balancer: LoadBalancer, server: Cluster) -> Cluster:
    """Return the way through the load balancer to `server` and those that the same CAs verify."""
    name = server.tls_server_name or SERVICE_NAME
    return replace(server, server=balancer.url, tls_server_name=name, proxy_url="")


def _servers_of(config: Kubeconfig, balancer: Cluster) -> tuple[Cluster, ...]:
    """Return the servers behind a load balancer whose CA was set by hand: it is that of the whole cluster."""
    named = (replace(one, ca_pem=balancer.ca_pem) for one in config.clusters if one.name == address_of(one.server))
    return other_addresses(Kubeconfig(tuple(named)), balancer)


def _is_named_by(entry: Cluster, addresses: Set[str]) -> bool:
    """Return True when an entry has one of the addresses, and is named by it."""
    return entry.name in addresses and entry.name == address_of(entry.server)


def _is_balancer(cluster: Cluster) -> bool:
    """Return True when `cluster` is a load balancer of an agent, and False when it is a server."""
    mark = _mark(cluster)
    return mark is not None and mark.get("address", cluster.server) == cluster.server


def _mark(cluster: Cluster) -> Obj | None:
    """Return what a load balancer wrote beside its address, empty when that is damaged; None without a load balancer."""
    for one in cluster.extensions:
        if one.get("name") == LOAD_BALANCER:
            content = one.get("extension")
            return content if isinstance(content, dict) else {}
    return None
