"""identity-event-controller: Events about requests, revocations, memberships, used-up tokens and the rollover of the CA.

Rules kept here (docs/operate.md#events-about-identities):
* The name of an Event follows from its object and the step: another leader, or a restart, creates none twice.
* A step is announced while it is at most RECENT old. What happened before that, or while no controller ran, is in the objects and
  in the audit log. A certificate that ends soon is a state, and is announced whenever the controller sees it.
* A request that is approved and issued within a moment makes one Event. Only one that waits makes others.
* Names and reasons come from requesters and approvers: a message has one line of printable characters. It carries no secret.
* Requesters choose how many requests they make. Events are therefore bounded per minute, for all requesters and for each. One more
  Event counts those that were left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, conditions_of, source_address_of
from mooring.api.certificates.requeststate import REQUESTS, is_issued, requested_node
from mooring.api.core.event import new_event
from mooring.api.mooring import certificateauthorityrollover, certificaterevocation, nodeidentity
from mooring.api.mooring.membership import NODES, changed_at, has_ended, is_terminating
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.clock import moment_of, rfc3339
from mooring.controllers.actions import Action, Create, Entropy, Key, Requeue
from mooring.controllers.bootstrap import SECRETS, is_token
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, WOULD_FAIL, requesting_machine
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates
from mooring.trust.bootstraptoken.restrictions import MAX_JOINS, joined_keys, read_restrictions
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAME_PREFIX, NAMESPACE

EVENTS = "events"
IDENTITIES, REVOCATIONS = nodeidentity.PLURAL, certificaterevocation.PLURAL
ROLLOVERS = certificateauthorityrollover.KIND.resource.plural

RECENT = timedelta(minutes=5)
"""Age up to which a step is announced: longer than a restart, or another leader, takes."""
MOMENT = timedelta(seconds=2)
"""Time for which a request, or the end of a membership, may become something else: times in objects have whole seconds."""
UNDECIDED = timedelta(seconds=30)
"""Age of a request that no controller has held or decided, from which it waits for a person."""
LATE = 0.9
"""Part of the life of a certificate after which its renewal is overdue. An agent renews after two thirds, a kubelet after at most
nine tenths."""
MINUTE = timedelta(minutes=1)
MAX_PER_MINUTE = 60
"""Events about requests in a minute, and as many about everything else."""
MAX_OF_REQUESTER = 30
"""Events in a minute about the requests of one user: a bootstrap token cannot hide the requests of others."""
MAX_PART = 300
"""Characters of one name or reason in a message."""
MAX_OPEN = 10_000
"""Requests that are remembered as not issued, about 1 MiB, and Events of a minute that are counted as left out, about 3 MiB. Beyond
that only the times of a request decide, and the count stays."""


@dataclass(frozen=True, slots=True)
class IdentityStep:
    """One thing that happened to an identity."""

    about: Obj
    name: str
    """Name of the Event."""
    reason: str
    text: str
    is_warning: bool = False
    requester: str = ""
    """User whose request it is; "" for a step that no requester causes."""


Planned = Iterator[IdentityStep | datetime]
"""Steps to announce, and times at which the object is judged again."""


@dataclass(slots=True)
class EventBudget:
    """Counts the Events of a minute."""

    begin: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    left_out: set[str] = field(default_factory=set)
    """Names of Events that were not made, at most MAX_OPEN."""
    deferred: str = ""
    """Name of the Event whose key waits for the next minute, in which it reports what was left out."""
    _requests: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    @property
    def end(self) -> datetime:
        return self.begin + MINUTE

    def is_over(self, now: datetime) -> bool:
        """Return true when the minute has passed, or the clock was set back before it."""
        return not self.begin <= now < self.end

    def admits(self, step: IdentityStep) -> bool:
        """Return true when the Event of a step may be made, and count it once: an object is planned again when it changes."""
        if step.name in self._made:
            return True
        requester = step.requester
        count = self._counts.get(requester, 0)
        if requester and (self._requests >= MAX_PER_MINUTE or count >= MAX_OF_REQUESTER):
            return False
        if count >= MAX_PER_MINUTE:
            return False
        self._requests += bool(requester)
        self._counts[requester] = count + 1
        self._made.add(step.name)
        return True

    def leave_out(self, step: IdentityStep) -> None:
        """Count an Event that is not made, once."""
        if len(self.left_out) < MAX_OPEN:
            self.left_out.add(step.name)


@dataclass(slots=True)
class IdentityEvents:
    """Writes Events about identities."""

    follows_rollover: bool = True
    """False where no server replaces the CA: the API server has no such kind."""
    trusts_source_address: bool = True
    """False where requesters themselves write the address in a request."""
    name: str = "identity-event-controller"
    _open: set[str] = field(default_factory=set)
    """uids of requests that were seen without a certificate."""
    _usable: set[str] = field(default_factory=set)
    """uids of token Secrets that were seen before they were used up: a Secret does not say when that was."""
    _budget: EventBudget = field(default_factory=EventBudget)

    @property
    def watches(self) -> tuple[str, ...]:
        return (REQUESTS, REVOCATIONS, IDENTITIES, NODES, SECRETS, *((ROLLOVERS,) if self.follows_rollover else ()))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Return the object as (plural, name); the identity for a Node that is deleted. Heartbeats enqueue nothing."""
        metadata = obj["metadata"]
        if plural == NODES:
            return ((IDENTITIES, metadata["name"]),) if deleted or is_terminating(obj) else ()
        if deleted:
            self._open.discard(metadata["uid"])
            self._usable.discard(metadata["uid"])
            return ()
        return () if plural == SECRETS and not is_token(obj) else ((plural, metadata["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        actions = list(self._next_minute(now))
        moments: list[datetime] = []
        for planned in self._steps(key, views, now):
            if isinstance(planned, datetime):
                moments.append(planned)
            elif self._budget.admits(planned):
                actions.append(Create(EVENTS, _event(planned, now)))
            elif self._budget.deferred in ("", planned.name):
                self._budget.deferred = planned.name
                moments.append(self._budget.end)
            else:
                self._budget.leave_out(planned)
        return (*actions, *((Requeue(min(moments)),) if moments else ()))

    def _next_minute(self, now: datetime) -> Iterator[Action]:
        """Begin another minute where it is due, and yield the Event about what was left out in the last one."""
        last = self._budget
        if not last.is_over(now):
            return
        self._budget = EventBudget(now)
        if last.left_out:
            text = (
                f"Events about identities that were left out in the minute from {rfc3339(last.begin)}: {len(last.left_out)}. "
                f"At most {MAX_OF_REQUESTER} are about the requests of one user, and {MAX_PER_MINUTE} about those of all: "
                "mooring csr list"
            )
            about = {"apiVersion": "v1", "kind": "Namespace", "name": "kube-system"}
            name = f"mooring-identity-events.{last.begin:%Y%m%d%H%M%S}"
            yield Create(EVENTS, _event(IdentityStep(about, name, "EventsLeftOut", text, is_warning=True), now))

    def _steps(self, key: Key, views: Views, now: datetime) -> Planned:
        plural, name = key
        if plural == SECRETS:
            return self._token_steps(views[SECRETS].get(name, NAMESPACE))
        obj = views[plural].get(name)
        if obj is None:
            return iter(())
        if plural == REQUESTS:
            return self._request_steps(obj, now)
        if plural == REVOCATIONS:
            return _revocation_steps(obj, now)
        if plural == IDENTITIES:
            return _identity_steps(obj, views[NODES].get(name), now)
        return _rollover_steps(obj, now)

    def _request_steps(self, csr: Obj, now: datetime) -> Planned:
        conditions = {str(condition.get("type")): condition for condition in reversed(conditions_of(csr))}
        if is_issued(csr):
            yield from self._issued_steps(csr, conditions, now)
            return
        uid = csr["metadata"]["uid"]
        if len(self._open) < MAX_OPEN:
            self._open.add(uid)
        for kind, reason, what in (
            (DENIED, "CertificateRequestDenied", "was denied"),
            (FAILED, "CertificateRequestFailed", "was approved, and cannot be signed"),
        ):
            condition = conditions.get(kind)
            if condition is not None:
                if _is_recent(_time_of(condition), now):
                    yield self._request_step(csr, reason, f"{what}: {_reason(condition)}", is_warning=True)
                return
        if APPROVED in conditions:
            yield from self._approval_steps(csr, conditions, now)
        else:
            yield from self._held_steps(csr, conditions, now)

    def _issued_steps(self, csr: Obj, conditions: dict[str, Obj], now: datetime) -> Planned:
        yield from self._approval_steps(csr, conditions, now)
        approved, uid = conditions.get(APPROVED, {}), csr["metadata"]["uid"]
        # A signer may take longer than RECENT: the request was seen without a certificate then.
        if uid in self._open or _is_recent(_time_of(approved), now):
            self._open.discard(uid)
            signer = csr["spec"].get("signerName", "")
            text = f"was issued by {signer[:MAX_PART]}, valid until {_end_of(csr)}; approved: {_reason(approved)}"
            yield self._request_step(csr, "CertificateIssued", text)

    def _request_step(self, csr: Obj, reason: str, text: str, *, is_warning: bool = False) -> IdentityStep:
        """Return a step of a request: about the Node that it is for, or about the request."""
        node, address = requested_node(csr), source_address_of(csr) if self.trusts_source_address else ""
        is_name = bool(node) and not dns1123_subdomain_errors(node)
        about = (
            _node_reference(node) if is_name else _reference("certificates.k8s.io/v1", "CertificateSigningRequest", csr)
        )
        source = f" from {address}" if address else ""
        who = f"{csr['metadata']['name']} of {requesting_machine(csr)[:MAX_PART]}{source}"
        step = reason.removeprefix("Certificate").removeprefix("Request").lower()
        subject = "the certificate request" if step != "issued" else "the certificate of the request"
        requester = csr["spec"].get("username", "") or "system:anonymous"
        return IdentityStep(
            about, _event_name(csr, step), reason, f"{subject} {who} {text}", is_warning=is_warning, requester=requester
        )

    def _approval_steps(self, csr: Obj, conditions: dict[str, Obj], now: datetime) -> Planned:
        """Yield the approval of a request that had waited."""
        approved = conditions.get(APPROVED, {})
        at, created = _time_of(approved), moment_of(csr["metadata"].get("creationTimestamp"))
        if at is None or not _is_recent(at, now):
            return
        held = _time_of(conditions.get(NEEDS_APPROVAL, {}))
        waited = (held is not None and at - held >= MOMENT) or (created is not None and at - created >= UNDECIDED)
        if waited:
            yield self._request_step(csr, "CertificateRequestApproved", f"was approved: {_reason(approved)}")

    def _held_steps(self, csr: Obj, conditions: dict[str, Obj], now: datetime) -> Planned:
        """Yield that a request waits for a person, once it has waited for a moment."""
        # As in `mooring csr list`.
        condition = conditions.get(WOULD_FAIL) or conditions.get(NEEDS_APPROVAL)
        if condition is not None:
            since, delay, why = _time_of(condition), MOMENT, _reason(condition)
        else:
            since, delay = moment_of(csr["metadata"].get("creationTimestamp")), UNDECIDED
            why = "no controller has approved or denied it"
        if since is None:
            return
        due = since + delay
        if now < due:
            yield due
        elif _is_recent(due, now):
            yield self._request_step(
                csr, "CertificateRequestHeld", f"waits for a decision by mooring csr review: {why}"
            )

    def _token_steps(self, secret: Obj | None) -> Planned:
        if secret is None or not is_token(secret):
            return
        try:
            most, joined = read_restrictions(secret).max_joins, len(joined_keys(secret))
        except TokenError:
            return
        metadata = secret["metadata"]
        if most is None or joined < most:
            self._usable.add(metadata["uid"])
        elif metadata["uid"] in self._usable:
            self._usable.discard(metadata["uid"])
            token = metadata["name"].removeprefix(NAME_PREFIX)
            text = (
                f"the bootstrap token {token} lets no more machines join: {joined} of {most} have joined ({MAX_JOINS})"
            )
            yield IdentityStep(_reference("v1", "Secret", secret), _event_name(secret, "usedup"), "TokenUsedUp", text)


def _event(step: IdentityStep, now: datetime) -> Obj:
    event = new_event(
        step.about, step.reason, _printable(step.text), now, metadata={"name": step.name}, is_warning=step.is_warning
    )
    # An Event is in the namespace of the object that it is about.
    namespace = step.about.get("namespace")
    return {**event, "metadata": {**event["metadata"], "namespace": namespace}} if namespace else event


def _event_name(obj: Obj, step: str) -> str:
    """Return a name that another object of the same name does not have."""
    metadata = obj["metadata"]
    return f"{metadata['name'][:180]}.{metadata['uid'][:36]}.{step}"


def _reference(api_version: str, kind: str, obj: Obj) -> Obj:
    metadata = obj["metadata"]
    fields = ("namespace", "name", "uid")
    return {"apiVersion": api_version, "kind": kind, **{name: metadata[name] for name in fields if metadata.get(name)}}


def _node_reference(name: str) -> Obj:
    """Return the reference that kubelet writes, and that `kubectl describe node` looks for."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


def _revocation_steps(entry: Obj, now: datetime) -> Planned:
    spec, metadata = spec_of(entry), entry["metadata"]
    created, before = moment_of(metadata.get("creationTimestamp")), moment_of(spec.get("issuedBefore"))
    # A node that is revoked again keeps its entry, with a later moment.
    at = before if _is_recent(before, now) else created
    if at is None or not _is_recent(at, now):
        return
    subjects = (("serialNumber", "the certificate with serial number"), ("publicKey", "certificates of the key"))
    node = spec.get("nodeName", "")
    revoked = next(
        (f"{words} {spec[name]}" for name, words in subjects if spec.get(name)), f"certificates of the node {node}"
    )
    message = f"; {spec['message']}" if spec.get("message") else ""
    until = f" that were issued before {rfc3339(before)}" if before is not None else ""
    text = f"revoked ({spec.get('reason', 'unspecified')}): {revoked}{until}{message}"
    about = (
        _node_reference(node)
        if node
        else _reference(certificaterevocation.KIND.resource.api_version, "CertificateRevocation", entry)
    )
    name = _event_name(entry, f"revoked.{int(at.timestamp()):x}")
    yield IdentityStep(about, name, "CertificateRevoked", text, is_warning=True)


def _identity_steps(identity: Obj, node: Obj | None, now: datetime) -> Planned:
    if has_ended(identity, node):
        yield from _end_steps(identity, now)
    elif node is not None:
        yield from _late_steps(identity, now)


def _end_steps(identity: Obj, now: datetime) -> Planned:
    name, spec, at = identity["metadata"]["name"], spec_of(identity), changed_at(identity)
    uid = spec.get("nodeUID", "")
    if not uid or at is None or not _is_recent(at, now):
        return
    is_silent = spec.get("endReason") == nodeidentity.SILENT
    if is_silent and now < at + MOMENT:
        yield at + MOMENT
        return
    # The name that silent-node-controller gives its own Event, which comes first and says more. `mooring node prune` makes none.
    event_name = f"{name[:200]}.{uid[:36]}"
    why = "its machine was silent" if is_silent else "its Node was deleted"
    text = f"the membership of {name} has ended, because {why}; its certificates are accepted no more"
    yield IdentityStep(_node_reference(name), event_name, "MembershipEnded", text, is_warning=True)


def _late_steps(identity: Obj, now: datetime) -> Planned:
    """Yield that the newest certificate is past most of its life. It began with the first use, which a server records."""
    keys = nodeidentity.keys_of(identity)
    if not keys:
        return
    newest = keys[-1]
    uses = [use for use in nodeidentity.uses_of(identity) if use.get("publicKey") == newest.get("publicKey")]
    begin, end = moment_of(uses[-1].get("firstUsed")) if uses else None, moment_of(newest.get("notAfter"))
    if begin is None or end is None or end <= now:
        return
    due = begin + (end - begin) * LATE
    if now < due:
        yield due
        return
    name = identity["metadata"]["name"]
    text = f"the certificate of {name} ends at {rfc3339(end)}, and the machine has not renewed it"
    step = f"ends.{int(end.timestamp()):x}"
    yield IdentityStep(_node_reference(name), _event_name(identity, step), "CertificateEndsSoon", text, is_warning=True)


def _rollover_steps(rollover: Obj, now: datetime) -> Planned:
    for transition in certificateauthorityrollover.status_of(rollover).get("transitions") or ():
        at, phase = moment_of(transition.get("time")), str(transition.get("phase", ""))
        if at is None or not _is_recent(at, now):
            continue
        name = _event_name(rollover, f"{phase.lower()}.{int(at.timestamp()):x}")
        about = _reference(
            certificateauthorityrollover.KIND.resource.api_version, "CertificateAuthorityRollover", rollover
        )
        yield IdentityStep(about, name, "CARolloverPhase", f"the rollover of the CA of the cluster has reached {phase}")


def _reason(condition: Obj) -> str:
    texts = (str(condition.get(name) or "")[:MAX_PART] for name in ("reason", "message"))
    return ": ".join(filter(None, texts)) or "no reason was given"


def _end_of(csr: Obj) -> str:
    try:
        pem = base64.b64decode(csr["status"]["certificate"])
        return rfc3339(certificates(pem)[0].not_valid_after_utc)
    except (PkiError, ValueError):
        return "a time that cannot be read"


def _printable(text: str) -> str:
    """Return the text on one line of printable characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _time_of(condition: Obj) -> datetime | None:
    """Return when a condition began; None where it does not say so."""
    return moment_of(condition.get("lastTransitionTime") or condition.get("lastUpdateTime"))


def _is_recent(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and abs(now - moment) <= RECENT
