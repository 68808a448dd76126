"""The authorizers by the name of their mode, and the small ones: always, never, and the privileged group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mooring.api.view import Views
from mooring.authz.decision import Attributes, Authorizer, Decision, Ruling
from mooring.authz.node import NodeAuthorizer
from mooring.authz.rbac.authorizer import Rbac
from mooring.errors import ConfigError
from mooring.identity import MASTERS, UserInfo

# AlwaysAllow and AlwaysDeny (docs/protocol/authorization.md#modes), for tests and for clusters behind another authorizer.


class AlwaysAllow:
    """Allows every request. The settings that select it must turn anonymous authentication off."""

    name = "AlwaysAllow"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.ALLOW)


class AlwaysDeny:
    """Has no opinion on any request, which denies it unless another authorizer allows it."""

    name = "AlwaysDeny"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.NO_OPINION, "Everything is forbidden.")


# Privileged group: members of `system:masters` are allowed everything.
#
# Rules kept here (docs/protocol/authorization.md#decision): this authorizer comes first and reads no objects, so no edit of RBAC
# objects can lock out the holders of the break-glass certificate.

_ALLOW = Decision(Ruling.ALLOW)
_NO_OPINION = Decision(Ruling.NO_OPINION)


class PrivilegedGroup:
    """Allows members of `system:masters`; has no opinion on other users."""

    name = "Masters"

    def __init__(self) -> None:
        self._last: tuple[UserInfo | None, Decision] = (None, _NO_OPINION)
        """Last user and the decision: an impersonation of 1 000 groups judges one user a thousand times, who may have 10 000."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        user, (last, decision) = attributes.user, self._last
        if user is not last:
            decision = _ALLOW if MASTERS in user.groups else _NO_OPINION
            self._last = (user, decision)
        return decision


# `AUTHORIZERS`: every authorizer by its `--authorization-mode` name (law 10), and the chain built from a list of modes.
#
# Modes: docs/protocol/authorization.md#modes.

AUTHORIZERS: Mapping[str, Callable[[], Authorizer]] = MappingProxyType(
    {
        "AlwaysAllow": AlwaysAllow,
        "AlwaysDeny": AlwaysDeny,
        "Node": NodeAuthorizer,
        "RBAC": Rbac,
    }
)


def build(modes: Sequence[str]) -> tuple[Authorizer, ...]:
    """Build the authorizers of these modes in order, after `PrivilegedGroup`.

    Raises ConfigError for an unknown or repeated mode, and when there is none.
    """
    if not modes:
        raise ConfigError("authorization-mode: at least one mode is needed, for example Node,RBAC")
    for index, mode in enumerate(modes):
        if mode not in AUTHORIZERS:
            raise ConfigError(f'authorization-mode: "{mode}" is not one of {", ".join(AUTHORIZERS)}')
        if mode in modes[:index]:
            raise ConfigError(f'authorization-mode: "{mode}" is given more than once')
    return (PrivilegedGroup(), *(AUTHORIZERS[mode]() for mode in modes))
