"""Sealed keys and the server token, as the supervisor API hands them to other servers.

Rules kept here:
* The row is served as it stands in the store. This server does not open it for the request.
* The place of the store is its URLs and its prefix. Passwords, and the paths of client keys, stay here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from mooring.api.view import Views
from mooring.errors import ConfigError
from mooring.plane.configuration import ServerConfig
from mooring.plane.sharedkeys.share import Rotated, SharedKeys
from mooring.secret import Secret
from mooring.server.endpoints.supervisor.servers import Confirm, ServerKeys
from mooring.settings.storage import StorageSettings
from mooring.trust.sharedkeys.envelope import encode

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
