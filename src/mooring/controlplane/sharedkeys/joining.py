"""Joining servers: the configuration, the sealed keys and the server token that servers of a cluster ask of each other."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from mooring.api.core.service import NODE_PORT_RANGE
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.client.http.requests import drive_fetching
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.sharedkeys.share import Rotated, SharedKeys
from mooring.controlplane.sharedkeys.start import in_child
from mooring.controlplane.sharedkeys.tokenfile import MAX_FILE, ServerTokenFile
from mooring.errors import ConfigError, MooringError
from mooring.secret import Secret
from mooring.server.endpoints.supervisor.servers import Confirm, ServerKeys
from mooring.settings.network import NetworkSettings
from mooring.settings.storage import EncryptionSettings, StorageSettings, etcd_urls
from mooring.trust.discovery.fetch import DiscoveryExchange, Notice
from mooring.trust.encryption.configuration import GroupResource, parse
from mooring.trust.k3s.settings import AgentConfig, K3sSettings
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import encode
from mooring.trust.sharedkeys.serverjoin import Datastore, ServerAccess, parse_server_token, server_access
from mooring.trust.sharedkeys.servertoken import FILES, SharedKeysSettings


def agent_config(config: ServerConfig, *, encrypts_secrets: bool) -> Obj:
    """Return the document of `/v1-k3s/config`."""
    k3s, network = config[K3sSettings], config[NetworkSettings]
    return AgentConfig(
        service_range=network.service_cluster_ip_range,
        node_ports=NODE_PORT_RANGE,
        pod_ranges=k3s.cluster_cidr,
        dns=k3s.cluster_dns,
        domain=k3s.cluster_domain,
        port=network.secure_port,
        address=config.advertise_address,
        bind_address=network.bind_address,
        encrypts_secrets=encrypts_secrets,
    ).to_json()


# Join of a server: the configuration and the sealed keys of its cluster are asked of a server that runs.
#
#     server/joined.json    URL of the server that was asked, and the store of the cluster
#
# Rules kept here (docs/protocol/k3s.md#join-of-a-server):
# * The token opens the sealed keys here, before anything is written. The keys are then taken from the store, as at every start.
# * The answer is kept. A later start does not ask again, so that it needs no other server, and asks when the URL is another one.
# * A store that flags name is used in place of the one in the answer. Credentials for etcd come from flags alone.
# * The requests are made in a child process: the caller has neither threads nor connections.

log = logging.getLogger("mooring.controlplane")

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
    if (known := known_answer(record, url)) is None:
        access = server_access(url, parse_server_token(_whole_token(config, token), least))
        in_child(_join(config, access, record, clock))
        known = known_answer(record, url)
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
        # Before the keys are asked for: a server whose settings do not fit takes none.
        server.check_configuration(configuration, own)
    found = yield from server.fetch_bootstrap()
    server.check_configuration(found.configuration, own)
    # Before the answer is kept: with a token that opens nothing, nothing is written.
    envelope.open_keys(found.row, envelope.unlock(found.row, server.password))
    yield Notice(f"The server token opens the keys of the cluster, as {access.url} has them")
    return found.datastore


def _log(notice: Notice) -> None:
    log.info("%s", notice.message)


def known_answer(record: Path, url: str) -> _Joined | None:
    """Return the answer that was kept; None without one, and for another URL."""
    try:
        found = msgspec.json.decode(read_limited(record, MAX_FILE), type=_Joined) if record.exists() else None
    except (MooringError, msgspec.MsgspecError, RecursionError):
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


# Sealed keys and the server token, as the supervisor API hands them to other servers.
#
# Rules kept here:
# * The row is served as it stands in the store. This server does not open it for the request.
# * The place of the store is its URLs and its prefix. Passwords, and the paths of client keys, stay here.

SCHEME = "etcd:"


def server_keys(
    config: ServerConfig,
    shared: SharedKeys | None,
    configuration: Callable[[], Mapping[str, Any]],
    server_ca: Callable[[], bytes],
    views: Views,
    read_tokens: Callable[[], None],
) -> ServerKeys:
    """Return what handlers use of the shared keys. `server_ca` returns the CAs of the servers' certificates."""

    async def sealed_row() -> Mapping[str, Any] | None:
        row = await shared.row() if shared is not None else None
        return json.loads(encode(row)) if row is not None and row.is_sealed else None

    async def rotate(token: Secret | None, grace: timedelta, confirm: Confirm) -> Rotated:
        if shared is None:
            raise ConfigError("a store in memory keeps no server token; start the server with another --server-token")
        return await shared.rotate(token, grace, confirm)

    async def rotate_agent(token: Secret | None, grace: timedelta, confirm: Confirm) -> Rotated:
        if shared is None:
            raise ConfigError("a store in memory keeps no agent token; start the server with another --agent-token")
        return await shared.rotate_agent(token, grace, confirm)

    return ServerKeys(
        configuration=configuration,
        sealed_row=sealed_row,
        views=views,
        datastore=_datastore(config[StorageSettings]),
        server_ca=server_ca,
        read_tokens=read_tokens,
        rotate=rotate,
        rotate_agent=rotate_agent,
    )


def _datastore(storage: StorageSettings) -> Mapping[str, Any] | None:
    url = storage.storage_url
    if not url.startswith(SCHEME):
        return None
    return {
        "etcdServers": url.removeprefix(SCHEME).split(","),
        "etcdPrefix": storage.etcd_prefix,
        "needsClientCertificate": bool(storage.etcd_certfile),
        "needsPassword": bool(storage.etcd_username),
    }
