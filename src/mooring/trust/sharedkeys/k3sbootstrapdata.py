"""Bootstrap data of k3s: the row that holds the CA keys of its cluster, and those keys as keys of this server."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.clock import ZERO_TIME
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key, private_key_pem, public_key_pem
from mooring.pki.x509.bundles import certificates, certificates_pem, load_public_keys
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState
from mooring.secret import Secret
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, SharedKeySet

# Bootstrap data of k3s: the row of its datastore that holds the CA keys of a cluster, encrypted with the server token.
#
#     /bootstrap/<12 hexadecimal digits of SHA-256(passphrase)>  →  <salt>:<base64(nonce || AES-256-GCM ciphertext)>
#
# Rules kept here (docs/protocol/k3s.md#bootstrap-data):
# * The passphrase is the password of the server token, without prefix, hash and user. The key is PBKDF2-HMAC-SHA1 of it with 4096
#   rounds; the salt is the text of 16 hexadecimal digits, not the bytes that they mean.
# * The plaintext is a JSON object of files by name, each with its time and its content. Older versions have the content alone.
# * The name of a row tells of which token it is: a row under another name is of another token, and a row under the right name that
#   does not decrypt is damaged.
# * Versions before the correction of CVE-2021-32001 encrypted with the empty passphrase, or with the whole text of the token. Those
#   rows are found as well, and named.
# * A row without a value is the lock of a k3s server that creates the row.
#
# The form is weak: a name tests a guess of the token with one SHA-256. Mooring's own row has another one
# (`mooring.trust.sharedkeys.envelope`). This one is read and written to move a cluster.

PREFIX = "/bootstrap"
"""k3s lists the keys that begin with it."""
NAMES = (
    "ETCDServerCA",
    "ETCDServerCAKey",
    "ETCDPeerCA",
    "ETCDPeerCAKey",
    "ServerCA",
    "ServerCAKey",
    "ClientCA",
    "ClientCAKey",
    "RequestHeaderCA",
    "RequestHeaderCAKey",
    "ServiceKey",
    "PasswdFile",
    "IPSECKey",
    "EncryptionConfig",
    "EncryptionHash",
)
"""Names of files that k3s stores. It ignores others, and so do readers here."""
MAX_VALUE = 2 << 20
"""Bytes of a row: etcd takes 1.5 MiB in a request, and a usual row has 20 KiB."""
_ROUNDS, _KEY_BYTES, _SALT_BYTES, _NONCE_BYTES = 4096, 32, 8, 12
_NAME_DIGITS = 12
Entropy = Callable[[int], bytes]


class NoBootstrapDataError(ConfigError):
    """The datastore has no row."""


class AnotherTokenError(ConfigError):
    """The datastore has a row, and it is of another token."""


class DamagedBootstrapDataError(ConfigError):
    """The row of this token does not decrypt, or holds something else."""


class UnfinishedBootstrapDataError(ConfigError):
    """The row is the lock of a server that creates it."""


@dataclass(frozen=True, slots=True)
class BootstrapFile:
    """One file: its content, and the time of its last change; None where the row has none."""

    content: Secret
    changed: datetime | None = None


@dataclass(frozen=True, slots=True)
class BootstrapData:
    """Files of an opened row, by their names."""

    files: Mapping[str, BootstrapFile]
    key: str
    """Key of the row in the datastore."""
    weakness: str = ""
    """Fault of the passphrase of the row; "" for one of a present k3s."""


def row_key(passphrase: Secret) -> str:
    """Return the key of the row of a passphrase."""
    return f"{PREFIX}/{hashlib.sha256(passphrase.reveal()).hexdigest()[:_NAME_DIGITS]}"


EMPTY = Secret("")
EMPTY_KEY = row_key(EMPTY)
"""Key of rows from before the correction of CVE-2021-32001."""


def open_rows(rows: Mapping[str, bytes], passphrase: Secret, whole_token: Secret = EMPTY) -> BootstrapData:
    """Open the row of a token among the rows below PREFIX.

    `whole_token` is the text of the token, under which the first versions stored it. Raises the errors of this module.
    """
    if not rows:
        raise NoBootstrapDataError(f"the datastore has no key below {PREFIX}: it is not that of k3s, or was never used")
    candidates = [(passphrase, "")] if passphrase else []
    if whole_token:
        candidates.append((whole_token, "the passphrase is the whole text of the token"))
    candidates.append((EMPTY, "the passphrase is empty (CVE-2021-32001): anyone who read the datastore has these keys"))
    for candidate, weakness in candidates:
        if (key := row_key(candidate)) in rows:
            return BootstrapData(decode_files(key, decrypt(key, rows[key], candidate)), key, weakness)
    raise AnotherTokenError(
        "the datastore holds bootstrap data of another token; give the server token with which this cluster was started last"
    )


def seal_row(files: Mapping[str, BootstrapFile], passphrase: Secret, entropy: Entropy) -> tuple[str, bytes]:
    """Return the key and the value of a row. Raises ConfigError for an empty passphrase, or for more than a row can hold."""
    if not passphrase:
        raise ConfigError("bootstrap data is not encrypted with an empty token")
    salt, nonce = entropy(_SALT_BYTES).hex().encode(), entropy(_NONCE_BYTES)
    ciphertext = AESGCM(_encryption_key(passphrase, salt)).encrypt(nonce, encode_files(files), None)
    value = salt + b":" + base64.b64encode(nonce + ciphertext)
    if len(value) > MAX_VALUE:
        raise ConfigError(f"the bootstrap data is larger than {MAX_VALUE >> 20} MiB")
    return row_key(passphrase), value


def decrypt(key: str, value: bytes, passphrase: Secret) -> Secret:
    """Return the plaintext of the row under `key`, which is that of the passphrase.

    Raises UnfinishedBootstrapDataError, DamagedBootstrapDataError.
    """
    if not value:
        raise UnfinishedBootstrapDataError(
            f"{key} in the datastore is the lock of a k3s server that has not stored its bootstrap data yet; let it start first"
        )
    salt, colon, text = value.partition(b":")
    damaged = DamagedBootstrapDataError(
        f"{key} in the datastore is the row of this token and does not decrypt: it is damaged; restore it from a backup"
    )
    if not colon or len(value) > MAX_VALUE:
        raise damaged
    try:
        data = base64.b64decode(text, validate=True)
        return Secret(AESGCM(_encryption_key(passphrase, salt)).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None))
    except (binascii.Error, InvalidTag, ValueError):
        # ValueError: a nonce or a ciphertext that is too short.
        raise damaged from None


class _FileMessage(msgspec.Struct):
    Timestamp: datetime | None = None
    Content: bytes | None = None


def decode_files(key: str, plaintext: Secret) -> Mapping[str, BootstrapFile]:
    """Return the files in the plaintext of a row, without those of names that k3s does not know.

    Raises DamagedBootstrapDataError.
    """
    found: dict[str, BootstrapFile] = {}
    try:
        for name, raw in msgspec.json.decode(plaintext.reveal(), type=dict[str, msgspec.Raw]).items():
            if name not in NAMES:
                continue
            one = msgspec.json.decode(raw, type=_FileMessage | str | None)
            if isinstance(one, _FileMessage):
                found[name] = BootstrapFile(Secret(one.Content or b""), _known_time(one.Timestamp))
            else:
                found[name] = BootstrapFile(Secret(base64.b64decode(one or "", validate=True)))
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise DamagedBootstrapDataError(
            f"{key} in the datastore decrypts to something that is no bootstrap data"
        ) from None
    return found


def encode_files(files: Mapping[str, BootstrapFile]) -> bytes:
    """Return the plaintext of a row. Raises ConfigError for a name that k3s does not know."""
    if unknown := sorted(files.keys() - set(NAMES)):
        raise ConfigError(f"bootstrap data of k3s has no file {unknown[0]!r}")
    message = {name: _FileMessage(one.changed or ZERO_TIME, one.content.reveal()) for name, one in files.items()}
    return msgspec.json.encode(message) + b"\n"


def _known_time(found: datetime | None) -> datetime | None:
    return None if found is None or found == ZERO_TIME else found


def _encryption_key(passphrase: Secret, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha1", passphrase.reveal(), salt, _ROUNDS, _KEY_BYTES)


# Keys of a k3s cluster as those of a Mooring cluster, and back.
#
# Rules kept here (docs/protocol/k3s.md#bootstrap-data):
# * The CA of k3s's servers issues, because machines verify servers by it. The CA of its clients is trusted beside it, so that
#   every certificate that k3s gave out stays valid.
# * The first key of the ServiceAccounts signs; all of them verify.
# * On the way back the CA that issues comes first in its bundle, as Go's TLS wants it. Files that k3s had beforehand are kept.
#   Keys that Mooring has none of are made by the caller.

FILES: Mapping[str, str] = MappingProxyType(
    {
        "ServerCA": "tls/server-ca.crt",
        "ServerCAKey": "tls/server-ca.key",
        "ClientCA": "tls/client-ca.crt",
        "ClientCAKey": "tls/client-ca.key",
        "RequestHeaderCA": "tls/request-header-ca.crt",
        "RequestHeaderCAKey": "tls/request-header-ca.key",
        "ETCDServerCA": "tls/etcd/server-ca.crt",
        "ETCDServerCAKey": "tls/etcd/server-ca.key",
        "ETCDPeerCA": "tls/etcd/peer-ca.crt",
        "ETCDPeerCAKey": "tls/etcd/peer-ca.key",
        "ServiceKey": "tls/service.key",
        "PasswdFile": "cred/passwd",
        "IPSECKey": "cred/ipsec.psk",
        "EncryptionConfig": "cred/encryption-config.json",
        "EncryptionHash": "cred/encryption-state.json",
    }
)
"""Paths of the files below k3s's own directory of a server."""
AUTHORITIES = ("RequestHeaderCA", "ETCDServerCA", "ETCDPeerCA")
"""CAs of k3s that Mooring has no counterpart of."""


def keys_of(files: Mapping[str, BootstrapFile]) -> SharedKeySet:
    """Return the keys of a cluster from the files of a k3s row. Raises ConfigError that names the file."""
    for name in ("ServerCA", "ServerCAKey", "ClientCA", "ServiceKey"):
        if name not in files or not files[name].content:
            raise ConfigError(f"the bootstrap data has no {name}: it is not that of a whole k3s server")
    name = ""
    try:
        bundle: list[Certificate] = []
        for name in ("ServerCA", "ClientCA"):
            bundle += certificates(files[name].content.reveal())
        name = "ServerCAKey"
        key = load_private_key(files[name].content.reveal())
        name = "ServiceKey"
        tokens = files[name].content.reveal()
        signing, verifying = load_private_key(tokens), load_public_keys(tokens)
    except MooringError as error:
        raise ConfigError(f"{name}: {error}") from None
    return SharedKeySet.of(
        {
            CA: Secret(certificates_pem(dict.fromkeys(bundle))),
            CA_KEY: Secret(private_key_pem(key)),
            "sa.key": Secret(private_key_pem(signing)),
            "sa.pub": Secret(b"".join(map(public_key_pem, verifying))),
        }
    )


def bootstrap_files(keys: SharedKeySet, kept: Mapping[str, BootstrapFile]) -> Mapping[str, BootstrapFile]:
    """Return the files of a k3s row for the keys of a cluster. `kept` are those that an earlier import kept.

    Raises ConfigError for keys without a ServiceAccount key.
    """
    if "sa.key" not in keys.files:
        raise ConfigError("sa.key is missing: k3s needs the key of the ServiceAccounts")
    state = CaState.of_files(certificates(keys.files[CA].reveal()), load_private_key(keys.files[CA_KEY].reveal()))
    issuing = state.authority.certificate
    server_ca = certificates_pem([issuing, *(one for one in state.trusted if one != issuing)])
    own = {
        "ServerCA": BootstrapFile(Secret(server_ca)),
        "ServerCAKey": BootstrapFile(keys.files[CA_KEY]),
        "ServiceKey": BootstrapFile(keys.files["sa.key"]),
    }
    clients = {"ClientCA": own["ServerCA"], "ClientCAKey": own["ServerCAKey"]}
    has_clients = {"ClientCA", "ClientCAKey"} <= kept.keys()
    return {
        **{name: one for name, one in kept.items() if name != "PasswdFile"},
        **own,
        **({} if has_clients else clients),
    }
