"""Issuance check `bootstrap-token-limits`: node names, networks and number of joins that a bootstrap token allows.

Rules kept here:
* The requester `system:bootstrap:<id>` names the token. Its Secret must still exist: a request whose token was deleted waits for a
  person, so that deleting a token also stops what it has pending. An expired token that still exists is enough; its request
  was accepted while it was valid.
* A join counts by compare-and-swap on the Secret, before the approval. The record is a hash of public key and name, so that
  a machine that repeats its request counts once, and one key cannot take many names.
* Names are judged again, because another API server than Mooring admits requests without judging them. There the recorded source
  address cannot be trusted, and a token with networks needs a person.
* A machine that joins by k3s's way requests four certificates with four keys. They are one join: its record is the hash of the node
  password's Secret and the name. The two certificates that name no machine are requested with the client certificate of the
  machine, and count nothing (`name-ownership`).
* A person who approves a request decides about names and networks. The join is counted if there is room.
* A token without a number of joins causes no write.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.api.certificates.sourceaddress import source_address_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Update
from mooring.controllers.bootstrap.tokensecrets import SECRETS, is_token
from mooring.controllers.certificates.issuance import Finding, Issuance, Objection, Preparation
from mooring.identity import NAME_NOT_ALLOWED, NODE_PREFIX, bootstrap_token_id
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.supervisorsigners import NODE_SIGNERS, SUPERVISOR_SIGNERS, Extra, node_name_in
from mooring.trust.bootstraptoken.restrictions import (
    ALLOWED_CIDRS,
    MAX_JOINS,
    NODE_NAME,
    TOKEN_USED_UP,
    Restrictions,
    join_record,
    joined_keys,
    read_restrictions,
    with_joined_key,
)
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name

TOKEN_DELETED = "TokenDeleted"  # noqa: S105 - a reason, no secret
TOKEN_UNREADABLE = "TokenUnreadable"  # noqa: S105 - a reason, no secret
NETWORK_NOT_ALLOWED = "NetworkNotAllowed"
SOURCE_UNKNOWN = "SourceUnknown"


@dataclass(frozen=True, slots=True)
class BootstrapTokenCheck:
    """Checks requests that were made with a bootstrap token."""

    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, as Mooring does."""
    name: str = "bootstrap-token-limits"
    watches: tuple[str, ...] = (SECRETS,)

    def check(self, issuance: Issuance, views: Views) -> Finding | None:
        token_id = bootstrap_token_id(issuance.username)
        if not token_id:
            return None
        secret = views[SECRETS].get(secret_name(token_id), NAMESPACE)
        if secret is None or not is_token(secret) or secret["metadata"].get("deletionTimestamp"):
            return _hold(
                issuance,
                TOKEN_DELETED,
                f"the bootstrap token {token_id} of this request was deleted; let the machine join again with another token, or "
                "approve the request by hand",
            )
        try:
            restrictions = read_restrictions(secret)
            joined = joined_keys(secret) if restrictions.max_joins is not None else ()
        except TokenError as error:
            return _hold(issuance, TOKEN_UNREADABLE, f"the bootstrap token {token_id}: {error}")
        if not restrictions:
            return None
        if issuance.automatic and (objection := self._objection(issuance, token_id, restrictions)) is not None:
            return objection
        return _count(issuance, token_id, secret, restrictions, joined)

    def _objection(self, issuance: Issuance, token_id: str, restrictions: Restrictions) -> Objection | None:
        """Return an objection to the name or to the source of a request."""
        if not requests_allowed_name(_user_of(issuance), restrictions):
            return Objection(NAME_NOT_ALLOWED, name_refusal(token_id, restrictions), denies=True)
        if not restrictions.networks:
            return None
        source = source_address_of(issuance.csr) if self.trusts_source_address else ""
        if not source:
            return Objection(
                SOURCE_UNKNOWN,
                f"the bootstrap token {token_id} is for some networks ({ALLOWED_CIDRS}), and the address of this request is not "
                "known; approve it by hand if it comes from there",
            )
        if restrictions.allows_address(source):
            return None
        networks = ", ".join(map(str, restrictions.networks))
        return Objection(
            NETWORK_NOT_ALLOWED,
            f"the bootstrap token {token_id} is for {networks} ({ALLOWED_CIDRS}), and the request came from {source}",
            denies=True,
        )


def _user_of(issuance: Issuance) -> str | None:
    return joining_user(issuance.signer_name, issuance.request, issuance.extra)


def joining_user(signer_name: str, request: CertificateRequest, extra: Extra) -> str | None:
    """Return the user that the joining machine will be; None when the request names no machine."""
    if signer_name in NODE_SIGNERS:
        return f"{NODE_PREFIX}{node_name_in(extra)}"
    return None if signer_name in SUPERVISOR_SIGNERS else request.common_name


def requests_allowed_name(common_name: str | None, restrictions: Restrictions) -> bool:
    """Return true when a token with these restrictions may request a certificate for a user; None names no machine."""
    if not restrictions.node_name or common_name is None:
        return True
    name = common_name.removeprefix(NODE_PREFIX)
    return name != common_name and restrictions.allows_name(name)


def join_refusal(username: str, node_name: str, views: Views) -> str:
    """Return the reason for which the token of a user lets no further machine join under a name; "" when it does, or for another
    user. For a decision before there is a request; `BootstrapTokenCheck` decides about the request itself."""
    token_id = bootstrap_token_id(username)
    secret = views[SECRETS].get(secret_name(token_id), NAMESPACE) if token_id else None
    if secret is None:
        return ""
    try:
        restrictions = read_restrictions(secret)
        joined = joined_keys(secret) if restrictions.max_joins is not None else ()
    except TokenError as error:
        return f"the bootstrap token {token_id}: {error}"
    if not restrictions.allows_name(node_name):
        return name_refusal(token_id, restrictions)
    if restrictions.max_joins is not None and len(joined) >= restrictions.max_joins:
        return _used_up(token_id, restrictions.max_joins)
    return ""


def _used_up(token_id: str, max_joins: int) -> str:
    machines = "1 machine" if max_joins == 1 else f"{max_joins} machines"
    return (
        f"the bootstrap token {token_id} was for {machines} ({MAX_JOINS}), and they have joined; make another: "
        "mooring token create"
    )


def name_refusal(token_id: str, restrictions: Restrictions) -> str:
    """Return the reason for which a token may not request a certificate for a name."""
    return (
        f'the bootstrap token {token_id} is only for nodes named "{restrictions.node_name}" ({NODE_NAME}); join under such a '
        "name, or use another token"
    )


def _hold(issuance: Issuance, reason: str, message: str) -> Objection | None:
    return Objection(reason, message) if issuance.automatic else None


def _count(
    issuance: Issuance, token_id: str, secret: Obj, restrictions: Restrictions, joined: tuple[str, ...]
) -> Finding | None:
    """Count the join of a request, unless it is counted already."""
    key = join_record(issuance.password or issuance.request.key_fingerprint, _user_of(issuance) or "")
    if restrictions.max_joins is None or key in joined:
        return None
    if len(joined) < restrictions.max_joins:
        return Preparation((Update(SECRETS, with_joined_key(secret, key)),))
    if not issuance.automatic:
        return None
    return Objection(TOKEN_USED_UP, _used_up(token_id, restrictions.max_joins), denies=True)
