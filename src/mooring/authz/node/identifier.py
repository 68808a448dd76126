"""Node identifier: the node name of a user `system:node:<name>` in group `system:nodes`.

Source: docs/protocol/node-authorization.md#identity.
"""

from __future__ import annotations

from mooring.identity import NODE_PREFIX, NODES, UserInfo


def node_name(user: UserInfo) -> str | None:
    """Return the node's name; None when the user is not a node; "" when it is in the group without a node's user name."""
    if NODES not in user.groups:
        return None
    return user.username.removeprefix(NODE_PREFIX) if user.username.startswith(NODE_PREFIX) else ""
