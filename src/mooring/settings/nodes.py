"""Settings of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import Network, parse_networks
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, TEXT, Settings, one_of_words, setting

ENDS_MEMBERSHIP = "ends-membership"
REREGISTERS = "reregisters"
DELETIONS = (ENDS_MEMBERSHIP, REREGISTERS)
"""Effects of the deletion of a Node: its machine is not a member any more, or registers again, as kubelet does."""
REPORT, HOLD, END = DUPLICATE_POLICIES = ("report", "hold", "end")
"""Effects of two machines with one identity: it is reported; their requests wait for a person, too; both are revoked, too."""
REGISTRATIONS = ("none", "tainted", "ready")
"""Nodes that a member registers: none, one that no Pods are placed on, or a Ready one."""


def _parse_node_deletion(text: str, key: str) -> str:
    if text not in DELETIONS:
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

    duplicate_identity: str = setting(
        TEXT,
        default=REPORT,
        meaning=f"Effect of two machines that use one identity: {REPORT} tells the operator; {HOLD} also lets their certificate "
        f"requests wait for a person; {END} also revokes the certificates of both. Give all servers of a cluster the same.",
        metavar="EFFECT",
        parse=one_of_words(DUPLICATE_POLICIES),
    )

    join_requests: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Let machines without any credential ask for a client certificate of a node, which a person approves after a "
        "comparison of codes (mooring join --ask). Give all servers of a cluster the same.",
    )

    join_requests_allow_cidr: tuple[Network, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Networks from which such machines may ask; repeatable, or with commas.",
        metavar="CIDR,...",
        default_note="every network",
        parse=parse_networks,
    )

    @property
    def deletion_ends_membership(self) -> bool:
        """Deleting a Node ends the membership of its machine."""
        return self.node_deletion == ENDS_MEMBERSHIP
