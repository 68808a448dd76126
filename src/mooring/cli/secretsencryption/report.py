"""Report of a cluster about its encryption at rest: the servers, and the keys of each resource."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.errors import ConfigError, NotFoundError
from mooring.trust.encryption import keychange

PATH = "/mooring/v1/encryption"
NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True)
class EncryptionOverview:
    """Servers that are running, and the resources that one of them reports."""

    servers: Sequence[Obj]
    resources: Sequence[Obj]

    @property
    def stale(self) -> int:
        """Values that another key than the first has written."""
        return sum(one["stale"] for one in self.resources)

    @property
    def unreadable(self) -> int:
        """Values that no key decrypts."""
        return sum(one["unreadable"] for one in self.resources)


async def fetch_servers(client: ClusterClient, now: datetime) -> tuple[Obj, ...]:
    """Return the Leases of the servers that are running."""
    listed = await client.list("leases", NAMESPACE, label_selector=keychange.SERVER_LABEL)
    return keychange.live_servers(listed.items, now)


async def check_server(client: ClusterClient) -> None:
    """Raise NotMooringError for another API server, which does not report how it encrypts."""
    await check_is_mooring(
        client, "reports its encryption at rest; elsewhere look at --encryption-provider-config of each kube-apiserver"
    )


async def fetch(client: ClusterClient, now: datetime) -> EncryptionOverview:
    """Return the report. Raises ConfigError for a server that has none."""
    try:
        found = await client.get_path(PATH)
    except NotFoundError:
        raise ConfigError("this server does not report its encryption at rest; is it an older Mooring?") from None
    return EncryptionOverview(await fetch_servers(client, now), found["resources"])


def server_rows(report: EncryptionOverview) -> list[tuple[str, str, str]]:
    """Return a row for each server: its identity, the hash of its file, and whether it follows changes."""
    rows = []
    for lease in report.servers:
        notes = lease["metadata"].get("annotations") or {}
        rows.append(
            (
                lease["spec"].get("holderIdentity") or lease["metadata"]["name"],
                notes.get(keychange.HASH_ANNOTATION, "")[:19],
                "yes" if notes.get(keychange.RELOAD_ANNOTATION) == "true" else "no",
            )
        )
    return sorted(rows)


def resource_rows(report: EncryptionOverview) -> list[tuple[str, ...]]:
    """Return a row for each key of each resource: how many values it has written, and whether it writes now."""
    rows: list[tuple[str, ...]] = []
    for one in report.resources:
        state = "current" if not one["stale"] and not one["unreadable"] else f"{one['stale']} stale"
        if one["unreadable"]:
            state += f", {one['unreadable']} unreadable"
        keys = ", ".join(f"{key}: {count}" for key, count in sorted(one["values"].items()))
        rows.append((one["resource"], one["writes"], keys or "<none>", state))
    return rows
