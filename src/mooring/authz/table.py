"""`AUTHORIZERS`: every authorizer by its `--authorization-mode` name (law 10), and the chain built from a list of modes.

Modes: docs/protocol/authorization.md#modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mooring.authz.always import AlwaysAllow, AlwaysDeny
from mooring.authz.decision import Authorizer
from mooring.authz.node.authorizer import NodeAuthorizer
from mooring.authz.privilegedgroup import PrivilegedGroup
from mooring.authz.rbac.authorizer import Rbac
from mooring.errors import ConfigError

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
