"""Checks of the one who asks for a certificate: a credential that still counts, and the limits of its token or join rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from mooring.api.certificates.requestrecords import precedes, requester_certificate_of, source_address_of
from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.certificaterevocation import node_entry
from mooring.api.mooring.joinrule import JUDGED, machines_of, machines_of_use, with_join
from mooring.api.mooring.joinrule import MAX_JOINS as MAX_JOINED
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.membership import has_companion, has_ended, may_use_name, was_made_before_change
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn import revocations
from mooring.authn.x509 import ClientCrls
from mooring.clock import moment_of, rfc3339
from mooring.controllers.actions import Update
from mooring.controllers.bootstrap import SECRETS, is_token
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.identity import (
    NAME_NOT_ALLOWED,
    NODE_PREFIX,
    RECOVERING_NODE_PREFIX,
    SERVICE_ACCOUNT_PREFIX,
    UserInfo,
    bootstrap_token_id,
    join_rule_name,
)
from mooring.pki.x509.clientcertificate import ClientCertificate, recorded_certificate
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.signers import NODE_SIGNERS, SUPERVISOR_SIGNERS, Extra, node_name_in
from mooring.trust.bootstraptoken.restrictions import (
    ALLOWED_CIDRS,
    MAX_JOINS,
    NODE_NAME,
    REQUIRE_APPROVAL,
    TOKEN_USED_UP,
    Restrictions,
    join_record,
    joined_keys,
    read_restrictions,
    with_joined_key,
)
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from mooring.trust.joinrule import JoinRuleError, join_identity, read_rule

# Issuance check `requester`: no certificate for a requester whose credential was revoked, or who was deleted, whatever its key.
#
# Rules kept here:
# * A request may wait for days, and what authenticated it may end meanwhile. The entry of a revocation names a serial number, a
#   key or a node; so a Mooring server records the client certificate of the requester with the request, and it is compared with
#   the denylist and the CRLs of other CAs by the checks of the authenticator.
# * A machine whose Node was deleted, and a ServiceAccount that was deleted or made again, get nothing for what they requested
#   before.
# * A name that changed hands leaves nothing to its former machine: a request from before is not one of the present owner, nor is
#   one that was made with a certificate whose key has lost the name.
# * The request of a node from before its revocation was made with one of its revoked certificates.
# * Such a request is denied, and is not signed although a person approved it. A new request is the way out.
# * What cannot be read holds the request: a person may look.
# * The expiry of a credential changes nothing: a request that was good may wait for a person. So it is with the end of the Pod
#   that a ServiceAccount token is bound to. The deletion of a bootstrap token holds its requests (`bootstrap-token-limits`).
# * Another API server lets its clients write the record. It is read only where the server guards it.

NODES, SERVICE_ACCOUNTS = "nodes", "serviceaccounts"
REQUESTER_REVOKED = "RequesterRevoked"
REQUESTER_DELETED = "RequesterDeleted"
REQUESTER_UNKNOWN = "RequesterUnknown"
_AGAIN = "let the requester ask again, with a credential that counts"


@dataclass(frozen=True, slots=True)
class RequesterCheck:
    """Objects to requests of requesters that no longer count."""

    trusts_record: bool = False
    """True when the API server itself records the certificate of each requester, as Mooring does."""
    crls: ClientCrls = field(default_factory=ClientCrls)
    """The CRLs of the CAs of clients."""
    name: str = "requester"
    watches: tuple[str, ...] = (REVOCATIONS, IDENTITIES, NODES, SERVICE_ACCOUNTS)

    def check(self, pending: PendingIssue, views: Views) -> Hold | None:
        hold = _certificate_hold(pending, views, self.crls) if self.trusts_record else None
        if hold is not None:
            return hold
        for prefix in (NODE_PREFIX, RECOVERING_NODE_PREFIX):
            name = pending.username.removeprefix(prefix)
            if name != pending.username:
                return _node_hold(name, pending, views)
        if pending.username.startswith(SERVICE_ACCOUNT_PREFIX):
            return _account_hold(pending, views)
        return None


def _certificate_hold(pending: PendingIssue, views: Views, crls: ClientCrls) -> Hold | None:
    """Return a hold on the certificate that the request was made with."""
    record = requester_certificate_of(pending.csr)
    if not record:
        return None
    peer = recorded_certificate(record)
    if peer is None:
        return Hold(REQUESTER_UNKNOWN, "the record of the requester's certificate cannot be read")
    now = pending.now
    rejection = revocations.revoked(peer, views, now) or crls.rejection(peer, views, now)
    if rejection is not None and not rejection.is_undecided:
        return _revoked(f"by {rejection.detail}")
    if rejection is not None:
        return Hold(REQUESTER_UNKNOWN, rejection.detail)
    if not peer.node_name:
        return None
    return _membership_hold(peer.node_name, pending, views) or _key_hold(peer, pending, views)


def _node_hold(name: str, pending: PendingIssue, views: Views) -> Hold | None:
    """Return a hold on a node as requester: revoked after it asked, or deleted."""
    entry = node_entry(name)
    if problem := views[REVOCATIONS].problem(entry):
        return Hold(REQUESTER_UNKNOWN, f"{REVOCATIONS}/{entry} cannot be read: {problem}")
    found = views[REVOCATIONS].get(entry)
    if found is not None and precedes(pending.csr, found):
        return _revoked(f"by {REVOCATIONS}/{entry}, after it made the request")
    return _membership_hold(name, pending, views)


def _membership_hold(name: str, pending: PendingIssue, views: Views) -> Hold | None:
    for plural in (IDENTITIES, NODES):
        if problem := views[plural].problem(name):
            return Hold(REQUESTER_UNKNOWN, f"{plural}/{name} cannot be read: {problem}")
    identity = views[IDENTITIES].get(name)
    if has_ended(identity, views[NODES].get(name)):
        return _deleted(f'the Node "{name}" of the requester was deleted')
    if identity is None or not was_made_before_change(pending.csr, identity):
        return None
    return None if _is_same_machine(pending, identity) else _changed_hands(name)


def _key_hold(peer: ClientCertificate, pending: PendingIssue, views: Views) -> Hold | None:
    """Return a hold on a certificate whose key lost the name in the second in which the request was made.

    Times of objects have no fraction: a request of that second may be from before or after the change.
    """
    identity = views[IDENTITIES].get(peer.node_name)
    changed_at = spec_of(identity).get("changedAt", "") if identity is not None else ""
    if identity is None or pending.csr["metadata"].get("creationTimestamp") != changed_at:
        return None
    if _is_same_machine(pending, identity):
        return None
    if peer.common_name.startswith(NODE_PREFIX):
        is_known = may_use_name(identity, peer.public_key, f"sha256:{peer.fingerprint}")
    else:
        is_known = has_companion(identity, peer.public_key)
    return None if is_known else _changed_hands(peer.node_name)


def _is_same_machine(pending: PendingIssue, identity: Obj) -> bool:
    """Return True when the machine keeps its name through a change of its keys."""
    spec = spec_of(identity)
    is_owner = bool(pending.password) and pending.password == spec.get("nodePasswordUID")
    return bool(spec.get("reregisters")) or is_owner


def _account_hold(pending: PendingIssue, views: Views) -> Hold | None:
    """Return a hold on a ServiceAccount that is gone, or is another one now."""
    namespace, _, name = pending.username.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    view = views[SERVICE_ACCOUNTS]
    if problem := view.problem(name, namespace):
        return Hold(REQUESTER_UNKNOWN, f"{SERVICE_ACCOUNTS}/{name} cannot be read: {problem}")
    account = view.get(name, namespace)
    uid = pending.csr["spec"].get("uid", "")
    if account is None or account["metadata"].get("deletionTimestamp"):
        return _deleted(f"the ServiceAccount {namespace}/{name} of the requester was deleted")
    if uid and account["metadata"].get("uid") != uid:
        return _deleted(f"the ServiceAccount {namespace}/{name} of the requester was deleted and made again")
    return None


def _changed_hands(name: str) -> Hold:
    return _deleted(f'the name "{name}" of the requester has changed hands')


def _revoked(how: str) -> Hold:
    return Hold(REQUESTER_REVOKED, f"the requester's certificate was revoked {how}: {_AGAIN}", denies=True)


def _deleted(what: str) -> Hold:
    return Hold(REQUESTER_DELETED, f"{what}: {_AGAIN}", denies=True)


# Issuance checks `bootstrap-token-limits` and `join-rule-limits`: node names, networks and number of joins that a bootstrap token,
# or a join rule, allows. Both are one judgement of an `Allowance`.
#
# Rules kept here:
# * The requester names the token, `system:bootstrap:<id>`, or the rule, `system:joinrule:<name>`. It must still exist: a request
#   whose token or rule was deleted waits for a person, so that a deletion also stops what is pending. One that has expired and
#   still exists is enough; its request was accepted while it was valid.
# * A join counts by compare-and-swap on the Secret, or the rule, before the approval. The record is a hash of public key and name,
#   so that a machine that repeats its request counts once, and one key cannot take many names.
# * Names are judged again, because another API server than Mooring admits requests without judging them. There the recorded
#   source address cannot be trusted, and an allowance with networks needs a person.
# * A machine that joins by k3s's way requests four certificates with four keys. They are one join: its record is the hash of the
#   node password's Secret and the name. The two certificates that name no machine are requested with the client certificate of
#   the machine, and count nothing (`name-ownership`).
# * A person who approves a request decides about names and networks. The join is counted if there is room.
# * An allowance that requires approval has no request approved without a person. A name, a network and a number that deny come
#   first.
# * A token without a number of joins causes no write. No join is counted while a tombstone waits to be settled.
# * An identity token lets in one key: the first that is approved. Some minutes after its end (`JUDGED`) a person decides about a
#   key that it has not let in, because the record of its use ends as well.
# * A rule that decides otherwise than when the machine asked (`JoinIdentity.digest`) holds the request.

TOKEN_DELETED = "TokenDeleted"  # noqa: S105 - a reason, no secret
TOKEN_UNREADABLE = "TokenUnreadable"  # noqa: S105 - a reason, no secret
TOKEN_REQUIRES_APPROVAL = "TokenRequiresApproval"  # noqa: S105 - a reason, no secret
RULE_DELETED = "JoinRuleDeleted"
RULE_CHANGED = "JoinRuleChanged"
RULE_UNREADABLE = "JoinRuleUnreadable"
RULE_ENDED = "JoinRuleEnded"
RULE_REQUIRES_APPROVAL = "JoinRuleRequiresApproval"
RULE_USED_UP = "JoinRuleUsedUp"
RULE_FULL = "JoinRuleFull"
IDENTITY_USED = "IdentityTokenUsed"
IDENTITY_EXPIRED = "IdentityTokenExpired"
NETWORK_NOT_ALLOWED = "NetworkNotAllowed"
SOURCE_UNKNOWN = "SourceUnknown"
UNSETTLED = "TombstonesUnsettled"


@dataclass(frozen=True, slots=True)
class LimitNames:
    """Names of the limits in messages, and the advice at the end of a number."""

    max_joins: str
    networks: str
    node_name: str
    require_approval: str
    another: str
    another_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Permission of a requester, by its token or its rule.

    `is_recorded`: there is nothing to count for this request any more. `count` returns the action that counts a join, or why it
    cannot be counted.
    """

    names: NameAllowance
    joined: tuple[str, ...]
    is_recorded: bool
    used_up: str
    requires_approval: str
    count: Callable[[str], Update | Hold]


@dataclass(frozen=True, slots=True)
class NameAllowance:
    """The names that a token or a rule allows."""

    named: str
    limits: LimitNames
    restrictions: Restrictions


_OF_TOKENS = LimitNames(
    MAX_JOINS, ALLOWED_CIDRS, NODE_NAME, REQUIRE_APPROVAL, "make another: mooring token create", "use another token"
)
_OF_RULES = LimitNames(
    "spec.maxJoins",
    "spec.allowedCIDRs",
    "spec.nodeName",
    "spec.requireApproval",
    "raise it, or make another rule",
    "leave --node-name out",
)


def _judge(
    pending: PendingIssue, allowed: Allowance, views: Views, *, trusts_source_address: bool
) -> CheckResult | None:
    """Return what an allowance says of a request."""
    if pending.automatic and (hold := _limit_hold(pending, allowed.names, trusts_source_address)) is not None:
        return hold
    finding = _count(pending, views, allowed)
    if allowed.names.restrictions.require_approval and pending.automatic and not isinstance(finding, Hold):
        return _requires_approval(pending, allowed.requires_approval, allowed.names)
    return finding


def _limit_hold(pending: PendingIssue, allowed: NameAllowance, trusts_source_address: bool) -> Hold | None:
    """Return a hold on the name or the source of a request."""
    restrictions = allowed.restrictions
    if not requests_allowed_name(_user_of(pending), restrictions):
        return Hold(NAME_NOT_ALLOWED, name_refusal(allowed), denies=True)
    if not restrictions.networks:
        return None
    source = source_address_of(pending.csr) if trusts_source_address else ""
    if not source:
        return Hold(
            SOURCE_UNKNOWN,
            f"{allowed.named} is for some networks ({allowed.limits.networks}), and the address of this request is not "
            "known; approve it by hand if it comes from there",
        )
    if restrictions.allows_address(source):
        return None
    networks = ", ".join(map(str, restrictions.networks))
    return Hold(
        NETWORK_NOT_ALLOWED,
        f"{allowed.named} is for {networks} ({allowed.limits.networks}), and the request came from {source}",
        denies=True,
    )


@dataclass(frozen=True, slots=True)
class BootstrapTokenCheck:
    """Checks requests that were made with a bootstrap token."""

    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, as Mooring does."""
    name: str = "bootstrap-token-limits"
    watches: tuple[str, ...] = (SECRETS,)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        token_id = bootstrap_token_id(pending.username)
        if not token_id:
            return None
        secret = views[SECRETS].get(secret_name(token_id), NAMESPACE)
        if secret is None or not is_token(secret) or secret["metadata"].get("deletionTimestamp"):
            return _hold(
                pending,
                TOKEN_DELETED,
                f"the bootstrap token {token_id} of this request was deleted; let the machine join again with another token, or "
                "approve the request by hand",
            )
        try:
            restrictions = read_restrictions(secret)
            joined = joined_keys(secret) if restrictions.max_joins is not None else ()
        except TokenError as error:
            return _hold(pending, TOKEN_UNREADABLE, f"the bootstrap token {token_id}: {error}")
        if not restrictions:
            return None
        allowed = Allowance(
            names=NameAllowance(_named(token_id), _OF_TOKENS, restrictions),
            joined=joined,
            is_recorded=restrictions.max_joins is None or _machine_of(pending) in joined,
            used_up=TOKEN_USED_UP,
            requires_approval=TOKEN_REQUIRES_APPROVAL,
            count=lambda machine: Update(SECRETS, with_joined_key(secret, machine), precondition=_is_settled),
        )
        return _judge(pending, allowed, views, trusts_source_address=self.trusts_source_address)


@dataclass(frozen=True, slots=True)
class JoinRuleCheck:
    """Checks requests that were made with an identity token, by a join rule."""

    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, as Mooring does."""
    name: str = "join-rule-limits"
    watches: tuple[str, ...] = (JOIN_RULES,)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        name = join_rule_name(pending.username)
        if not name:
            return None
        if problem := views[JOIN_RULES].problem(name):
            return _hold(pending, RULE_UNREADABLE, f"the join rule {name} cannot be read: {problem}")
        obj = views[JOIN_RULES].get(name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return _hold(
                pending,
                RULE_DELETED,
                f"the join rule {name} of this request was deleted; let the machine join by another rule, or approve the request "
                "by hand",
            )
        try:
            rule, identity = read_rule(obj), join_identity(pending.username, pending.extra)
        except JoinRuleError as error:
            return _hold(pending, RULE_UNREADABLE, f"the join rule {name}: {error}")
        assert identity is not None  # the user is one of a rule
        if identity.digest != rule.digest and pending.automatic:
            return Hold(
                RULE_CHANGED,
                f"the join rule {name} was changed after this request: delete the request, so that the machine asks again, or "
                "approve it by hand",
            )
        made = moment_of(pending.csr["metadata"].get("creationTimestamp"))
        if made is not None and rule.has_ended(made) and pending.automatic:
            # Another API server accepts its tokens until its configuration is made again.
            return Hold(RULE_ENDED, f"the join rule {name} had ended when this request was made", denies=True)
        stated = identity.node_name
        # Another API server states the name by expressions. An empty one, or a * of a claim, would allow other names.
        is_given = bool(stated) == rule.names_node and stated.count("*") == rule.node_name.count("*")
        if pending.automatic and not is_given:
            return Hold(RULE_UNREADABLE, f"the join rule {name}: the name that it gives is not stated")
        machine = _machine_of(pending)
        is_recorded = machine in machines_of_use(obj, identity.use)
        if pending.automatic and (unreadable := sorted(views[JOIN_RULES].unreadable())):
            # It may record a use of this token.
            return Hold(RULE_UNREADABLE, f"the join rule {unreadable[0][1]} cannot be read")
        if not is_recorded and pending.automatic and _is_used(views, identity.use, machine):
            return Hold(
                IDENTITY_USED,
                f"the identity token of this request ({identity.use}) has let in another key, or the same one under another name: "
                "let the machine ask its issuer for another token",
                denies=True,
            )

        is_late = not is_recorded and pending.now - identity.expires > JUDGED
        if is_late and pending.automatic and not rule.restrictions.require_approval:
            # The entry of another key may be gone by now.
            return Hold(
                IDENTITY_EXPIRED,
                f"the identity token of this request ({identity.use}) ended at {rfc3339(identity.expires)}, and whether another "
                "key used it is not known any more: let the machine ask again, or approve the request by hand",
            )

        def is_free(views: Views, now: datetime) -> bool:
            if not _is_settled(views, now):
                return False
            # Another rule may have let in another key since.
            is_known = not views[JOIN_RULES].unreadable() and not _is_used(views, identity.use, machine)
            return is_known or not pending.automatic

        def count(machine: str) -> Update | Hold:
            counted = with_join(obj, identity, machine, pending.now)
            if counted is None:
                return Hold(
                    RULE_FULL, f"{MAX_JOINED} machines with tokens that have not ended joined by the join rule {name}"
                )
            return Update(JOIN_RULES, counted, "status", precondition=is_free)

        allowed = Allowance(
            names=NameAllowance(
                f"the join rule {name}", _OF_RULES, replace(rule.restrictions, node_name=identity.node_name)
            ),
            joined=machines_of(obj),
            # A machine that joined with another token records the use of this one, too.
            is_recorded=is_recorded,
            used_up=RULE_USED_UP,
            requires_approval=RULE_REQUIRES_APPROVAL,
            count=count,
        )
        return _judge(pending, allowed, views, trusts_source_address=self.trusts_source_address)


def _is_used(views: Views, use: str, machine: str) -> bool:
    """Return true when a value of a token has let in other machines than this one, by whichever rule."""
    used_by = {one for rule in views[JOIN_RULES].list() for one in machines_of_use(rule, use)}
    return bool(used_by) and machine not in used_by


def _named(token_id: str) -> str:
    return f"the bootstrap token {token_id}"


def _user_of(pending: PendingIssue) -> str | None:
    return joining_user(pending.signer_name, pending.request, pending.extra)


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
        return name_refusal(NameAllowance(_named(token_id), _OF_TOKENS, restrictions))
    if restrictions.max_joins is not None and len(joined) >= restrictions.max_joins:
        return _used_up(_named(token_id), restrictions.max_joins, _OF_TOKENS)
    return ""


def _used_up(named: str, max_joins: int, limits: LimitNames) -> str:
    machines = "1 machine" if max_joins == 1 else f"{max_joins} machines"
    return f"{named} was for {machines} ({limits.max_joins}), and they have joined; {limits.another}"


def name_refusal(allowed: NameAllowance) -> str:
    """Return the reason for which a token, or a rule, may not request a certificate for a name."""
    return (
        f'{allowed.named} is only for nodes named "{allowed.restrictions.node_name}" ({allowed.limits.node_name}); join under '
        f"such a name, or {allowed.limits.another_name}"
    )


def name_allowance(user: UserInfo, views: Views) -> NameAllowance | None:
    """Return what names the token or the rule of a user allows; None for another user, and where it is gone.

    Raises TokenError or JoinRuleError when it cannot be read. For a request that is being made; the checks judge it again.
    """
    if token_id := bootstrap_token_id(user.username):
        secret = views[SECRETS].get(secret_name(token_id), NAMESPACE)
        try:
            restrictions = read_restrictions(secret) if secret is not None else None
        except TokenError as error:
            raise TokenError(f"{_named(token_id)}: {error}") from None
        return NameAllowance(_named(token_id), _OF_TOKENS, restrictions) if restrictions is not None else None
    identity = join_identity(user.username, user.extra)
    if identity is None:
        return None
    return NameAllowance(f"the join rule {identity.rule}", _OF_RULES, Restrictions(node_name=identity.node_name))


def _hold(pending: PendingIssue, reason: str, message: str) -> Hold | None:
    return Hold(reason, message) if pending.automatic else None


def _requires_approval(pending: PendingIssue, reason: str, allowed: NameAllowance) -> Hold:
    """Return the hold on a request that requires approval, with the facts that a person compares with the machine."""
    user, request = _user_of(pending) or pending.request.common_name, pending.csr["metadata"]["name"]
    name = user.removeprefix(NODE_PREFIX)
    of = f'node "{name}"' if name != user else f'user "{user}"'
    return Hold(
        reason,
        f"{allowed.named} lets no machine in without a person ({allowed.limits.require_approval}): compare {of} and the key "
        f"sha256:{pending.request.key_fingerprint} with the machine, then run mooring csr approve {request}",
    )


def _is_settled(views: Views, now: datetime) -> bool:
    return not tombstones.refusal(views)


def _machine_of(pending: PendingIssue) -> str:
    """Return the record of the machine that makes a request, and of the name that it requests."""
    return join_record(pending.password or pending.request.key_fingerprint, _user_of(pending) or "")


def _count(pending: PendingIssue, views: Views, allowed: Allowance) -> CheckResult | None:
    """Count the join of a request, unless it is counted already."""
    machine, most = _machine_of(pending), allowed.names.restrictions.max_joins
    if allowed.is_recorded:
        return None
    if most is None or machine in allowed.joined or len(allowed.joined) < most:
        # A restored store has forgotten joins. One that is counted before they are would stand for one of them.
        if reason := tombstones.refusal(views):
            return Hold(UNSETTLED, reason)
        counted = allowed.count(machine)
        return counted if isinstance(counted, Hold) else Reservation((counted,))
    if not pending.automatic:
        return None
    return Hold(allowed.used_up, _used_up(allowed.names.named, most, allowed.names.limits), denies=True)
