"""Identities: `UserInfo`, and the `system:` user and group names.

Names: k8s.io/apiserver/pkg/authentication/user (docs/protocol/bootstrap-tokens.md#authentication, docs/protocol/authentication.md,
docs/protocol/rbac.md#default-roles).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
BOOTSTRAPPERS = "system:bootstrappers"
BOOTSTRAP_USER_PREFIX = "system:bootstrap:"
SERVICE_ACCOUNTS = "system:serviceaccounts"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"

_NO_EXTRA: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class UserInfo:
    """Identity of a user, for authorizers and audit; compared by value."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: _NO_EXTRA
    )  # Python 3.11 refuses the mappingproxy itself

    def with_groups(self, *more: str) -> UserInfo:
        """Return the user with `more` groups appended, without duplicates."""
        added = tuple(group for group in dict.fromkeys(more) if group not in self.groups)
        return UserInfo(self.username, self.uid, self.groups + added, self.extra) if added else self


ANONYMOUS_USER = UserInfo(ANONYMOUS, groups=(UNAUTHENTICATED,))


def service_account_username(namespace: str, name: str) -> str:
    return f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


def service_account_groups(namespace: str) -> tuple[str, str]:
    return (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}")
