"""Which node a user is (docs/protocol/node-authorization.md#identity): user name `system:node:<name>` and group `system:nodes`,
both."""

from __future__ import annotations

from mooring.identity import NODE_PREFIX, NODES, UserInfo


def node_name(user: UserInfo) -> str | None:
    """The node's name; None when the user is no node; "" when it is in the group but does not say which node."""
    if NODES not in user.groups:
        return None
    return user.username.removeprefix(NODE_PREFIX) if user.username.startswith(NODE_PREFIX) else ""
