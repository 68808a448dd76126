"""Token of a first start: stored, and cluster-info signed with it, so that a machine can join at once.

Rules kept here (docs/protocol/cluster-info.md): the signature is the one that the bootstrapsigner controller would write. A
conflict means that a running controller was faster.
"""

from __future__ import annotations

from datetime import timedelta

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import ListOptions, WriteOptions
from mooring.clock import Clock
from mooring.errors import ConflictError
from mooring.identity import API_SERVER_USER
from mooring.plane.publishing.firstboot import FirstBoot
from mooring.registry.store import Registry
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, new_record
from mooring.trust.discovery import clusterinfo

DESCRIPTION = "The default bootstrap token, made at the first start."
MAX_ATTEMPTS = 10
"""Conflicts in a row after which signing is left to the running bootstrapsigner controller."""


async def create_first_token(
    registry: Registry, clock: Clock, first_boot: FirstBoot, token: BootstrapToken, ttl: timedelta
) -> None:
    """Store the token and sign cluster-info with it. Raises ApiError or StorageError."""
    record = new_record(token, clock.now(), ttl=ttl, description=DESCRIPTION)
    await first_boot.create_token(record)
    await sign_cluster_info(registry, clock)


async def sign_cluster_info(registry: Registry, clock: Clock) -> None:
    """Bring the signatures of cluster-info up to date."""
    config_maps, secret_kind = BY_PLURAL["configmaps"], BY_PLURAL["secrets"]
    for _ in range(MAX_ATTEMPTS):
        config_map = (await registry.reader.get(config_maps, clusterinfo.NAMESPACE, clusterinfo.NAME)).obj
        tokens = await registry.reader.list(secret_kind, NAMESPACE, ListOptions())
        now = clock.now()
        changed = clusterinfo.signed(config_map, [item.obj for item in tokens.items], now)
        if changed is None:
            return
        try:
            await registry.writer.update(
                config_maps,
                clusterinfo.NAMESPACE,
                clusterinfo.NAME,
                changed,
                Change(API_SERVER_USER, now, writer="first-boot"),
                WriteOptions(),
            )
        except ConflictError:
            continue
        return
