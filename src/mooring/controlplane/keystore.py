"""Key store: the keys, certificates and kubeconfigs of a control plane in its data directory, created once and then loaded.

Layout (kubeadm's names) under `<data-dir>`:
    pki/ca.crt, ca.key                  cluster CA (10 years); signs clients and nodes, and the serving certificate unless flags
                                        name one of another CA. `ca.crt` may hold several CAs: all are trusted, and the one to which
                                        `ca.key` belongs issues
    pki/cross-signed.crt                keys of the cluster's CAs certified by one another, sent behind the serving certificate
    pki/retired-ca.crt                  CAs that a rollover retired
    pki/apiserver.crt, apiserver.key    serving certificate; renewed when a name is missing or less than a third of its life is
                                        left; not created when flags name another one
    pki/lineage.key, lineage.pub        sign and verify the records of issued certificates
    pki/sa.key, sa.pub                  sign and verify service account tokens, unless flags name other files
    admin.conf                          O=kubeadm:cluster-admins: its rights come from a ClusterRoleBinding, which can be deleted
    super-admin.conf                    O=system:masters: every request is allowed; keep it in a safe

Rules kept here:
* A CA is never overwritten. A key is durable before the certificate that needs it, so that a start after a power failure finds both
  or finishes the work. A certificate whose key is lost is an error, never a reason for a new CA.
* Every file is 0600 and written atomically (`mooring.client.files`).
* A change of the CA renews what depends on it (`renew`): the serving certificate and the kubeconfigs.
* A lock file in the data directory admits one process at a time.
* The data directory belongs to this user or to root, and other users may not write there.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from mooring.api.core.service import api_address
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.controlplane import addresses
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import (
    load,
    no_lock,
    open_lock,
    read_ca,
    refuse_exposed,
    refuse_other_writers,
    warn_if_exposed,
)
from mooring.controlplane.servingcertificate import Pair, read_pair, serving_cas
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import PrivateKey, PublicKey, generate_key, load_private_key, private_key_pem, public_key_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.bundles import certificates, certificates_pem, load_public_keys
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState, Certificates, ClusterCa, bridge, find_cross_signed, is_bridge
from mooring.pki.x509.names import AlternativeNames, alternative_names
from mooring.secret import Secret
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, other_addresses, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig

RENEW_LEFT = timedelta(days=120)
"""Life left at which the certificates of the server and of the administrators are renewed: a third of their year."""
log = logging.getLogger("mooring.controlplane")

LOCAL_NAMES = ("localhost",)
LOCAL_ADDRESSES = ("127.0.0.1", "::1")
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Keys and certificates of one server, in memory."""

    ca: ClusterCa
    serving_chain: tuple[Certificate, ...]
    serving_key: PrivateKey
    serving_ca_pem: bytes
    """CAs that verify the serving certificate."""
    token_key: PrivateKey
    token_keys: tuple[PublicKey, ...]
    token_signing_file: str = ""
    token_key_files: tuple[str, ...] = ()
    """Files that hold the public keys of tokens, to be followed; empty when the keys are in memory only."""

    pki: Path | None = None
    """Directory whose CA is to be followed; None when the CA is in memory only."""
    issuance_log_key: PrivateKey | None = None
    """Signs records of the issuance log; None leaves them unsigned."""

    @property
    def client_ca_pem(self) -> bytes:
        """The CAs that sign client certificates."""
        return self.ca.trusted_pem


@dataclass(frozen=True, slots=True)
class Prepared:
    """The key store, and the files that were created or replaced."""

    key_store: KeyStore
    created: tuple[str, ...]


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Hold the lock of the data directory, after waiting for another process that holds it."""
    make_directory(data_dir)
    # Before the lock file is made: in the directory of another user it would lock its owner out.
    refuse_other_writers(data_dir)
    descriptor = open_lock(data_dir / ".lock")
    try:
        try:
            # The kernel drops the lock when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise no_lock(data_dir / ".lock", error) from error
        yield
    finally:
        os.close(descriptor)


def prepare(config: ServerConfig, now: datetime, entropy: Callable[[int], bytes]) -> Prepared:
    """Load the files that exist and create the missing ones. Raises ConfigError that says what to do."""
    root = Path(config.data_dir)
    with exclusive(root):
        return _Preparation(config, root, now, entropy).run()


@dataclass(frozen=True, slots=True)
class Renewed:
    """The CA of the data directory, and the serving pair for it; no pair when flags name one."""

    state: CaState
    serving: Pair


def renew(config: ServerConfig, now: datetime, entropy: Callable[[int], bytes]) -> Renewed:
    """Load the CA that exists, and renew the serving pair and the kubeconfigs for it. Raises ConfigError; creates no CA."""
    root = Path(config.data_dir)
    with exclusive(root):
        return _Preparation(config, root, now, entropy).renew()


def make_shared_keys(config: ServerConfig, root: Path, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Create the missing ones of the keys that are the same on all servers of a cluster, below `root/pki`. Raises ConfigError."""
    _Preparation(config, root, now, entropy).make_shared_keys()


class _Preparation:
    """One run of `prepare`."""

    def __init__(self, config: ServerConfig, root: Path, now: datetime, entropy: Callable[[int], bytes]) -> None:
        self.config = config
        self.root = root
        self.pki = root / "pki"
        self.now = now
        self.entropy = entropy
        self.created: list[str] = []

    def run(self) -> Prepared:
        make_directory(self.pki)
        refuse_exposed(self.pki)
        for kubeconfig in sorted(self.root.glob("*.conf")):
            warn_if_exposed(kubeconfig)
        ca = self._load_or_create_ca()
        if ca.forgotten:
            log.warning(
                "an earlier version replaced a compromised CA here: no client is let in by its key, which may still pass for the "
                "API server to clients that trust the present CA; replace that, too, with mooring ca rollover start --compromised"
            )
        serving_chain, serving_key = self._serving_pair(ca)
        serving_ca_pem = self._serving_ca_pem(serving_chain, ca)
        signing_file, token_key = self._token_signing_key()
        key_files = self._token_key_files(token_key)
        token_keys = (token_key.public_key(), *(key for path in key_files for key in self._token_public_keys(path)))
        # Before admin.conf is written: it compares the addresses with those of the last start.
        addresses.record(self.config, self.root)
        self._write_kubeconfigs(ca, serving_ca_pem)
        key_store = KeyStore(
            ClusterCa(ca),
            serving_chain,
            serving_key,
            serving_ca_pem,
            token_key,
            tuple(_distinct(token_keys)),
            str(signing_file),
            tuple(map(str, key_files)),
            self.pki,
            self._issuance_log_key(),
        )
        return Prepared(key_store, tuple(self.created))

    def make_shared_keys(self) -> None:
        make_directory(self.pki)
        refuse_exposed(self.pki)
        self._load_or_create_ca()
        _, token_key = self._token_signing_key()
        self._token_key_files(token_key)
        self._issuance_log_key()

    def renew(self) -> Renewed:
        ca = read_ca(self.pki)
        pair = self._serving_pair(ca)
        self._write_kubeconfigs(ca, self._serving_ca_pem(pair[0], ca))
        return Renewed(ca, pair)

    def _serving_ca_pem(self, chain: tuple[Certificate, ...], ca: CaState) -> bytes:
        found = serving_cas(self.config[ServingSettings], chain, ca.trusted, self.now)
        return found or certificates_pem(ca.trusted)

    def _write_kubeconfigs(self, ca: CaState, serving_ca_pem: bytes) -> None:
        authority = ca.authority
        self._write_kubeconfig("admin.conf", authority, serving_ca_pem, profiles.admin, profiles.ADMIN_NAME)
        self._write_kubeconfig(
            "super-admin.conf", authority, serving_ca_pem, profiles.super_admin, profiles.SUPER_ADMIN_NAME
        )

    def _token_signing_key(self) -> tuple[Path, PrivateKey]:
        path = self.config[ServiceAccountSettings].service_account_signing_key_file
        if path:
            return Path(path), self._load_named("service-account-signing-key-file", Path(path), load_private_key)
        return self.pki / "sa.key", self._key("sa.key")

    def _token_public_keys(self, path: Path) -> tuple[PublicKey, ...]:
        if self.config[ServiceAccountSettings].service_account_key_file:
            return self._load_named("service-account-key-file", path, load_public_keys)
        return load(path, load_public_keys)

    def _token_key_files(self, token_key: PrivateKey) -> tuple[Path, ...]:
        """Return the files of keys that verify tokens beside the signing key: those that were named, else `pki/sa.pub`."""
        settings, default = self.config[ServiceAccountSettings], self.pki / "sa.pub"
        if settings.service_account_key_file:
            return tuple(map(Path, settings.service_account_key_file))
        if not default.exists() and settings.service_account_signing_key_file:
            return ()
        if not default.exists():
            self._write(default, public_key_pem(token_key.public_key()))
        return (default,)

    def _issuance_log_key(self) -> PrivateKey:
        key, public = self._key("lineage.key"), self.pki / "lineage.pub"
        known = load(public, load_public_keys) if public.exists() else ()
        # A new key: records that the old one signed are still verified.
        if key.public_key() not in known:
            self._write(public, b"".join(map(public_key_pem, (*known, key.public_key()))))
        return key

    def _write(self, path: Path, data: bytes) -> None:
        write_atomic(path, data)
        self.created.append(str(path))

    def _key(self, name: str) -> PrivateKey:
        path = self.pki / name
        if not path.exists():
            self._write(path, private_key_pem(generate_key()))
        return load(path, load_private_key)

    def _load_named(self, flag: str, path: Path, parse: Callable[[bytes], Loaded]) -> Loaded:
        """Load a file that a flag names."""
        data = read_limited(path)
        if parse is load_private_key:
            warn_if_exposed(path)
        try:
            return parse(data)
        except MooringError as error:
            raise ConfigError(f"{flag}: {path}: {error}") from error

    def _load_or_create_ca(self) -> CaState:
        certificate_path, key_path = self.pki / "ca.crt", self.pki / "ca.key"
        if certificate_path.exists():
            # Never a reason for a new CA, which no machine would trust.
            if not key_path.exists():
                raise ConfigError(
                    f"{certificate_path} is there but {key_path} is missing; restore the key from a backup"
                )
            return read_ca(self.pki)
        key = self._key("ca.key")
        # The key is on disk by now: a start after a power failure makes the certificate for it.
        authority = self_signed_ca(key, profiles.CLUSTER_CA_NAME, self.now, serial_number(self.entropy))
        self._write(certificate_path, authority.certificate_pem)
        return CaState.of(authority)

    def _serving_pair(self, ca: CaState) -> Pair:
        if self.config[ServingSettings].tls_cert_file:
            return read_pair(self.config[ServingSettings])
        path = self.pki / "apiserver.crt"
        key = self._key("apiserver.key")
        names, addresses = self._serving_names()
        cross_signed = ca.chain_above(ca.authority.certificate, self.now)
        leaf, *above = load(path, certificates) if path.exists() else (None,)
        cross_signed = (*self._bridge(ca, names, addresses, above), *cross_signed)
        if leaf is not None and self._is_current(leaf, key, ca.authority) and _covers(leaf, names, addresses):
            # The leaf stays, and is sent with another chain.
            if tuple(above) != cross_signed:
                self._write(path, certificates_pem([leaf, *cross_signed]))
            return (leaf, *cross_signed), key
        template = profiles.apiserver_serving(
            key.public_key(), self.now, names, [ipaddress.ip_address(address) for address in addresses]
        )
        certificate = ca.authority.sign(template, self.now, serial_number(self.entropy))
        chain = (certificate, *cross_signed)
        self._write(path, certificates_pem(chain))
        return chain, key

    def _bridge(
        self, ca: CaState, names: Sequence[str], addresses: Sequence[str], above: Sequence[Certificate]
    ) -> Certificates:
        """Return the certificate by which the next CA vouches for the one that issues, in the phase TrustBoth of a rollover.

        That of `above` stays while it fits. With a key in other hands, neither CA vouches for the other.
        """
        paths = self.pki / "rollover" / "new.crt", self.pki / "rollover" / "new.key"
        if not all(path.exists() for path in paths):
            return ()
        new = Authority(load(paths[0], certificates)[0], load(paths[1], load_private_key))
        old = ca.authority.certificate
        if new.certificate == old or new.certificate not in ca.trusted:
            return ()
        if find_cross_signed(ca.cross_signed, new.certificate, old) is None:
            return ()
        dns = dict.fromkeys(name.removeprefix("*.") for name in (*profiles.SERVICE_NAMES, *names))
        permitted = AlternativeNames(tuple(dns), tuple(map(ipaddress.ip_address, addresses)))
        for one in above:
            if is_bridge(one, old, new, permitted, self.now):
                # Another one at each start would change the file without need.
                return (one,)
        return (bridge(old, new, permitted, self.now, self.entropy),)

    def _serving_names(self) -> tuple[list[str], list[str]]:
        config, network = self.config, self.config[NetworkSettings]
        names, addresses = list(LOCAL_NAMES), [*LOCAL_ADDRESSES, api_address(network.service_cluster_ip_range)]
        hosts = (endpoint.host for endpoint in config.endpoints)
        for host in (*hosts, *config[ServingSettings].apiserver_cert_extra_sans):
            (addresses if _is_address(host) else names).append(host)
        if config.advertise_address:
            addresses.append(config.advertise_address)
        if not ipaddress.ip_address(network.bind_address).is_unspecified:
            # A certificate names no interface.
            addresses.append(network.bind_address.partition("%")[0])
        return list(dict.fromkeys(names)), list(dict.fromkeys(addresses))

    def _is_current(self, certificate: Certificate, key: PrivateKey, authority: Authority) -> bool:
        return (
            certificate.public_key() == key.public_key()
            and certificate.is_issued_by(authority.certificate)
            and _has_enough_life(certificate, self.now)
        )

    def _write_kubeconfig(
        self,
        name: str,
        authority: Authority,
        serving_ca_pem: bytes,
        profile: Callable[[PublicKey, datetime], profiles.Template],
        user_name: str,
    ) -> None:
        path = self.root / name
        first, *others = (endpoint.url for endpoint in self.config.endpoints)
        reached = user_kubeconfig(first, serving_ca_pem, KubeconfigUser(user_name), others=others)
        if path.exists() and self._kubeconfig_is_current(path, authority, reached.clusters, user_name):
            return
        key = generate_key()
        certificate = authority.sign(profile(key.public_key(), self.now), self.now, serial_number(self.entropy))
        user = KubeconfigUser(
            user_name, certificate_pem=certificates_pem([certificate]), key=Secret(private_key_pem(key))
        )
        self._write(path, format_kubeconfig(replace(reached, users=(user,))).encode())

    def _kubeconfig_is_current(
        self, path: Path, authority: Authority, clusters: tuple[Cluster, ...], user_name: str
    ) -> bool:
        """Return whether the file has these servers and CAs and a certificate with enough life; False when it cannot be read.

        An administrator may have added users, and `kubectl config` sorts the entries by name.
        """
        first, *others = clusters
        try:
            config = parse_kubeconfig(read_limited(path))
            present, user = config.cluster(first.name), config.user(user_name)
            certificate = certificates(user.certificate_pem if user is not None else b"")[0]
        except (MooringError, IndexError):
            return False
        return (
            present is not None
            and (present.server, present.ca_pem) == (first.server, first.ca_pem)
            and {one.server for one in other_addresses(config, present)} == {one.server for one in others}
            and certificate.is_issued_by(authority.certificate)
            and _has_enough_life(certificate, self.now)
        )


def _has_enough_life(certificate: Certificate, now: datetime) -> bool:
    """Return whether a certificate counts now and for RENEW_LEFT. One that was made by a clock that ran ahead has not begun."""
    return certificate.not_valid_before_utc <= now and certificate.not_valid_after_utc - now > RENEW_LEFT


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _covers(certificate: Certificate, names: list[str], addresses: list[str]) -> bool:
    listed = alternative_names(certificate.extensions)
    return {*listed.dns, *map(str, listed.ips)} >= {*names, *addresses}


def _distinct(keys: tuple[PublicKey, ...]) -> Iterator[PublicKey]:
    seen: list[PublicKey] = []
    for key in keys:
        if key not in seen:
            seen.append(key)
            yield key
