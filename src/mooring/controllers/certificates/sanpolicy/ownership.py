"""Issuance check `name-ownership`: the name of a node belongs to the key that had it first.

Rules kept here:
* The common name `system:node:<name>` of a request for a client certificate names the owner. It must be a lower-case RFC 1123
  subdomain, as a Node's name is; every other spelling is denied, because it would be another owner for the same machine.
* A free name is claimed for the key of the request. A key that has the name may have any number of certificates. A node that renews
  adds its new key. A machine on the way back does, too, once its request is approved.
* Another key gets the name, and replaces all keys before it, in three cases: the Node was deleted before the request was made, the
  request was made with a token that names this node and no other, or a person approved the request. Otherwise the request is held.
* A request that waited gains nothing by a deletion. One that was made before the name last changed hands (`spec.changedAt`), or
  that was held as NodeNameTaken, gets the name only by a person. A request of the former owner is not one of the present owner.
* A Node without a recorded key belongs to a machine that is not known here: it is older than NodeIdentities, or has a certificate
  made by hand. A token does not take over its name.
* The membership that ended with the Node is not renewed by the machine itself.
* An entry is written once for each request: the serial number is known before the signature (`request_serial_number`), and
  `notAfter` is an upper bound, because a person may approve later. An entry that is already there makes the check pass. It has no
  serial number when another program signs.
* A machine that joined by k3s's way owns its name by the node password, too: the record names the Secret of the password. Whoever
  proves that password may have another key, with another token as well. While the Secret exists, a name that waits for its Node is
  not free for others. Once the Secret is gone, as k3s's documents tell an administrator, the next password takes the name over.
* A name whose record has no password belongs to a key. The first password of such a name is accepted from the machine itself, or
  where the name could be had by another key (`password_hold`).
* The request of k3s for a serving certificate comes before that for a client certificate. It claims the name by the password, and
  replaces the keys of another machine that had the name. One without a password claims nothing: it is held, however long it has
  waited, and a person may approve it.
* A certificate of a user that all machines share (kube-proxy, k3s's controller) is for the machine that has the name. The machine
  requests it with its client certificate. Its key is recorded as a companion, beside the keys of the name, and goes with them.
* A token with `mooring.dev/ephemeral` says after how much silence its machines are removed. The record keeps that, since the token
  expires before its machines fall silent. Their certificates are short (`longest_life`).
* The lists of keys and companions are bounded. An earlier certificate of the same key makes room, and one that was never used or is
  revoked; at a start by k3s's way with a token the oldest of such starts does. Otherwise a request waits for room, also when a
  person approves it: a copy must not push the key of the machine out. The key with which the request was made stays in any case.
* A serving key is not recorded. Its request must name a node well, and the node must be a member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from mooring.api.certificates.requestrecords import conditions_of, requester_certificate_of, source_address_of
from mooring.api.certificates.requeststate import presented_certificate
from mooring.api.core.addresses import parse_address
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.certificaterevocation import entries_about
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.membership import (
    has_ended,
    is_terminating,
    new_identity,
    was_deleted,
    was_made_before_change,
    with_spec,
)
from mooring.api.mooring.nodeidentity import (
    MAX_KEYS,
    PLURAL,
    certified_names_of,
    companions_of,
    keys_of,
    uses_of,
)
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import Create, Update
from mooring.controllers.certificates.issuance import (
    NEEDS_APPROVAL,
    CheckResult,
    Hold,
    PendingIssue,
    Reservation,
    joining_silence,
    longest_life,
)
from mooring.controllers.certificates.noderecovery import proven_key
from mooring.controllers.certificates.sanpolicy.evidence import NODES
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX, join_rule_name
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.clientcertificate import recorded_certificate
from mooring.pki.x509.profiles import BACKDATE, CLIENT_AUTH, SHORT, ttl
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, KUBELET_SERVING, NODE_SIGNERS
from mooring.trust.bootstraptoken.restrictions import NODE_NAME
from mooring.trust.bootstraptoken.token import is_token_id
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from mooring.trust.k3s.nodepassword import NAMESPACE as PASSWORD_NAMESPACE
from mooring.trust.k3s.nodepassword import secret_name as password_secret_name

SECRETS = "secrets"
RECOVERING_PREFIX = "system:recovering-node:"
"""Prefix of the user that a machine with an expired certificate is."""

NAME_TAKEN = "NodeNameTaken"
NAME_INVALID = "NodeNameInvalid"
PASSWORD_MISSING = "NodePasswordMissing"  # noqa: S105 - a reason, not a password
TOO_MANY = "TooManyCertificates"
MEMBERSHIP_ENDED = "NodeDeleted"
TERMINATING = "NodeTerminating"


UNUSED_AFTER = timedelta(hours=1)
"""Age at which a certificate that was never used may be forgotten: its machine uses it within minutes, and another one of it is
requested when the reply was lost."""
JOINED = timedelta(minutes=10)
"""Time after a join in which an agent by k3s's way requests its other certificates: within seconds, or after an approval."""


@dataclass(frozen=True, slots=True)
class NameOwnership:
    """Gives the name of a node to its first key, and to others only with a reason."""

    authority_for: Callable[[str], Authority | None]
    """Returns the authority that signs for a signer now; None for a signer that is left to other programs."""
    signing_duration: timedelta
    name: str = "name-ownership"
    watches: tuple[str, ...] = (PLURAL, NODES, SECRETS, JOIN_RULES, REVOCATIONS)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        if pending.machine:
            return self._companion_finding(_Claim(pending, pending.machine, views), pending, views)
        is_serving = pending.signer_name in (KUBELET_SERVING, K3S_KUBELET_SERVING)
        if not _is_about_a_node(pending) or not (is_serving or _is_for_clients(pending.csr)):
            return None
        name = pending.node_name
        # Any other spelling would be another owner for the same machine.
        problems = dns1123_subdomain_errors(name)
        if problems:
            return Hold(NAME_INVALID, f'"{name}" cannot be the name of a node: {problems[0]}', denies=True)
        claim = _Claim(pending, name, views)
        by_member = pending.signer_name == KUBELET_SERVING or claim.is_in_its_name
        # A person may approve such a request. The machine itself does not renew a membership that was revoked.
        if pending.automatic:
            if claim.has_ended and by_member:
                return Hold(MEMBERSHIP_ENDED, _ended_message(name, pending))
            # While finalizers hold a deleted Node, every other machine waits for its name.
            if is_terminating(claim.node) and not by_member:
                return Hold(TERMINATING, _terminating_message(claim))
            if pending.signer_name == KUBELET_SERVING and claim.is_in_its_name and not claim.is_by_the_machine:
                return Hold(NAME_TAKEN, _taken_message(claim, _key_of(pending), pending))
        if pending.signer_name == K3S_KUBELET_SERVING:
            return self._serving_finding(claim, pending, views)
        return None if is_serving else self._client_finding(claim, pending, views)

    def _companion_finding(self, claim: _Claim, pending: PendingIssue, views: Views) -> CheckResult | None:
        """Record a certificate of a shared user for the machine that requests it."""
        if claim.has_ended and pending.automatic:
            return Hold(MEMBERSHIP_ENDED, _ended_message(claim.name, pending))
        if not claim.is_by_the_machine and pending.automatic:
            return Hold(NAME_TAKEN, _taken_message(claim, _key_of(pending), pending))
        entry, end = self._entry(pending, views)
        if any(_covers(key, entry, end) for key in claim.companions):
            return None
        return claim.companion(entry, pending.now)

    def _entry(self, pending: PendingIssue, views: Views) -> tuple[Obj, datetime]:
        """Return the record of a certificate, and its latest end."""
        end = _needed_until(pending, longest_life(pending, views, self.signing_duration))
        # A person may approve a while later: the certificate ends later then.
        entry = {
            "publicKey": _key_of(pending),
            "notAfter": rfc3339(end + min(BACKDATE, end - pending.now)),
            "recordedAt": rfc3339(pending.now),
        }
        if parent := presented_certificate(pending.csr):
            entry["parent"] = parent
        authority = self.authority_for(pending.signer_name)
        if authority is not None:
            entry["serialNumber"] = f"{request_serial_number(pending.csr['metadata']['uid']):x}"
            entry["issuer"] = f"sha256:{authority.key_fingerprint}"
        return entry, end

    def _serving_finding(self, claim: _Claim, pending: PendingIssue, views: Views) -> CheckResult | None:
        """Claim the name by the node password for a machine whose key is not known yet."""
        if claim.is_password_owner:
            return None
        if not (claim.is_by_the_machine or claim.is_open or not pending.automatic or claim.token_names_node):
            return Hold(NAME_TAKEN, _taken_message(claim, _key_of(pending), pending))
        if claim.password:
            return claim.password_record(self._entry(pending, views)[0], pending.now)
        claims_nothing = pending.automatic and not claim.is_by_the_machine
        # Without a password the request claims no name, so it is held until a person or a password decides.
        if claims_nothing and not (pending.precedes_password or pending.defers_password):
            return Hold(PASSWORD_MISSING, _password_missing_message(claim, pending))
        return None

    def _client_finding(self, claim: _Claim, pending: PendingIssue, views: Views) -> CheckResult | None:
        entry, end = self._entry(pending, views)
        # The entry is written once for each request: its serial number is known before the signature.
        if not claim.has_ended and any(_covers(key, entry, end) for key in claim.keys):
            return None
        is_owner = claim.is_by_the_machine or claim.is_password_owner or claim.holds(entry["publicKey"])
        if is_owner and not claim.has_ended:
            # A copy of the machine could renew until the key of the machine is gone. A full list waits, unless the machine proves
            # its node password beside a token, which the files of a member do not have. A person who approves does not know which
            # key would go.
            is_joining = bool(claim.password) and not presented_certificate(pending.csr)
            return claim.addition(entry, pending.now, is_of_start=claim.is_of_start if is_joining else no_key)
        # Another key gets the name only if the name is open, a person approved it, or the token names this node alone.
        if claim.is_open or not pending.automatic or claim.token_names_node:
            return claim.replacement(entry, pending.now)
        return Hold(NAME_TAKEN, _taken_message(claim, entry["publicKey"], pending))


def password_hold(name: str, username: str, views: Views) -> str:
    """Return the reason for which a user may not set the first password of a node; "" when it may.

    Anyone who may not have the name sets no password for it: the machine that owns the name could not use k3s's way afterwards.
    """
    wanted = _WantedName(name, username, views, password="")
    if wanted.is_by_the_machine or wanted.is_open or wanted.has_lost_password or wanted.token_names_node:
        return ""
    kind = "node" if wanted.node is not None else "nodeidentity"
    return (
        f"the name {name} belongs to another machine, which has no node password; choose another name (--with-node-id), or, if "
        f"the machine was replaced, delete its entry (kubectl delete {kind} {name})"
    )


class _WantedName:
    """The name of a node, what is recorded about it, and the user who wants it."""

    def __init__(self, name: str, username: str, views: Views, password: str) -> None:
        self.name = name
        self.identity = views[PLURAL].get(name)
        self.node = views[NODES].get(name)
        self.keys = keys_of(self.identity) if self.identity is not None else []
        self.companions = companions_of(self.identity) if self.identity is not None else []
        self.has_ended = has_ended(self.identity, self.node)
        self.is_in_its_name = username in (NODE_PREFIX + name, RECOVERING_PREFIX + name)
        self.has_waited = False
        """True for a request that saw the name in other hands: a change alone gives it nothing."""
        token = username.removeprefix(BOOTSTRAP_USER_PREFIX)
        self.token = token if username != token and is_token_id(token) else ""
        self.token_names_node = bool(self.token) and _names(views, self.token, name)
        self.join_rule = join_rule_name(username)
        self.silence_seconds = joining_silence(username, views) or 0
        recorded = spec_of(self.identity).get("nodePasswordUID", "") if self.identity is not None else ""
        secret = views[SECRETS].get(password_secret_name(name), PASSWORD_NAMESPACE) if recorded or password else None
        present = secret["metadata"].get("uid", "") if secret is not None else ""
        self._password_since = secret["metadata"].get("creationTimestamp", "") if secret is not None else ""
        self.password = password if password == present else ""  # proved, and still the one of the node
        self.is_password_owner = bool(self.password) and self.password == recorded
        self.has_lost_password = bool(recorded) and recorded != present
        self._is_reserved = bool(recorded) and recorded == present and not self.is_password_owner

    @property
    def is_by_the_machine(self) -> bool:
        """True when the machine that has the name now makes the request."""
        return self.is_in_its_name

    @property
    def is_open(self) -> bool:
        """True when any machine may have the name: it is new, its Node was deleted and the machine has not returned, or the
        Secret of its node password was deleted and the machine has proved a new one."""
        if self._is_reserved or self.has_waited:
            return False
        if self.has_ended or (self.password and self.has_lost_password):
            return True
        return self.node is None and (not self.keys or was_deleted(self.identity, None))


class _Claim(_WantedName):
    """A request for the name of a node, and what is recorded about the name."""

    def __init__(self, pending: PendingIssue, name: str, views: Views) -> None:
        super().__init__(name, pending.username, views, pending.password)
        username = pending.username
        address = source_address_of(pending.csr)
        self.source_address = address if parse_address(address) is not None else ""
        self._certificate = presented_certificate(pending.csr)
        self._proven = proven_key(pending.csr) if username == RECOVERING_PREFIX + name else ""
        record = recorded_certificate(requester_certificate_of(pending.csr))
        self._requesting = {self._proven, record.public_key if record is not None else ""}
        """Keys with which the machine made the request."""
        self._serial_number = f"{record.serial_number:x}" if record is not None else ""
        self._is_older = was_made_before_change(pending.csr, self.identity)
        self.has_waited = self._is_older or _was_held_as_taken(pending.csr)
        self._denylist = views[REVOCATIONS]

    @property
    def is_by_the_machine(self) -> bool:
        # a Node that the machine may create again leaves the name with the machine
        may_return = spec_of(self.identity).get("reregisters") if self.identity is not None else False
        return self.is_in_its_name and (not self._is_older or bool(may_return))

    def holds(self, public_key: str) -> bool:
        """Return true when the name belongs to this key."""
        return any(key.get("publicKey") == public_key for key in self.keys)

    def is_of_start(self, key: Obj) -> bool:
        """Return true for the certificate of a start by k3s's way: requested without another one, since there is a node password.

        A machine that joined kubeadm's way has certificates from before. A password that a copy of it has set ends none of them.
        """
        return not key.get("parent") and key.get("recordedAt", "") >= self._password_since

    def addition(self, entry: Obj, now: datetime, *, is_of_start: Callable[[Obj], bool]) -> CheckResult:
        """Return the reservation that adds a key of the same machine, and drops those that expired.

        The key with which the request was made is kept until the next renewal. The oldest for which `is_of_start` makes room.
        """
        # The machine may lose power before it has fetched the new certificate, or a request that waited is approved when it asks
        # for another one. Its old key, expired or not, is its only proof then. Where a copy comes back first, that of the
        # machine is its proof.
        kept = [
            key
            for key in self.keys
            if not _is_record_of(key, entry)
            and (
                not _has_expired(key, now)
                or key.get("publicKey") in self._requesting
                or (self._proven and self._is_last(key))
            )
        ]
        keys = _bounded([*kept, entry], self._requesting, lambda key: self._is_forgettable(key, now), is_of_start)
        if keys is None:
            return Hold(TOO_MANY, _too_many_message(self.name))
        recorded = spec_of(self.identity).get("formerCertificate", "") if self.identity is not None else ""
        former = self._certificate if not self.keys or self._certificate == recorded else ""
        if self.identity is None:
            return self._creation(keys, formerCertificate=former, nodePasswordUID=self.password)
        # Proof of the node password is a join. A renewal keeps what the token of the last join said.
        joined = {"token": self.token, "silenceSeconds": self.silence_seconds} if self.password and self.token else {}
        changed = with_spec(
            self.identity,
            keys=keys,
            **joined,
            sourceAddress=self.source_address,
            formerCertificate=former,
            nodePasswordUID=self.password or spec_of(self.identity).get("nodePasswordUID", ""),
        )
        return Reservation((Update(PLURAL, changed),))

    def _is_last(self, key: Obj) -> bool:
        """Return true for the key of a certificate that was used, and with which no other one was requested that was."""
        uses = uses_of(self.identity) if self.identity is not None else []
        own = {use["certificate"] for use in uses if use["publicKey"] == key.get("publicKey")}
        return bool(own) and not any(use.get("parent") in own for use in uses)

    def _is_forgettable(self, key: Obj, now: datetime) -> bool:
        """Return true for a key that expired, or was never used, as the reply with its certificate was lost."""
        used = {use.get("publicKey") for use in uses_of(self.identity or {})}
        is_unused = key.get("publicKey") not in used and _is_settled(key, now)
        return _has_expired(key, now) or is_unused or self._is_revoked(key)

    def _is_revoked(self, key: Obj) -> bool:
        return any(self._denylist.get(entry) is not None for entry in entries_about(key))

    def companion(self, entry: Obj, now: datetime) -> CheckResult:
        """Return the reservation that records a certificate of a shared user, and drops those that expired.

        At the start of an agent, which has just proved its node password and a token, the oldest makes room.
        """
        kept = [key for key in self.companions if not _is_record_of(key, entry) and not _has_expired(key, now)]
        has_joined = any(
            key.get("serialNumber") == self._serial_number
            and not key.get("parent")
            and not _is_settled(key, now, JOINED)
            for key in self.keys
        )
        companions = _bounded([*kept, entry], (), self._is_revoked, lambda key: has_joined)
        if companions is None:
            return Hold(
                TOO_MANY,
                f"{self.name} has {MAX_KEYS} certificates for kube-proxy and k3s's controller that are valid. An approval makes no "
                f"room: take those that it does not use out of spec.companions (kubectl edit nodeidentity {self.name})",
            )
        if self.identity is None:  # the machine is older than its record
            return self._creation([], companions=companions)
        return Reservation((Update(PLURAL, with_spec(self.identity, companions=companions)),))

    def password_record(self, entry: Obj, now: datetime) -> Reservation:
        """Return the reservation of the name for proof of the node password.

        Keys stay as they are, unless they are those of another machine: the key of the serving certificate takes their place, and
        no client certificate has it. Names of another machine are dropped, too. Keys of a deleted Node are refused already.
        """
        if self.identity is None:
            return self._creation([], **self._obtained(now))
        if self.is_by_the_machine:
            return Reservation((Update(PLURAL, with_spec(self.identity, nodePasswordUID=self.password)),))
        if self.keys and not self.has_ended:
            return self.replacement(entry, now)
        # The deletion of the Node is recorded as a change already.
        changed = {} if self.has_ended else {"changedAt": rfc3339(now)}
        changed_spec = with_spec(self.identity, nodePasswordUID=self.password, certifiedNames=[], **changed)
        return Reservation((Update(PLURAL, changed_spec),))

    def replacement(self, entry: Obj, now: datetime) -> Reservation:
        """Return the reservation that gives the name to this key alone."""
        if self.identity is None:
            return self._creation([entry], **self._obtained(now))
        changed = with_spec(
            self.identity,
            keys=[entry],
            companions=[],
            nodeUID="",
            reregisters=False,
            endReason="",
            sourceAddress=self.source_address,
            formerCertificate="",
            certifiedNames=certified_names_of(self.identity) if self.is_password_owner else [],
            **self._obtained(now),
        )
        return Reservation((Update(PLURAL, changed),))

    def _obtained(self, now: datetime) -> dict[str, object]:
        """Return the fields of an identity that say how the name was obtained."""
        return {
            "token": self.token,
            "joinRule": self.join_rule,
            "silenceSeconds": self.silence_seconds,
            "nodePasswordUID": self.password,
            "changedAt": rfc3339(now),
        }

    def _creation(self, keys: list[Obj], **fields: object) -> Reservation:
        created = new_identity(self.name, keys=keys, sourceAddress=self.source_address, **fields)
        return Reservation((Create(PLURAL, created, must_be_new=True),))


def no_key(key: Obj) -> bool:
    """Return false: no key makes room."""
    return False


def _bounded(keys: Sequence[Obj], stay: Collection[str], *may_go: Callable[[Obj], bool]) -> list[Obj] | None:
    """Return at most MAX_KEYS of `keys`, whose newest is the last one; None where too few may go.

    An earlier certificate of the same key goes first. Of the others, but for the keys that `stay`, the oldest goes for which the
    first of `may_go` returns true, and then the next.
    """
    kept, newest = list(keys), keys[-1].get("publicKey")
    while len(kept) > MAX_KEYS:
        same = (key for key in kept[:-1] if key.get("publicKey") == newest)
        others = [key for key in kept[:-1] if key.get("publicKey") not in stay]
        dropped = next(chain(same, *(filter(goes, others) for goes in may_go)), None)
        if dropped is None:
            return None
        kept.remove(dropped)
    return kept


def _is_about_a_node(pending: PendingIssue) -> bool:
    """Return true for a certificate with the name of a node, whether or not a Node can have the name."""
    return pending.signer_name in NODE_SIGNERS or pending.request.common_name.startswith(NODE_PREFIX)


def _is_for_clients(csr: Obj) -> bool:
    return CLIENT_AUTH in (csr["spec"].get("usages") or ())


def _names(views: Views, token: str, name: str) -> bool:
    """Return true when the token is for this node and no other."""
    secret = views[SECRETS].get(secret_name(token), NAMESPACE)
    return secret is not None and (secret["metadata"].get("annotations") or {}).get(NODE_NAME) == name


def _key_of(pending: PendingIssue) -> str:
    return f"sha256:{pending.request.key_fingerprint}"


def _was_held_as_taken(csr: Obj) -> bool:
    return any(one.get("type") == NEEDS_APPROVAL and one.get("reason") == NAME_TAKEN for one in conditions_of(csr))


def _needed_until(pending: PendingIssue, cap: timedelta) -> datetime:
    """Return the latest end of a certificate that is issued now."""
    life = ttl(pending.csr["spec"].get("expirationSeconds"), cap)
    return pending.now + (life if life < SHORT else life - BACKDATE)


def _covers(key: Obj, entry: Obj, end: datetime) -> bool:
    """Return true when `key` is the record of this request, until `end` at least."""
    return _is_record_of(key, entry) and not _has_expired(key, end)


def _is_record_of(key: Obj, entry: Obj) -> bool:
    return all(key.get(field) == entry.get(field) for field in ("publicKey", "serialNumber"))


def _is_settled(key: Obj, now: datetime, after: timedelta = UNUSED_AFTER) -> bool:
    """Return true for a certificate that its machine would have used by now, and that servers would have seen."""
    try:
        return parse_rfc3339(key.get("recordedAt") or "") + after <= now
    except ValueError:
        return True  # older than this field


def _has_expired(key: Obj, now: datetime) -> bool:
    try:
        return parse_rfc3339(key.get("notAfter") or "") < now
    except ValueError:
        return False  # written by another server, since this one validates


def _ended_message(name: str, pending: PendingIssue) -> str:
    return (
        f"the Node {name} was deleted, which ended the membership of this machine. To let it back: run mooring join on it with a "
        f"valid token, or approve this request (mooring csr approve {pending.csr['metadata']['name']})"
    )


def _too_many_message(name: str) -> str:
    return (
        f"{name} has {MAX_KEYS} certificates that are valid; a machine that renews has three at most. An approval makes no room. "
        f"Find the key that the machine uses (mooring node show {name}, mooring certs show FILE on it), and end the others: "
        f"mooring node split {name} --keep KEY; or end all, and let it join again: mooring node revoke {name}. Those that were "
        "never used make room after an hour"
    )


def _taken_message(claim: _Claim, key: str, pending: PendingIssue) -> str:
    source = f" from {claim.source_address}" if claim.source_address else ""
    owner = f"another key, {claim.keys[-1].get('publicKey')}" if claim.keys else "a machine whose key is not recorded"
    belongs = "belonged" if claim.has_waited else "belongs"
    request, kind = pending.csr["metadata"]["name"], "node" if claim.node is not None else "nodeidentity"
    entry = "" if claim.node is None and claim.identity is None else f"{kind}/{claim.name} "
    return (
        f"the name {claim.name} {belongs} to {owner}; this request{source} has the key {key}. If the machine was replaced: approve "
        f"this request (mooring csr approve {request}), or let the machine request again after kubectl delete {entry}csr/{request} "
        f"or with a token for this name (mooring token create --node-name {claim.name})"
    )


def _password_missing_message(claim: _Claim, pending: PendingIssue) -> str:
    return (
        f"the request does not prove the node password of {claim.name}: it was made when it could not be approved. An agent that "
        f"asks again proves it, and needs nothing else; or approve this request (mooring csr approve "
        f"{pending.csr['metadata']['name']})"
    )


def _terminating_message(claim: _Claim) -> str:
    finalizers = ", ".join((claim.node or {"metadata": {}})["metadata"].get("finalizers") or ()) or "a grace period"
    return (
        f"the Node {claim.name} was deleted, and {finalizers} holds it; the request goes on when the Node is gone: let the program "
        f"that set the finalizer finish, or remove it (kubectl edit node {claim.name})"
    )
