"""Datastore and token of a k3s server, as it leaves them on its disk."""

from __future__ import annotations

import os
from pathlib import Path

from mooring.clock import SystemClock
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import self_signed_ca
from mooring.secret import Secret
from mooring.storage.sqlite import kine
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.sharedkeys.k3sbootstrapdata import PREFIX, BootstrapFile, seal_row


def write_k3s_server(directory: Path, password: str) -> str:
    """Write `db/state.db` with new keys, and `token`. Return the token."""
    now = SystemClock().now()
    content = {"ServiceKey": private_key_pem(generate_key())}
    for number, name in enumerate(("ServerCA", "ClientCA"), 1):
        key = generate_key()
        content[name] = self_signed_ca(key, f"k3s-{name}@1", now, number).certificate_pem
        content[f"{name}Key"] = private_key_pem(key)
    files = {name: BootstrapFile(Secret(data), now) for name, data in content.items()}
    (directory / "db").mkdir(parents=True)
    kine.create_key(directory / "db/state.db", *seal_row(files, Secret(password), os.urandom), refused=PREFIX)
    token = f"K10{ca_hash(content['ServerCA'])}::server:{password}"
    (directory / "token").write_text(f"{token}\n")
    return token
