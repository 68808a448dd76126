"""Identities: `UserInfo`, and the `system:` user and group names.

Names: k8s.io/apiserver/pkg/authentication/user (docs/protocol/bootstrap-tokens.md#authentication, docs/protocol/authentication.md,
docs/protocol/rbac.md#default-roles).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ANONYMOUS = "system:anonymous"
API_SERVER = "system:apiserver"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
RECOVERING_NODES = "system:recovering-nodes"
RECOVERING_NODE_PREFIX = "system:recovering-node:"
"""Group and username of a machine that proves possession of the key of its expired node certificate (`mooring.authn.recovery`)."""
RECOVERY_KEY = "recovery.mooring.dev/public-key"
RECOVERY_NOT_AFTER = "recovery.mooring.dev/not-after"
"""Extra attributes of such a user: the key, as `sha256:<hex>`, and the end of the certificate, in RFC 3339."""
BOOTSTRAPPERS = "system:bootstrappers"
BOOTSTRAP_USER_PREFIX = "system:bootstrap:"
JOIN_RULE_PREFIX = "system:joinrule:"
"""Prefix of the username of a machine that joins by an identity token (`mooring.trust.joinrule`)."""
SERVICE_ACCOUNTS = "system:serviceaccounts"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
NAME_NOT_ALLOWED = "NodeNameNotAllowed"
"""Reason, and cause of a 403, when a bootstrap token requests a name that it does not allow."""
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
NODE_NAME = "authentication.kubernetes.io/node-name"
"""Key of `extra` with the node to which a credential is bound that is not the node's own."""


def is_text(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8. Lone surrogates cannot: they stand for bytes that were not UTF-8, or come from
    a JSON escape such as `\\ud800`."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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

    @property
    def unreadable(self) -> str:
        """Name of the first part that is not text, such as "the user name"; "" when all parts are."""
        if not is_text(self.username):
            return "the user name"
        if not is_text(self.uid):
            return "the uid"
        if not all(map(is_text, self.groups)):
            return "a group"
        if not all(is_text(key) and all(map(is_text, values)) for key, values in self.extra.items()):
            return "an extra attribute"
        return ""

    def with_groups(self, *more: str) -> UserInfo:
        """Return the user with `more` groups appended, without duplicates."""
        added = tuple(group for group in dict.fromkeys(more) if group not in self.groups)
        return UserInfo(self.username, self.uid, self.groups + added, self.extra) if added else self


ANONYMOUS_USER = UserInfo(ANONYMOUS, groups=(UNAUTHENTICATED,))
API_SERVER_USER = UserInfo(API_SERVER, groups=(MASTERS,))
"""User of the writes of the server itself."""


def service_account_username(namespace: str, name: str) -> str:
    return f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


def service_account_groups(namespace: str) -> tuple[str, str]:
    return (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}")


def bootstrap_token_id(username: str) -> str:
    """Return the id of the bootstrap token whose user `username` is; "" for every other user."""
    token_id = username.removeprefix(BOOTSTRAP_USER_PREFIX)
    return token_id if token_id != username else ""


def join_rule_name(username: str) -> str:
    """Return the name of the join rule whose user `username` is; "" for every other user."""
    name = username.removeprefix(JOIN_RULE_PREFIX)
    return name if name != username else ""
