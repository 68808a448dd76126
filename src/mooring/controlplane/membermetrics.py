"""Metrics of the subject: requests, certificates, joins, members, tokens and revocations, read from the views at a scrape.

Rules kept here:
* What is derived from an object is kept until the object changes, so that a scrape costs what changed since the last one.
* Counters count what happens to requests while this process runs and has the Lease of the controllers: of several servers and
  workers one counts. A request stays for an hour after its decision, so that a scrape misses none.
* Labels come from closed sets. Reasons and signers of people and of other programs are `Other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

from mooring.api.certificates.requestrecords import APPROVED, DENIED, conditions_of
from mooring.api.certificates.requeststate import REQUESTS, is_issued, is_undecided
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.membership import is_terminating
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.mooring.uniqueness import is_duplicate
from mooring.api.objectmeta import spec_of
from mooring.api.view import NamespacedName, View, ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, parse_rfc3339, rfc3339
from mooring.controllers.bootstrap import expiration_of, is_token
from mooring.controllers.certificates.issuance import AUTOMATIC, NEEDS_APPROVAL, WOULD_FAIL
from mooring.controllers.node import NODES, ready_condition
from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX, bootstrap_token_id, join_rule_name
from mooring.pki.x509.signers import CREDENTIAL, K3S_KUBELET_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, SIGNERS
from mooring.server.metrics import Metrics

T = TypeVar("T")

OTHER = "Other"
MAX_SERIES = 256
"""Combinations of labels that are counted: more than controllers make. A program that denies requests may give any reason."""
MAX_WORD = 64
"""Characters of a reason: longer than those of controllers."""
_FOREVER = datetime.max.replace(tzinfo=UTC)
_STATES = {"True": "Ready", "False": "NotReady"}


class Derived(Generic[T]):
    """Values that are derived from the objects of one view; objects for which that is None are left out."""

    def __init__(self, read: Callable[[Obj], T | None]) -> None:
        self._read = read
        self._follower = ViewFollower()
        self._found: dict[NamespacedName, T] = {}

    def of(self, view: View) -> Mapping[NamespacedName, T]:
        """Return it for the objects that the view has now."""
        start_over, changed = self._follower.changes(view) or (False, ())
        if start_over:
            self._found.clear()
        for name, obj in changed:
            found = self._read(obj) if obj is not None else None
            if found is None:
                self._found.pop(name, None)
            else:
                self._found[name] = found
        return self._found


class MemberMetrics:
    """Metrics of one server process."""

    def __init__(self, views: Views, clock: Clock, leads: Callable[[], bool]) -> None:
        """`leads`: whether the controllers run in this process."""
        self._views = views
        self._clock = clock
        self._leads = leads
        self._requests = ViewFollower()
        self._seen: dict[NamespacedName, frozenset[tuple[str, ...]]] = {}
        """Events of each request that were counted, or happened before this process."""
        self._started = rfc3339(clock.now())
        self._counted: Counter[tuple[str, ...]] = Counter()
        self._waiting = Derived(_waits_for)
        self._nodes = Derived(_state_of)
        self._ends = Derived(_end_of)
        self._duplicates = Derived(lambda obj: True if is_duplicate(obj) else None)
        self._tokens = Derived(_expiry_of)
        self._revocations = Derived(lambda obj: True)

    def add_to(self, metrics: Metrics) -> None:
        """Add all of them to the metrics of a process."""
        counters, gauges, gauge = metrics.counters, metrics.gauges, metrics.gauge
        counters(
            "mooring_certificate_requests_decided_total",
            "Certificate requests that were approved or denied.",
            ("decision", "reason"),
            lambda: self._counts("decided"),
        )
        counters(
            "mooring_certificates_issued_total",
            "Certificates that were issued, by what the requester proved.",
            ("signer", "proof"),
            lambda: self._counts("issued"),
        )
        counters(
            "mooring_joins_total",
            "Client certificates of machines that joined.",
            ("way",),
            lambda: self._counts("joined"),
        )
        gauges(
            "mooring_certificate_requests_waiting",
            "Certificate requests without a decision.",
            ("reason",),
            lambda: _tally(self._waiting.of(self._views[REQUESTS]).values()),
        )
        gauges(
            "mooring_members",
            "Nodes by state.",
            ("state",),
            lambda: _tally(self._nodes.of(self._views[NODES]).values()),
        )
        gauge(
            "mooring_member_certificate_expiration_timestamp_seconds",
            "First end of the newest client certificates of the members that are Ready; 0 without any.",
            self._first_end,
            max,
        )
        gauge(
            "mooring_duplicate_identities", "Machines whose identity a second machine uses, too.", self._duplicate, max
        )
        gauge("mooring_bootstrap_tokens", "Bootstrap tokens that have not expired.", self._live_tokens, max)
        gauge("mooring_certificate_revocations", "Entries of the denylist.", self._revoked, max)

    def _counts(self, kind: str) -> Mapping[tuple[str, ...], float]:
        """Return the counters of one kind, by their labels, after counting what happened since the last look."""
        start_over, changed = self._requests.changes(self._views[REQUESTS]) or (False, ())
        seen = {} if start_over else self._seen
        for name, csr in changed:
            before = self._seen.get(name, frozenset())
            if csr is None:
                seen.pop(name, None)
                continue
            seen[name] = _events_of(csr)
            is_new = name in self._seen or csr["metadata"].get("creationTimestamp", "") >= self._started
            for event in (seen[name] - before) if is_new and self._leads() else ():
                self._counted[self._bounded(event)] += 1
        self._seen = seen
        return {event[1:]: count for event, count in self._counted.items() if event[0] == kind}

    def _bounded(self, event: tuple[str, ...]) -> tuple[str, ...]:
        """Return the labels of an event, with OTHER for the last one where there are too many."""
        is_known = event in self._counted or len(self._counted) < MAX_SERIES
        return event if is_known else (*event[:-1], OTHER)

    def _first_end(self) -> float:
        states, now = self._nodes.of(self._views[NODES]), self._clock.now()
        ends = self._ends.of(self._views[IDENTITIES]).items()
        return min((end.timestamp() for name, end in ends if states.get(name) == "Ready" and end > now), default=0.0)

    def _duplicate(self) -> float:
        return len(self._duplicates.of(self._views[IDENTITIES]))

    def _live_tokens(self) -> float:
        now = self._clock.now()
        return sum(end > now for end in self._tokens.of(self._views["secrets"]).values())

    def _revoked(self) -> float:
        return len(self._revocations.of(self._views[REVOCATIONS]))


def _tally(values: Iterable[str]) -> Mapping[tuple[str, ...], float]:
    """Return the number of each value; those beyond MAX_SERIES, the rarest, are counted as OTHER."""
    counts = Counter(values)
    found: dict[tuple[str, ...], float] = {(value,): count for value, count in counts.most_common(MAX_SERIES)}
    if (rest := counts.total() - sum(found.values())) > 0:
        found[(OTHER,)] = found.get((OTHER,), 0) + rest
    return found


def _events_of(csr: Obj) -> frozenset[tuple[str, ...]]:
    """Return what has happened to a request, as labels of the counters behind their kind."""
    events: set[tuple[str, ...]] = set()
    for condition in conditions_of(csr):
        if condition.get("type") in (APPROVED, DENIED):
            events.add(("decided", str(condition["type"]).lower(), _reason(condition)))
    spec = spec_of(csr)
    signer = spec.get("signerName", "")
    if is_issued(csr):
        proof = _proof(spec)
        events.add(("issued", signer if signer in SIGNERS else OTHER, proof))
        if proof in ("token", "identity-token") and signer in (KUBE_APISERVER_CLIENT_KUBELET, K3S_KUBELET_CLIENT):
            events.add(("joined", "k3s" if signer == K3S_KUBELET_CLIENT else "kubeadm"))
    return frozenset(events)


def _reason(condition: Obj) -> str:
    """Return the reason of a controller; of a person's approval, which may be any word, OTHER."""
    reason = _word(condition)
    return reason if reason.startswith(AUTOMATIC) or condition.get("type") == DENIED else OTHER


def _word(condition: Obj) -> str:
    """Return the reason of a condition where it is a word; else OTHER."""
    reason = str(condition.get("reason", ""))
    return reason if reason.isalpha() and reason.isascii() and len(reason) < MAX_WORD else OTHER


def _proof(spec: Obj) -> str:
    """Return what the requester of a certificate proved: a token, an identity token, a certificate, an expired one, or other."""
    requester = str(spec.get("username", ""))
    if requester.startswith(RECOVERING_NODE_PREFIX):
        return "expired-certificate"
    if requester.startswith(NODE_PREFIX):
        return "certificate"
    if join_rule_name(requester):
        return "identity-token"
    is_token = bootstrap_token_id(requester) or CREDENTIAL in (spec.get("extra") or {})
    return "token" if is_token else "other"


def _waits_for(csr: Obj) -> str | None:
    """Return the reason for which an undecided request waits; None for one that is decided."""
    if not is_undecided(csr):
        return None
    held = (one for one in conditions_of(csr) if one.get("type") in (WOULD_FAIL, NEEDS_APPROVAL))
    return next((_word(one) for one in held), "None")


def _state_of(node: Obj) -> str:
    """Return the state of a machine, as `mooring node list` calls it."""
    if is_terminating(node):
        return "Deleting"
    ready = ready_condition(node)
    return _STATES.get((ready or {}).get("status", ""), "Lost") if ready is not None else "NotReady"


def _end_of(identity: Obj) -> datetime | None:
    try:
        return max((parse_rfc3339(key["notAfter"]) for key in keys_of(identity)), default=None)
    except ValueError:
        return None


def _expiry_of(secret: Obj) -> datetime | None:
    """Return the end of a bootstrap token; None for another Secret."""
    return (expiration_of(secret) or _FOREVER) if is_token(secret) else None
