"""Parts that handlers of the supervisor API use, one field for each group of routes. The plane builds them once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mooring.apimachinery.schema import Obj
from mooring.server.endpoints.supervisor.certificates import NodeCertificates
from mooring.server.endpoints.supervisor.servers import ServerKeys
from mooring.server.endpoints.supervisor.tunnel import Tunnels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SupervisorServices:
    """Parts of one server process. A handler gets what its row names, and not the whole."""

    server_ca: Callable[[], bytes]
    """Returns the bundle that verifies the serving certificate, as `/cacerts` serves it."""
    client_ca: Callable[[], bytes]
    """Returns the bundle that verifies clients."""
    config: Callable[[], Obj]
    """Returns the document of `/v1-k3s/config`."""
    apiservers: Callable[[], tuple[str, ...]]
    """Returns `host:port` of the servers that live."""
    certificates: NodeCertificates
    ready: Callable[[], bool]
    """Returns whether this server is ready."""
    tunnels: Tunnels
    encryption: Callable[[], Awaitable[Obj]]
    """Returns the document of `/v1-k3s/encrypt/status`."""
    server_keys: ServerKeys
