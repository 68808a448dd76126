"""Requests on their way to a certificate, and the checks before one is approved or issued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from mooring.api.certificates.requestrecords import APPROVED, DENIED, conditions_of
from mooring.api.certificates.requeststate import REQUESTS, requested_node, with_condition
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.membership import NODES, has_ended
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Addresses, CommitPrecondition, Requeue, Update
from mooring.identity import NODE_PREFIX, bootstrap_token_id, join_rule_name
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.signers import (
    NODE_SIGNERS,
    SHARED_SIGNERS,
    is_password_deferred,
    node_name_in,
    password_in,
)
from mooring.trust.bootstraptoken.restrictions import read_restrictions
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from mooring.trust.joinrule import JoinRuleError, read_rule

# Checks before a certificate is issued, which the approver and the signer both run.
#
# Rules kept here:
# * All checks of the table see a request. The first hold stops it, and only then are claims prepared: a request that is
#   refused leaves no claim behind.
# * A check that must record something first, such as the owner of a name, returns a reservation: actions with preconditions,
#   applied before the approval. The signer plans again after them. Two requests can therefore never both have a claim of which
#   there is one.
# * A check is idempotent by the public key of the request: the signer repeats what the approver did, and finds it done.
# * Automatic approvals have reasons that begin with `Auto`. A hold on one of them makes it wait for a person, or denies it, and
#   keeps the signer from signing it. A person, or an approver of another program, decides for itself: `PendingIssue.automatic` is
#   then false.
# * A held request stays undecided. The condition NeedsApproval says why. It is planned again later, because the cause may go
#   away.

NEEDS_APPROVAL = "NeedsApproval"
"""Type of the condition of a held request."""
WOULD_FAIL = "WouldFail"
"""Type of the condition of an undecided request that the signer would fail after the approval of a person."""
AUTOMATIC = "Auto"
"""Prefix of the reasons of automatic approvals."""
HELD_FOR = timedelta(seconds=30)
"""Time until a held request is planned again: what it waits for, such as an entry of the inventory, may be there."""
HELD_SIZE = 8 << 10
"""Characters of a request, as base64, that is planned again after `HELD_FOR`. A larger one waits longer in proportion, so that many
large requests cost no more than as many characters of small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIssue:
    """One request that is about to be approved or signed."""

    csr: Obj
    request: CertificateRequest
    now: datetime
    automatic: bool
    """True when no person, and no approver of another program, has approved it."""
    resolved: Addresses = field(default_factory=lambda: MappingProxyType({}))
    """Addresses of DNS names of the request, once an approver had them resolved."""
    precedes_password: bool = False
    """True for the judgement after which the node password of the requester is stored."""

    @property
    def signer_name(self) -> str:
        name: str = self.csr["spec"]["signerName"]
        return name

    @property
    def username(self) -> str:
        """The user who created the request."""
        name: str = self.csr["spec"].get("username", "")
        return name

    @property
    def extra(self) -> Mapping[str, Sequence[str]]:
        """Extra attributes of the user, and those that the server stated about it."""
        found: Mapping[str, Sequence[str]] = self.csr["spec"].get("extra") or {}
        return found

    @property
    def node_name(self) -> str:
        """Name of the node that the certificate is for; "" when it is for none."""
        if self.signer_name in NODE_SIGNERS:
            return node_name_in(self.extra)
        name = self.request.common_name.removeprefix(NODE_PREFIX)
        return name if name != self.request.common_name else ""

    @property
    def machine(self) -> str:
        """Name of the machine to which a certificate of a shared user is bound; "" for every other certificate."""
        return node_name_in(self.extra) if self.signer_name in SHARED_SIGNERS else ""

    @property
    def password(self) -> str:
        """uid of the Secret of the node password that the requester proved; "" when it proved none."""
        return password_in(self.extra) if self.signer_name in NODE_SIGNERS else ""

    @property
    def defers_password(self) -> bool:
        """True where the operator lets the node password of the requester be verified later."""
        return self.signer_name in NODE_SIGNERS and is_password_deferred(self.extra)


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason not to issue: the request waits for a person, or is denied.

    `reason` is a word in CamelCase; `message` says what to do.
    """

    reason: str
    message: str
    denies: bool = False
    """True for a fault that no person would overlook; otherwise the request is held for one."""
    unresolved: tuple[str, ...] = ()
    """DNS names whose addresses may remove the hold."""
    actions: Sequence[Action] = ()
    """Records of what the machine itself has told by the request, made while it waits."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Actions that must succeed before the certificate is issued. Each fails when what it was planned on has changed."""

    actions: Sequence[Action]


CheckResult = Hold | Reservation


class IssuanceCheck(Protocol):
    """One check."""

    @property
    def name(self) -> str:
        """Name of the row in `ISSUANCE_CHECKS`."""

    @property
    def watches(self) -> tuple[str, ...]:
        """Plurals of the kinds whose views `check` reads, beside requests."""

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        """Return what stands between the request and its certificate; None when nothing does."""


def watched(checks: Iterable[IssuanceCheck]) -> tuple[str, ...]:
    """Return the plurals that a controller of requests with these checks watches."""
    return tuple(dict.fromkeys((REQUESTS, *(plural for check in checks for plural in check.watches))))


def find(checks: Iterable[IssuanceCheck], pending: PendingIssue, views: Views) -> CheckResult | None:
    """Return the first hold, else all reservations as one, else None."""
    actions: list[Action] = []
    for check in checks:
        finding = check.check(pending, views)
        if isinstance(finding, Hold):
            return finding
        if finding is not None:
            actions += finding.actions
    return Reservation(actions) if actions else None


def no_hold(checks: Iterable[IssuanceCheck], pending: PendingIssue) -> CommitPrecondition:
    """Return the judgement of an approval or a certificate at its commit: no check objects by then.

    Claims were made before, and the views may lack them for a moment.
    """

    def precondition(views: Views, now: datetime) -> bool:
        return not isinstance(find(checks, replace(pending, now=now), views), Hold)

    return precondition


def reserved(reservation: Reservation, now: datetime) -> Sequence[Action]:
    """Return the actions of a reservation, after which the key is planned again."""
    return (*reservation.actions, Requeue(now))


def is_automatic(csr: Obj) -> bool:
    """Return true when an approver of this program approved the request."""
    return any(
        condition.get("type") == APPROVED and str(condition.get("reason", "")).startswith(AUTOMATIC)
        for condition in conditions_of(csr)
    )


def held_until(csr: Obj, now: datetime) -> datetime:
    """Return when a request that waits is planned again."""
    return now + HELD_FOR * max(1, len(csr["spec"]["request"]) // HELD_SIZE)


def held_or_denied(csr: Obj, hold: Hold, now: datetime) -> Sequence[Action]:
    """Return the actions that tell the requester why the request is not approved automatically."""
    if hold.denies:
        denied = with_condition(csr, DENIED, hold.reason, hold.message)
        announcement = (
            f"the certificate request {csr['metadata']['name']} of {requesting_machine(csr)} is denied: {hold.message}"
        )
        return (Update(REQUESTS, denied, "approval", announcement=announcement),)
    return (*hold.actions, *marked_as_held(csr, hold), Requeue(held_until(csr, now)))


def requesting_machine(csr: Obj) -> str:
    """Return the node that a request is for, with another requester in brackets; the requester of one that is for no node."""
    spec, node = csr["spec"], requested_node(csr)
    requester: str = spec.get("username", "")
    if not node:
        return requester
    is_by_itself = requester == NODE_PREFIX + node or node_name_in(spec.get("extra") or {})
    return f"node {node}" + ("" if is_by_itself else f" ({requester})")


def marked_as_held(csr: Obj, hold: Hold) -> Sequence[Action]:
    """Return the action that writes the condition NeedsApproval; none when the request has it for the same reason."""
    present = next((one for one in conditions_of(csr) if one.get("type") == NEEDS_APPROVAL), {})
    if (present.get("reason"), present.get("message")) == (hold.reason, hold.message):
        return ()
    # Once for each reason: a message says how many days ago, or which of two machines has the name now.
    is_new = present.get("reason") != hold.reason
    name, machine = csr["metadata"]["name"], requesting_machine(csr)
    line = f"the certificate request {name} of {machine} waits for a decision by `mooring csr review`: {hold.message}"
    held = with_condition(csr, NEEDS_APPROVAL, hold.reason, hold.message)
    return (Update(REQUESTS, held, "approval", announcement=line if is_new else ""),)


# Lives of certificates of ephemeral machines: short, so that the record of a machine that is gone goes within days.
#
# Rules kept here:
# * The signer, the record of keys and that of names ask one function, so that no record ends before its certificate.
# * The rule is that of the token while a machine joins, and that of the NodeIdentity from then on: a token is deleted before its
#   machines renew, or between the approval and the signature.
# * A key that has the name already does not join again, unless it proves a node password or its membership has ended.

EPHEMERAL_LIFE = timedelta(hours=24)
"""Shortest limit: an agent renews after two thirds, and a server may be off for some hours meanwhile."""
EPHEMERAL_SILENCES = 4
"""Silences that a certificate of an ephemeral machine may last: one that may be silent for a month must still be able to renew."""


def ephemeral_life(silence_seconds: int, cap: timedelta) -> timedelta:
    """Return the longest life of a certificate of a machine with this silence, where `cap` is that of all others."""
    if not silence_seconds:
        return cap
    return min(cap, max(EPHEMERAL_LIFE, EPHEMERAL_SILENCES * timedelta(seconds=silence_seconds)))


def longest_life(pending: PendingIssue, views: Views, cap: timedelta) -> timedelta:
    """Return the longest life of the requested certificate, where `cap` is that of all signers."""
    name = pending.node_name or pending.machine
    return ephemeral_life(_silence_of(pending, name, views), cap) if name else cap


def _silence_of(pending: PendingIssue, name: str, views: Views) -> int:
    """Return the silence after which the machine is removed that the certificate is for; 0 for no such rule."""
    identity = views[IDENTITIES].get(name)
    silence = joining_silence(pending.username, views)
    if silence is not None:
        key = f"sha256:{pending.request.key_fingerprint}"
        has_name = identity is not None and any(one.get("publicKey") == key for one in keys_of(identity))
        if pending.password or not has_name or has_ended(identity, views[NODES].get(name)):
            return silence
    return int(spec_of(identity).get("silenceSeconds") or 0) if identity is not None else 0


def joining_silence(username: str, views: Views) -> int | None:
    """Return the seconds of silence after which a machine that joins with a token, or by a rule, is removed; 0 for no such rule.

    None for a user who does not join, and where the token or the rule is gone.
    """
    token, rule = bootstrap_token_id(username), join_rule_name(username)
    found = views["secrets"].get(secret_name(token), NAMESPACE) if token else None
    found = views[JOIN_RULES].get(rule) if rule else found
    if found is None:
        return None
    try:
        silence = read_rule(found).restrictions.ephemeral if rule else read_restrictions(found).ephemeral
    except (TokenError, JoinRuleError):
        return 0  # the check of its limits holds the request; a person may have approved it
    return int(silence.total_seconds()) if silence is not None else 0
