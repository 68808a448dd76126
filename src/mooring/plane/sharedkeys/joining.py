"""Join of a server: the configuration and the sealed keys of its cluster are asked of a server that runs.

    server/joined.json    URL of the server that was asked, and the store of the cluster

Rules kept here (docs/protocol/k3s.md#join-of-a-server):
* The token opens the sealed keys here, before anything is written. The keys are then taken from the store, as at every start.
* The answer is kept. A later start does not ask again, so that it needs no other server, and asks when the URL is another one.
* A store that flags name is used in place of the one in the answer. Credentials for etcd come from flags alone.
* The requests are made in a child process: the caller has neither threads nor connections.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.client.http.requests import drive_fetching
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.plane.agentconfig import agent_config
from mooring.plane.configuration import ServerConfig
from mooring.plane.sharedkeys.start import in_child
from mooring.plane.sharedkeys.tokenfile import MAX_FILE, ServerTokenFile
from mooring.settings.storage import EncryptionSettings, StorageSettings, etcd_urls
from mooring.trust.discovery.polling import DiscoveryExchange, Notice
from mooring.trust.encryption.configuration import GroupResource, parse
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.serverjoin import Datastore, ServerAccess, parse_server_token, server_access
from mooring.trust.sharedkeys.settings import FILES, SharedKeysSettings

log = logging.getLogger("mooring.plane")

RECORD = "joined.json"
SECRETS = GroupResource("", "secrets")


class _Joined(msgspec.Struct):
    server: str
    etcd_servers: tuple[str, ...]
    etcd_prefix: str
    needs_client_certificate: bool = False
    needs_password: bool = False


def joined_configuration(config: ServerConfig, token: str, clock: Clock) -> ServerConfig:
    """Return the configuration with the store of the cluster that `--server` names; unchanged without that flag.

    `token`: the text of `--server-token`, which may be empty. Raises MooringError; then nothing was written.
    """
    url = config[SharedKeysSettings].server
    if not url:
        return config
    if config[SharedKeysSettings].shared_keys == FILES:
        raise ConfigError("server: with --shared-keys files a server joins by files that you copy; leave --server out")
    least = config[SharedKeysSettings].least_token_length
    record = Path(config.data_dir) / "server" / RECORD
    if (known := _known(record, url)) is None:
        access = server_access(url, parse_server_token(_whole_token(config, token), least))
        in_child(_join(config, access, record, clock))
        known = _known(record, url)
        if known is None:
            raise ConfigError(f"{record} was changed while this server started; start it again")
    return _with_store(config, known)


def critical_configuration(config: ServerConfig) -> Mapping[str, Any]:
    """Return the settings of a server as `/v1-k3s/config` has them. Raises ConfigError."""
    return agent_config(
        config, encrypts_secrets=_encrypts_secrets(config[EncryptionSettings].encryption_provider_config)
    )


def _encrypts_secrets(file: str) -> bool:
    return bool(file) and bool(parse(read_limited(Path(file)), file).providers_of(SECRETS))


def _whole_token(config: ServerConfig, token: str) -> str | bytes:
    """Return the token with its hash, as it was given, else as it stands in the data directory. Raises ConfigError."""
    if token:
        return token
    if file := config[SharedKeysSettings].server_token_file:
        return read_limited(Path(file), MAX_FILE)
    kept = ServerTokenFile(config).path
    if kept.exists():
        return read_limited(kept, MAX_FILE)
    raise ConfigError(
        "server: give --token with the server token, which stands in server/token in the data directory of the other server"
    )


async def _join(config: ServerConfig, access: ServerAccess, record: Path, clock: Clock) -> None:
    place = await drive_fetching(_questions(access, critical_configuration(config)), clock, _log)
    found = Datastore(etcd_urls(place.etcd_servers, "server"), place.etcd_prefix)
    make_directory(record.parent)
    content = {
        "server": config[SharedKeysSettings].server,
        "etcd_servers": found.etcd_servers,
        "etcd_prefix": found.etcd_prefix,
        "needs_client_certificate": place.needs_client_certificate,
        "needs_password": place.needs_password,
    }
    write_atomic(record, json.dumps(content).encode())


def _questions(access: ServerAccess, own: Mapping[str, Any]) -> DiscoveryExchange[Datastore]:
    """Return the place of the store, once the token has opened the keys. Raises MooringError."""
    server = yield from access.connect()
    if (configuration := (yield from server.fetch_configuration())) is not None:
        server.check_configuration(configuration, own)
    found = yield from server.fetch_bootstrap()
    server.check_configuration(found.configuration, own)
    envelope.open_keys(found.row, envelope.unlock(found.row, server.password))
    yield Notice(f"The server token opens the keys of the cluster, as {access.url} has them")
    return found.datastore


def _log(notice: Notice) -> None:
    log.info("%s", notice.message)


def _known(record: Path, url: str) -> _Joined | None:
    """Return the answer that was kept; None without one, and for another URL."""
    try:
        found = msgspec.json.decode(read_limited(record, MAX_FILE), type=_Joined) if record.exists() else None
    except (MooringError, msgspec.MsgspecError):
        return None
    return found if found is not None and found.server == url else None


def _with_store(config: ServerConfig, known: _Joined) -> ServerConfig:
    """Return the configuration with the store of the cluster. Raises ConfigError for credentials that are missing."""
    storage = config[StorageSettings]
    if storage.storage or storage.etcd_servers:
        return config
    if known.needs_client_certificate and not storage.etcd_certfile:
        raise ConfigError(
            "server: the etcd of this cluster asks for a client certificate: give --etcd-cafile, --etcd-certfile and --etcd-keyfile"
        )
    if known.needs_password and not storage.etcd_username:
        raise ConfigError(
            "server: the etcd of this cluster asks for a password: give --etcd-username and --etcd-password-file"
        )
    return config.with_settings(replace(storage, etcd_servers=known.etcd_servers, etcd_prefix=known.etcd_prefix))
