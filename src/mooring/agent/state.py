"""What a member keeps on disk, under a chosen root: kubeadm's and kubelet's own files, so that either finds what it expects.

    etc/kubernetes/pki/ca.crt                          the CAs that sign client certificates
    etc/kubernetes/bootstrap-kubelet.conf              the token, only while the certificate is being asked for
    etc/kubernetes/kubelet.conf                        addresses, CAs of the server, and the path of the certificate
    var/lib/kubelet/pki/kubelet-client.key.tmp         the key of a request that is not answered yet
    var/lib/kubelet/pki/kubelet-client-<time>.pem      certificate blocks, then the key
    var/lib/kubelet/pki/kubelet-client-current.pem     absolute symlink to the newest of them

Rules kept here (docs/protocol/discovery-and-join.md#files-and-waits, docs/protocol/kubelet-certificates.md):
* Every file but ca.crt is 0600. All are written whole or not at all, and are durable before the next step relies on them.
* The link is swapped by renaming `kubelet-client-updated.pem` over it: there is always a current certificate. A link that a crash
  left behind is renamed when it leads to a usable pair, and removed otherwise.
* The key outlives a crash until its certificate is on disk, so that a second run goes on with the same request.
* ca.crt is never replaced by another cluster's. It changes only from what was written before (`mooring.trust.discovery.refresh`).
* kubelet.conf keeps what others wrote into it: only the cluster's addresses and CAs are changed.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509

from mooring.client.files import exposure, make_directory, read_limited, sync_directory, write_atomic
from mooring.errors import ConfigError, MooringError
from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, accepted_public_key, load_private_key, private_key_pem, public_key_der
from mooring.secret import Secret
from mooring.trust.discovery.refresh import BASE, MergeBase, digest, merge_base
from mooring.trust.kubeconfig.model import (
    Cluster,
    Kubeconfig,
    address_of,
    bootstrap_kubeconfig,
    flatten_cluster,
    kubelet_kubeconfig,
    other_addresses,
    select_context,
)
from mooring.trust.kubeconfig.text import format_kubeconfig, parse_kubeconfig

DIRECTORY_MODE = 0o755
"""kubelet's and kubeadm's: names are no secret, the files that hold secrets are 0600."""
CA_MODE = 0o644
"""kubeadm's: whoever connects to the cluster from this machine may verify it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain, leaf first, and its key, which belongs to the leaf."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKey

    @property
    def leaf(self) -> x509.Certificate:
        return self.chain[0]

    @property
    def certificate_pem(self) -> bytes:
        return pem.certificates_pem(self.chain)

    @property
    def key_pem(self) -> Secret:
        return Secret(private_key_pem(self.key))

    def valid_at(self, now: datetime) -> bool:
        """Whether no certificate of the chain is outside its time."""
        return all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in self.chain)


class NodeState:
    """The files of one member."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        kubernetes = self.root / "etc/kubernetes"
        self.certificates = self.root / "var/lib/kubelet/pki"
        self.ca = kubernetes / "pki/ca.crt"
        self.kubeconfig = kubernetes / "kubelet.conf"
        self.bootstrap = kubernetes / "bootstrap-kubelet.conf"
        self.current = self.certificates / "kubelet-client-current.pem"
        self.updated = self.certificates / "kubelet-client-updated.pem"
        self.pending_key = self.certificates / "kubelet-client.key.tmp"

    def exposures(self) -> list[str]:
        """Return how other users may reach the keys of this member, each with the command that mends it."""
        keys = (self.certificates, self.current, self.pending_key, self.kubeconfig, self.bootstrap)
        found = (exposure(path, 0 if path == self.certificates else stat.S_IROTH) for path in keys)
        return [one for one in found if one]

    # ── the CA ───────────────────────────────────────────────────────────────────────────────────────────────────

    def read_ca(self) -> bytes:
        """ca.crt; empty when there is none. Raises ConfigError."""
        return read_limited(self.ca) if self.ca.exists() else b""

    def check_ca(self, ca_pem: bytes) -> None:
        """Raise ConfigError when ca.crt is of another cluster than `ca_pem`. Sharing one CA is enough: CAs are rotated."""
        kept = self.read_ca()
        if not kept or not ca_pem:
            return
        try:
            shared = set(pem.certificates_among(kept)) & set(pem.certificates_among(ca_pem))
        except PkiError as error:
            raise ConfigError(f"{self.ca} cannot be used: {error}; move it away and join again") from None
        if not shared:
            raise ConfigError(
                f"{self.ca} holds the CA of another cluster; if this machine shall leave that cluster, "
                f"remove {self.ca}, {self.kubeconfig} and {self.certificates}, then join again"
            )

    def write_ca(self, ca_pem: bytes, base: MergeBase | None = None) -> bool:
        """Write ca.crt if it is absent or still what was published with `base`; whether it was written.

        Raises ConfigError when it holds the CA of another cluster.
        """
        kept = self.read_ca()
        if kept and (base is None or digest(kept) != base.client_ca):
            self.check_ca(ca_pem)
            return False
        if not ca_pem or kept == ca_pem:
            return False
        self._write(self.ca, ca_pem, CA_MODE)
        return True

    # ── the key of a request ─────────────────────────────────────────────────────────────────────────────────────

    def read_pending_key(self) -> PrivateKey | None:
        """The key of a request that a former run made; None when there is none that can be used."""
        try:
            return load_private_key(read_limited(self.pending_key))
        except MooringError:
            return None

    def write_pending_key(self, key: PrivateKey) -> None:
        self._write(self.pending_key, private_key_pem(key))

    def drop_pending_key(self) -> None:
        """The request is answered or given up."""
        self._remove(self.pending_key)

    # ── the certificate ──────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> None:
        """Finish or undo a swap that a crash interrupted."""
        if not self.updated.is_symlink():
            return
        if _pair(self.updated) is not None:
            self._rename(self.updated, self.current)
        else:
            self._remove(self.updated)

    def read_pair(self) -> Pair | None:
        """The current certificate and key; None when there is none that can be used."""
        self.recover()
        return _pair(self.current)

    def write_pair(self, pair: Pair, now: datetime) -> Path:
        """Keep the pair under the time's name and make it the current one."""
        path = self.certificates / f"kubelet-client-{now:%Y-%m-%d-%H-%M-%S}.pem"
        self._write(path, pair.certificate_pem + pair.key_pem.reveal())
        self._remove(self.updated)
        try:
            self.updated.symlink_to(path)
        except OSError as error:
            raise ConfigError(f"{self.updated} cannot be written: {(error.strerror or str(error)).lower()}") from error
        self._rename(self.updated, self.current)
        return path

    # ── kubeconfigs ──────────────────────────────────────────────────────────────────────────────────────────────

    def write_bootstrap(self, server: str, ca_pem: bytes, token: str) -> None:
        """bootstrap-kubelet.conf, which lets a kubelet go on with what a crash interrupted."""
        self._write(self.bootstrap, format_kubeconfig(bootstrap_kubeconfig(server, ca_pem, token)).encode())

    def drop_bootstrap(self) -> None:
        """The token has done its work."""
        self._remove(self.bootstrap)

    def write_kubeconfig(
        self, clusters: Sequence[Cluster], base: MergeBase | None = None, *, anew: bool = False
    ) -> bool:
        """Write the addresses of the cluster, first the one to use, and what was published; whether that changed the file.

        A file that is there keeps its users and contexts unless it is written `anew`, naming the current certificate.
        """
        config = None if anew else self._read_kubeconfig()
        config = config or kubelet_kubeconfig(clusters[0].server, str(self.current))
        present = select_context(config).cluster
        dropped = {present.name, *(one.name for one in other_addresses(config, self._flat(present)))}
        extensions = tuple(one for one in present.extensions if one.get("name") != BASE)
        if base is not None:
            extensions = (*extensions, base.extension())
        first = replace(clusters[0], name=present.name, ca_file="", extensions=extensions)
        others = (replace(one, name=address_of(one.server), extensions=()) for one in clusters[1:])
        rest = (one for one in config.clusters if one.name not in dropped)
        text = format_kubeconfig(replace(config, clusters=(first, *others, *rest))).encode()
        with suppress(ConfigError):
            if read_limited(self.kubeconfig) == text:
                return False
        self._write(self.kubeconfig, text)
        return True

    def read_cluster(self) -> Cluster | None:
        """The cluster of kubelet.conf, with its CA inline; None when there is no such file that can be used."""
        return next(iter(self.read_clusters()), None)

    def read_clusters(self) -> tuple[Cluster, ...]:
        """Every address in kubelet.conf, first the one in use, with their CA inline; none when there is no such file."""
        config = self._read_kubeconfig()
        if config is None:
            return ()
        first = self._flat(select_context(config).cluster)
        return (first, *other_addresses(config, first))

    def read_base(self) -> MergeBase | None:
        """What was published when kubelet.conf was written; None when that is not known."""
        config = self._read_kubeconfig()
        return merge_base(select_context(config).cluster) if config else None

    def _read_kubeconfig(self) -> Kubeconfig | None:
        try:
            config = parse_kubeconfig(read_limited(self.kubeconfig))
            self._flat(select_context(config).cluster)
        except MooringError:
            return None
        return config

    def _flat(self, cluster: Cluster) -> Cluster:
        return flatten_cluster(cluster, lambda path: read_limited(Path(path)))

    # ── disk ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        make_directory(path.parent, DIRECTORY_MODE)
        write_atomic(path, data, mode)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink()
            sync_directory(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{path} cannot be removed: {(error.strerror or str(error)).lower()}") from error

    def _rename(self, old: Path, new: Path) -> None:
        try:
            old.replace(new)
            sync_directory(new.parent)
        except OSError as error:
            raise ConfigError(f"{new} cannot be written: {(error.strerror or str(error)).lower()}") from error


def _pair(path: Path) -> Pair | None:
    with suppress(MooringError):
        data = read_limited(path)
        chain, key = pem.certificates_among(data), load_private_key(data)
        with suppress(*pem.UNPARSABLE):
            if public_key_der(key) == _public_der(chain[0]):
                return Pair(chain, key)
    return None


def _public_der(certificate: x509.Certificate) -> bytes:
    return public_key_der(accepted_public_key(certificate.public_key()))
