"""The keys and certificates of a control plane on disk: made at first boot, loaded ever after.

Layout (kubeadm's names) under `<data-dir>`:
    pki/ca.crt, ca.key                  the cluster CA (10 years); signs clients and nodes, and the server itself unless flags
                                        name a certificate of another CA
    pki/apiserver.crt, apiserver.key    the serving pair; remade when a name is missing or a third of its life is left; not made
                                        when flags name another one
    pki/sa.key, sa.pub                  signs and verifies service-account tokens, unless flags name other files
    admin.conf                          O=kubeadm:cluster-admins: its power is a binding that can be taken away
    super-admin.conf                    O=system:masters: passes every authorizer; keep it in a safe

Rules kept here:
* A CA is never overwritten. A key is durable before the certificate that needs it; whatever moment the power fails, the next
  start either finds both or finishes the work. A certificate whose key is lost is an error that says so, never a new CA.
* Everything is 0600 and written atomically (`mooring.client.files`).
* One process at a time does this: a lock file in the data directory.
* The data directory belongs to this user or to root, and not everybody may write there.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from mooring.api.core.service.allocation import api_address
from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import (
    PrivateKey,
    PublicKey,
    generate_key,
    load_private_key,
    load_public_keys,
    private_key_pem,
    public_key_pem,
)
from mooring.pki.pem import certificates, certificates_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.plane.configuration import ServerConfig
from mooring.plane.exposed import refuse_exposed, warn_if_exposed
from mooring.plane.serving.pair import read_pair
from mooring.plane.serving.trust import serving_cas
from mooring.secret import Secret
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings
from mooring.trust.kubeconfig.model import Cluster, User, user_kubeconfig
from mooring.trust.kubeconfig.text import format_kubeconfig, parse_kubeconfig

RENEW_LEFT = timedelta(days=120)
"""The serving certificate and the admin's are remade when less than this is left: a third of their year."""
ROOT = 0
LOCAL_NAMES = ("localhost",)
LOCAL_ADDRESSES = ("127.0.0.1", "::1")
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class Material:
    """What a server needs in memory."""

    authority: Authority
    serving_chain: tuple[x509.Certificate, ...]
    serving_key: PrivateKey
    serving_ca_pem: bytes
    """CAs that verify the serving certificate."""
    token_key: PrivateKey
    token_keys: tuple[PublicKey, ...]
    token_signing_file: str = ""
    token_key_files: tuple[str, ...] = ()
    """Where the keys of tokens were read, so that the files can be followed; empty: they are in memory only."""

    @property
    def client_ca_pem(self) -> bytes:
        """The CA that signs client certificates."""
        return self.authority.certificate_pem


@dataclass(frozen=True, slots=True)
class Prepared:
    """The material, and which files were new."""

    material: Material
    made: tuple[str, ...]


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Hold the data directory's lock; wait for whoever has it."""
    make_directory(data_dir)
    _refuse_strangers(data_dir)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(data_dir / ".lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refuse_strangers(data_dir: Path) -> None:
    """A directory in which somebody else may put files could hold a CA of theirs. Raises ConfigError."""
    found = data_dir.stat()
    if found.st_uid not in (os.geteuid(), ROOT):
        raise ConfigError(f"{data_dir} belongs to another user; give it to this one with chown, or choose another")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{data_dir} can be written by everybody; run chmod 700 on it, or choose another directory")


def prepare(config: ServerConfig, now: datetime, entropy: Callable[[int], bytes]) -> Prepared:
    """Load what is there, make what is missing. Raises ConfigError with what to do."""
    root = Path(config.data_dir)
    with exclusive(root):
        return _Preparation(config, root, now, entropy).run()


class _Preparation:
    def __init__(self, config: ServerConfig, root: Path, now: datetime, entropy: Callable[[int], bytes]) -> None:
        self.config = config
        self.root = root
        self.pki = root / "pki"
        self.now = now
        self.entropy = entropy
        self.made: list[str] = []

    def run(self) -> Prepared:
        make_directory(self.pki)
        refuse_exposed(self.pki)
        for kubeconfig in sorted(self.root.glob("*.conf")):
            warn_if_exposed(kubeconfig)
        authority = self._authority()
        serving_chain, serving_key = self._serving(authority)
        serving_ca_pem = (
            serving_cas(self.config[ServingSettings], serving_chain, authority.certificate, self.now)
            or authority.certificate_pem
        )
        signing_file, token_key = self._token_signing()
        key_files = self._token_key_files(token_key)
        token_keys = (token_key.public_key(), *(key for path in key_files for key in self._verifying(path)))
        self._kubeconfig("admin.conf", authority, serving_ca_pem, profiles.admin, profiles.ADMIN_NAME)
        self._kubeconfig("super-admin.conf", authority, serving_ca_pem, profiles.super_admin, profiles.SUPER_ADMIN_NAME)
        material = Material(
            authority,
            serving_chain,
            serving_key,
            serving_ca_pem,
            token_key,
            tuple(_distinct(token_keys)),
            str(signing_file),
            tuple(map(str, key_files)),
        )
        return Prepared(material, tuple(self.made))

    def _token_signing(self) -> tuple[Path, PrivateKey]:
        named = self.config.service_accounts.signing_key_file
        if named:
            return Path(named), self._named("service-account-signing-key-file", Path(named), load_private_key)
        return self.pki / "sa.key", self._key("sa.key")

    def _verifying(self, path: Path) -> tuple[PublicKey, ...]:
        if self.config.service_accounts.key_files:
            return self._named("service-account-key-file", path, load_public_keys)
        return self._load(path, load_public_keys)

    def _token_key_files(self, token_key: PrivateKey) -> tuple[Path, ...]:
        """What verifies tokens beside the signing key: the files that were named, else our own."""
        options, own = self.config.service_accounts, self.pki / "sa.pub"
        if options.key_files:
            return tuple(map(Path, options.key_files))
        if not own.exists() and options.signing_key_file:
            return ()
        if not own.exists():
            self._write(own, public_key_pem(token_key.public_key()))
        return (own,)

    def _write(self, path: Path, data: bytes) -> None:
        write_atomic(path, data)
        self.made.append(str(path))

    def _key(self, name: str) -> PrivateKey:
        path = self.pki / name
        if not path.exists():
            self._write(path, private_key_pem(generate_key()))
        return self._load(path, load_private_key)

    def _load(self, path: Path, load: Callable[[bytes], Loaded]) -> Loaded:
        data = read_limited(path)
        try:
            return load(data)
        except ConfigError:
            raise
        except MooringError as error:
            derived = path.name.startswith("apiserver.")  # nobody keeps it but this server
            remedy = "remove it, and it is made anew" if derived else "restore it from a backup"
            raise ConfigError(f"{path}: {error}; {remedy}") from error

    def _named(self, flag: str, path: Path, load: Callable[[bytes], Loaded]) -> Loaded:
        """What a file holds that a flag names."""
        data = read_limited(path)
        if load is load_private_key:
            warn_if_exposed(path)
        try:
            return load(data)
        except MooringError as error:
            raise ConfigError(f"{flag}: {path}: {error}") from error

    def _certificates(self, path: Path) -> tuple[x509.Certificate, ...]:
        return self._load(path, certificates)

    def _authority(self) -> Authority:
        certificate_path, key_path = self.pki / "ca.crt", self.pki / "ca.key"
        if certificate_path.exists():
            if not key_path.exists():
                raise ConfigError(
                    f"{certificate_path} is there but {key_path} is missing; restore the key from a backup"
                )
            found = self._certificates(certificate_path)
            if len(found) != 1:
                raise ConfigError(f"{certificate_path} must hold exactly one certificate, it holds {len(found)}")
            key = self._load(key_path, load_private_key)
            return self._load(certificate_path, lambda _: Authority(found[0], key))
        key = self._key("ca.key")
        authority = self_signed_ca(key, profiles.CLUSTER_CA_NAME, self.now, serial_number(self.entropy))
        self._write(certificate_path, authority.certificate_pem)
        return authority

    def _serving(self, authority: Authority) -> tuple[tuple[x509.Certificate, ...], PrivateKey]:
        if self.config[ServingSettings].tls_cert_file:
            return read_pair(self.config[ServingSettings])
        path = self.pki / "apiserver.crt"
        key = self._key("apiserver.key")
        names, addresses = self._serving_names()
        if path.exists():
            chain = self._certificates(path)
            if self._is_current(chain[0], key, authority) and _covers(chain[0], names, addresses):
                return chain, key
        template = profiles.apiserver_serving(
            key.public_key(), self.now, names, [ipaddress.ip_address(address) for address in addresses]
        )
        certificate = authority.sign(template, self.now, serial_number(self.entropy))
        self._write(path, certificates_pem([certificate]))
        return (certificate,), key

    def _serving_names(self) -> tuple[list[str], list[str]]:
        names, addresses = (
            list(LOCAL_NAMES),
            [*LOCAL_ADDRESSES, api_address(self.config[NetworkSettings].service_cluster_ip_range)],
        )
        for host in (
            *(endpoint.host for endpoint in self.config.endpoints),
            *self.config[ServingSettings].apiserver_cert_extra_sans,
        ):
            (addresses if _is_address(host) else names).append(host)
        if self.config.advertise_address:
            addresses.append(self.config.advertise_address)
        if not ipaddress.ip_address(self.config[NetworkSettings].bind_address).is_unspecified:
            addresses.append(self.config[NetworkSettings].bind_address)
        return list(dict.fromkeys(names)), list(dict.fromkeys(addresses))

    def _is_current(self, certificate: x509.Certificate, key: PrivateKey, authority: Authority) -> bool:
        return (
            certificate.public_key() == key.public_key()
            and _issued_by(certificate, authority)
            and certificate.not_valid_after_utc - self.now > RENEW_LEFT
        )

    def _kubeconfig(
        self,
        name: str,
        authority: Authority,
        serving_ca_pem: bytes,
        profile: Callable[[PublicKey, datetime], profiles.Template],
        user_name: str,
    ) -> None:
        path = self.root / name
        first, *others = (endpoint.url for endpoint in self.config.endpoints)
        reached = user_kubeconfig(first, serving_ca_pem, User(user_name), others=others)
        if path.exists() and self._kubeconfig_is_current(path, authority, reached.clusters):
            return
        key = generate_key()
        certificate = authority.sign(profile(key.public_key(), self.now), self.now, serial_number(self.entropy))
        user = User(user_name, certificate_pem=certificates_pem([certificate]), key=Secret(private_key_pem(key)))
        self._write(path, format_kubeconfig(replace(reached, users=(user,))).encode())

    def _kubeconfig_is_current(self, path: Path, authority: Authority, clusters: tuple[Cluster, ...]) -> bool:
        """Whether the file still works: same servers, same CAs, certificate with enough life. What cannot be read is remade."""
        try:
            config = parse_kubeconfig(read_limited(path))
            certificate = certificates(config.users[0].certificate_pem)[0]
        except (MooringError, IndexError):
            return False
        return (
            [(one.server, one.ca_pem) for one in config.clusters] == [(one.server, one.ca_pem) for one in clusters]
            and _issued_by(certificate, authority)
            and certificate.not_valid_after_utc - self.now > RENEW_LEFT
        )


def _issued_by(certificate: x509.Certificate, authority: Authority) -> bool:
    """Whether this very CA signed it: another one of the same name did not."""
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _covers(certificate: x509.Certificate, names: list[str], addresses: list[str]) -> bool:
    try:
        listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    have = set(listed.get_values_for_type(x509.DNSName))
    have |= {str(address) for address in listed.get_values_for_type(x509.IPAddress)}
    return have >= {*names, *addresses}


def _distinct(keys: tuple[PublicKey, ...]) -> Iterator[PublicKey]:
    seen: list[PublicKey] = []
    for key in keys:
        if key not in seen:
            seen.append(key)
            yield key
