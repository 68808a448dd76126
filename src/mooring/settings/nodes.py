"""Settings of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import TEXT

ENDS_MEMBERSHIP = "ends-membership"
REREGISTERS = "reregisters"


def _parse_node_deletion(text: str, key: str) -> str:
    if text not in (ENDS_MEMBERSHIP, REREGISTERS):
        raise ConfigError(f'{key}: "{text[:64]}" is neither {ENDS_MEMBERSHIP} nor {REREGISTERS}')
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(Settings):
    """Membership of nodes."""

    heading: ClassVar[str] = "Nodes"

    node_deletion: str = setting(
        TEXT,
        default=ENDS_MEMBERSHIP,
        meaning=f"Effect of deleting a Node: {ENDS_MEMBERSHIP} rejects the certificates of the machine until it joins again; "
        f"{REREGISTERS} lets it create its Node again, as in Kubernetes. Give all servers of a cluster the same.",
        metavar="EFFECT",
        parse=_parse_node_deletion,
    )

    @property
    def deletion_ends_membership(self) -> bool:
        """Deleting a Node ends the membership of its machine."""
        return self.node_deletion == ENDS_MEMBERSHIP
