"""Kind of server: Mooring, or another Kubernetes API server.

The check reads `gitVersion` of `/version`, which everybody may read by default. Without a version it decides nothing.
"""

from __future__ import annotations

from mooring.client.cluster import ClusterClient
from mooring.clock import Clock
from mooring.errors import BadRequestError, ForbiddenError, MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.trust.answertext import is_mooring
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.kubeconfig import Cluster, KubeconfigUser


class NotMooringError(PeerError):
    """The server is another Kubernetes API server, without the feature of Mooring that was requested."""


async def read_version(client: ClusterClient) -> str:
    """Return `gitVersion`; empty when the server gives none. Raises ApiError, PeerError."""
    version = (await client.get_path("/version")).get("gitVersion")
    return version if isinstance(version, str) else ""


async def other_program(client: ClusterClient) -> str:
    """Return what a server is that is not Mooring, for messages; "" for a Mooring server.

    Raises ApiError, PeerError for a server that cannot be asked now: it may be Mooring.
    """
    try:
        version = await read_version(client)
    except (BadRequestError, UnauthorizedError, ForbiddenError, NotFoundError, NotKubernetesError):
        version = ""
    if is_mooring(version):
        return ""
    return f"Kubernetes {version}" if version else "a server that does not say its version"


async def check_is_mooring(client: ClusterClient, purpose: str) -> None:
    """Raise NotMooringError when the server is not Mooring. `purpose` names the feature, for the message."""
    try:
        version = await read_version(client)
    except MooringError:
        return
    if version and not is_mooring(version):
        raise NotMooringError(f"{client.server} is Kubernetes {version}, not Mooring: only a Mooring server {purpose}")


async def is_mooring_server(cluster: Cluster, clock: Clock) -> bool:
    """Return True when the server says so to a request without credentials, because those at hand were refused."""
    try:
        async with ClusterClient(cluster, KubeconfigUser(""), clock) as client:
            return is_mooring(await read_version(client))
    except MooringError:
        return False


async def check_anonymously(cluster: Cluster, clock: Clock, purpose: str) -> None:
    """Call `check_is_mooring` without credentials, because those at hand were refused."""
    async with ClusterClient(cluster, KubeconfigUser(""), clock) as client:
        await check_is_mooring(client, purpose)
