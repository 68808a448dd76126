"""Files of a member, under a chosen root. They are those of kubeadm and kubelet, so that both can use them.

    etc/kubernetes/pki/ca.crt                          the CAs that sign client certificates
    etc/kubernetes/bootstrap-kubelet.conf              the token, until the certificate is issued
    etc/kubernetes/kubelet.conf                        addresses, CAs of the server, and the path of the certificate
    var/lib/kubelet/pki/kubelet-client.key.tmp         the key of a pending request
    var/lib/kubelet/pki/kubelet-client-<time>.pem      certificate blocks, then the key
    var/lib/kubelet/pki/kubelet-client-current.pem     absolute symlink to the newest of them

Rules kept here (docs/protocol/discovery-and-join.md#files-and-waits, docs/protocol/kubelet-certificates.md):
* Every file but ca.crt has mode 0600. Each is written whole or not at all, and is durable before the next step depends on it.
* The link is replaced by renaming `kubelet-client-updated.pem` over it, so that there is always a current certificate. A link left
  by a crash is renamed when it points to a usable pair, and removed otherwise.
* The key survives a crash until its certificate is on disk, so that a second run continues with the same request.
* ca.crt is never replaced by that of another cluster. It changes only while it is as it was written
  (`mooring.trust.discovery.refresh`).
* Only the cluster's addresses and CAs in kubelet.conf change; entries of other programs stay.
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
"""Mode of kubelet's and kubeadm's directories: file names are not secret, and files with secrets have mode 0600."""
CA_MODE = 0o644
"""Mode of kubeadm: every user of this machine may verify the cluster."""


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
        """Return True when every certificate of the chain is valid at `now`."""
        return all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in self.chain)


class NodeState:
    """Files of one member."""

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
        """Return how other users can read or change the keys of this member, each with the command that corrects it."""
        keys = (self.certificates, self.current, self.pending_key, self.kubeconfig, self.bootstrap)
        found = (exposure(path, 0 if path == self.certificates else stat.S_IROTH) for path in keys)
        return [one for one in found if one]

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
            shared = set(pem.certificates_among(kept)) & set(pem.certificates_among(ca_pem))
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
        self._write(self.ca, ca_pem, CA_MODE)
        return True

    # ── the key of a request ─────────────────────────────────────────────────────────────────────────────────────

    def read_pending_key(self) -> PrivateKey | None:
        """Return the key of a pending request; None when there is no usable one."""
        try:
            return load_private_key(read_limited(self.pending_key))
        except MooringError:
            return None

    def write_pending_key(self, key: PrivateKey) -> None:
        self._write(self.pending_key, private_key_pem(key))

    def drop_pending_key(self) -> None:
        """Remove the key of a request that has ended."""
        self._remove(self.pending_key)

    # ── the certificate ──────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> None:
        """Finish or undo a replacement of the link that a crash interrupted."""
        if not self.updated.is_symlink():
            return
        if _read_pair_file(self.updated) is not None:
            self._rename(self.updated, self.current)
        else:
            self._remove(self.updated)

    def read_pair(self) -> Pair | None:
        """Return the current certificate and key; None when there is no usable pair."""
        self.recover()
        return _read_pair_file(self.current)

    def write_pair(self, pair: Pair, now: datetime) -> Path:
        """Write the pair to a file named by the time, and make it the current one. Return its path."""
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
        """Write bootstrap-kubelet.conf, with which a kubelet can continue after a crash."""
        self._write(self.bootstrap, format_kubeconfig(bootstrap_kubeconfig(server, ca_pem, token)).encode())

    def drop_bootstrap(self) -> None:
        """Remove bootstrap-kubelet.conf."""
        self._remove(self.bootstrap)

    def write_kubeconfig(
        self, clusters: Sequence[Cluster], base: MergeBase | None = None, *, anew: bool = False
    ) -> bool:
        """Write the addresses of the cluster, first the one to use, and the merge base. Return True when the file changed.

        An existing file keeps its users and contexts, unless `anew` writes a new one that names the current certificate.
        """
        config = None if anew else self._read_kubeconfig()
        config = config or kubelet_kubeconfig(clusters[0].server, str(self.current))
        present = select_context(config).cluster
        dropped = {present.name, *(one.name for one in other_addresses(config, self._flatten(present)))}
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
        """Return the cluster of kubelet.conf with its CA inline; None without a usable file."""
        return next(iter(self.read_clusters()), None)

    def read_clusters(self) -> tuple[Cluster, ...]:
        """Return every address in kubelet.conf with its CA inline, first the one in use; none without a usable file."""
        config = self._read_kubeconfig()
        if config is None:
            return ()
        first = self._flatten(select_context(config).cluster)
        return (first, *other_addresses(config, first))

    def read_base(self) -> MergeBase | None:
        """Return the merge base in kubelet.conf; None when there is none."""
        config = self._read_kubeconfig()
        return merge_base(select_context(config).cluster) if config else None

    def _read_kubeconfig(self) -> Kubeconfig | None:
        try:
            config = parse_kubeconfig(read_limited(self.kubeconfig))
            self._flatten(select_context(config).cluster)
        except MooringError:
            return None
        return config

    def _flatten(self, cluster: Cluster) -> Cluster:
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


def _read_pair_file(path: Path) -> Pair | None:
    with suppress(MooringError):
        data = read_limited(path)
        chain, key = pem.certificates_among(data), load_private_key(data)
        with suppress(*pem.UNPARSABLE):
            if public_key_der(key) == _public_der(chain[0]):
                return Pair(chain, key)
    return None


def _public_der(certificate: x509.Certificate) -> bytes:
    return public_key_der(accepted_public_key(certificate.public_key()))
