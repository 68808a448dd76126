"""Keys of a k3s cluster as those of a Mooring cluster, and back.

Rules kept here (docs/protocol/k3s.md#bootstrap-data):
* The CA of k3s's servers issues, because machines verify servers by it. The CA of its clients is trusted beside it, so that every
  certificate that k3s gave out stays valid.
* The first key of the ServiceAccounts signs; all of them verify.
* On the way back the CA that issues comes first in its bundle, as Go's TLS wants it. Files that k3s had beforehand are kept. Keys
  that Mooring has none of are made by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key, private_key_pem, public_key_pem
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState
from mooring.pki.x509.publickeys import load_public_keys
from mooring.secret import Secret
from mooring.trust.k3s.bootstrapdata import BootstrapFile
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, SharedKeySet

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
