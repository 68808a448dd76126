"""Which server answers: a Mooring, or another Kubernetes API server.

Rules kept here: `gitVersion` of `/version` tells, and everybody may read it by default. Without a version nothing is claimed.
"""

from __future__ import annotations

from mooring.client.cluster import ClusterClient
from mooring.clock import Clock
from mooring.errors import MooringError, PeerError
from mooring.trust.kubeconfig.model import Cluster, User

_BUILD = "+mooring-"
"""Part of the `gitVersion` of every Mooring server."""


class NotMooringError(PeerError):
    """Another Kubernetes API server answers, which does not do what only Mooring does."""


async def read_version(client: ClusterClient) -> str:
    """Return `gitVersion`; empty when the server tells none. Raises ApiError, PeerError."""
    version = (await client.get_path("/version")).get("gitVersion")
    return version if isinstance(version, str) else ""


def is_mooring(version: str) -> bool:
    """Whether a `gitVersion` is one of Mooring."""
    return _BUILD in version


async def check_is_mooring(client: ClusterClient, purpose: str) -> None:
    """Raise NotMooringError when the server is surely no Mooring. `purpose`: what only a Mooring server does."""
    try:
        version = await read_version(client)
    except MooringError:
        return
    if version and not is_mooring(version):
        raise NotMooringError(
            f"{client.server} is no Mooring server, it is Kubernetes {version}: only a Mooring server {purpose}"
        )


async def check_anonymously(cluster: Cluster, clock: Clock, purpose: str) -> None:
    """Do `check_is_mooring` without credentials: those that were refused would be refused again."""
    async with ClusterClient(cluster, User(""), clock) as client:
        await check_is_mooring(client, purpose)
