"""silent-node-controller: deletes the Nodes of machines that were silent for longer than they may be.

Rules kept here:
* The rule of a machine is `spec.silenceSeconds` of its NodeIdentity, from its token, else `--end-silent-members-after`. A Node with
  the annotation `mooring.dev/may-be-silent: "true"` has none.
* Silence begins when node-lifecycle-controller sets Ready to Unknown, by the clock of the server; without a Ready condition, when
  the Node was created.
* Silence counts only while this controller observes it. The mark, a ConfigMap, says since when it does without a break, also across
  restarts. After a break of `UNOBSERVED`, or a clock that was set, ages start again. The mark is written while a machine is silent.
* A process judges a machine only after it has observed the time steadily: a clock that was set by less than the mark notices, or a
  Lease that was renewed before the start, shows by then.
* A Lease that is renewed breaks the silence, although the conditions do not say so yet. It is compared again at the commit.
  A renewal that this process did not see counts by its time, unless that is of the future.
* Machines that fell silent together, and are more than a share of all, were cut off with their site. None is removed, whatever
  comes back or is removed later: the mark says between which times they fell silent. Those that were removed meanwhile count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from mooring.api.core.event import new_event
from mooring.api.mooring.membership import is_terminating, may_be_silent, was_deleted, with_spec
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import SILENT
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import Action, CommitPrecondition, Create, Delete, Entropy, Key, Requeue, Update
from mooring.controllers.node import EVERY, LEASE_NAMESPACE, LEASES, NODES, ready_condition
from mooring.duration import format_duration

CONFIG_MAPS, EVENTS = "configmaps", "events"
MARK_NAMESPACE, MARK = "kube-system", "mooring-silence"
OBSERVED_SINCE, LAST_OBSERVED, HELD_BACK, MESSAGE = "observedSince", "lastObserved", "heldBack", "message"
HELD_SPANS, REMOVED = "heldSpans", "removed"

PERIOD = timedelta(seconds=20)
"""Time between two judgements, and the difference of clocks that is not noticed: a sixth of the shortest rule."""
MARK_PERIOD = timedelta(minutes=1)
"""Time between two writes of the mark."""
UNOBSERVED = timedelta(minutes=5)
"""Age of the mark after which ages start again: longer than the restart of a server, or another leader, takes."""
UNCHANGED = timedelta(minutes=1)
"""Time for which a process sees the same Lease before it removes the machine. An agent renews its Lease every ten seconds."""
TOGETHER = timedelta(hours=1)
"""Difference of the beginnings of silences that have one cause; the rule of a machine, where that is shorter."""
SHARE = 4
"""More than one machine in this many that fall silent together were cut off. One machine is never a site."""
MAX_REMOVALS = 20
"""Machines that one plan removes; others follow at the next judgement. A conflict repeats the plan, so that it must stay short."""
MAX_REMOVED = 1000
"""Machines removed of late that the mark names, about 60 kB; others wait until it names fewer."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
"""Earliest begin of a silence. A machine may write any time into its status, and one of the year 1 has no hour before it."""
LATEST = datetime.max.replace(tzinfo=UTC)
"""Begin of a silence that says no time."""

Span = tuple[datetime, datetime]
"""First and last time at which the machines of one site fell silent."""


@dataclass(slots=True)
class ObservedLease:
    """Lease of a silent machine, as this process saw it."""

    uid: str
    """uid of the Node."""
    renewed: str
    since: datetime
    """Time since which it was seen unchanged."""
    changed: datetime | None = None
    """Time at which a renewal was seen last."""


@dataclass(frozen=True, slots=True)
class SilentMachine:
    """A machine that is silent now."""

    node: Obj
    identity: Obj | None
    since: datetime
    rule: timedelta | None
    """Silence after which it is removed; None for never."""

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def is_ephemeral(self) -> bool:
        return bool(spec_of(self.identity or {}).get("silenceSeconds"))


@dataclass(slots=True)
class SilentNodes:
    """Removes the Nodes of silent machines."""

    limit: timedelta | None = None
    """Silence after which a machine is removed whose token says nothing; None for never."""
    name: str = "silent-node-controller"
    watches: tuple[str, ...] = (NODES, IDENTITIES, LEASES, CONFIG_MAPS)
    _leases: dict[str, ObservedLease] = field(default_factory=dict)
    _last: datetime | None = None
    """Time of the last judgement."""
    _steady_since: datetime = EARLIEST
    """Time since which judgements came when they were due."""

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Return `EVERY`, whose plan repeats itself while a machine is silent."""
        return (EVERY,) if plural == NODES else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        if self._last is not None and self._last <= now < self._last + PERIOD:
            return (Requeue(self._last + PERIOD),)
        if self._last is None or not self._last <= now < self._last + 2 * PERIOD:
            self._steady_since = now
        self._last = now
        silent = list(self._silent(views, now))
        mark = views[CONFIG_MAPS].get(MARK, MARK_NAMESPACE)
        self._observe(silent, views, now)
        silent = [self._dated(machine, now) for machine in silent]
        ruled = [machine for machine in silent if machine.rule is not None]
        if not ruled:
            cleared = _marked(mark, {**_data(mark), HELD_SPANS: ""}, 0, "") if mark is not None else ()
            return (*cleared, *_returned(views, ()))
        seen = _observation(mark, now)
        due = [machine for machine in ruled if self._is_due(machine, seen.since, self._steady_since, now)]
        removed_before = _of_late(seen.removed, ruled, views, now)
        quiet = [machine for machine in silent if not self._is_heard(machine, now)]
        free, spans = _shared(due, quiet, removed_before, seen.spans, views)
        removed = tuple(islice(free, max(0, min(MAX_REMOVALS, MAX_REMOVED - len(removed_before)))))
        observed = {
            OBSERVED_SINCE: rfc3339(seen.since),
            LAST_OBSERVED: rfc3339(seen.last),
            HELD_SPANS: _text_of_spans(_with_machines(spans, ruled)),
            REMOVED: _text_of_removed(removed_before | {machine.name: machine.since for machine in removed}),
        }
        held = [machine for machine in ruled if any(first <= machine.since <= last for first, last in spans)]
        message = _held_message(held)
        # The mark comes first: what follows may fail, and must not break the observation.
        actions: list[Action] = [*_marked(mark, observed, len(held), message)]
        if held and _data(mark).get(HELD_BACK, "0") == "0":
            actions.append(Create(EVENTS, _held_event(message, now)))
        actions += _returned(views, removed)
        for machine in removed:
            actions += _removal(machine, views, now)
        return (*actions, Requeue(now + PERIOD))

    def _silent(self, views: Views, now: datetime) -> Iterator[SilentMachine]:
        identities = views[IDENTITIES]
        for node in views[NODES].list():
            since = silent_since(node)
            if since is None or is_terminating(node):
                continue
            identity = identities.get(node["metadata"]["name"])
            seconds = spec_of(identity).get("silenceSeconds") if identity is not None else None
            rule = timedelta(seconds=seconds) if seconds else self.limit
            yield SilentMachine(node, identity, since, None if may_be_silent(node) else rule)

    def _observe(self, machines: Sequence[SilentMachine], views: Views, now: datetime) -> None:
        """Record the Leases of silent machines, and forget those of others."""
        observed: dict[str, ObservedLease] = {}
        for machine in machines:
            uid, renewed = machine.node["metadata"]["uid"], _renewed(views, machine.name)
            lease = self._leases.get(machine.name)
            if lease is None or lease.uid != uid:
                lease = ObservedLease(uid, renewed, now)
            elif lease.renewed != renewed:
                lease = ObservedLease(uid, renewed, now, changed=now)
            observed[machine.name] = lease
        self._leases = observed

    def _dated(self, machine: SilentMachine, now: datetime) -> SilentMachine:
        """Return the machine with the begin of its silence: its last renewal; for a time of the future when it was seen here."""
        lease = self._leases[machine.name]
        since = machine.since if machine.since <= now else lease.since
        return replace(machine, since=max(since, lease.changed or since, _moment(lease.renewed, since, now)))

    def _is_heard(self, machine: SilentMachine, now: datetime) -> bool:
        """Return true for a machine that renewed its Lease a moment ago, although it posted no status."""
        changed = self._leases[machine.name].changed
        return changed is not None and now - changed < UNCHANGED

    def _is_due(self, machine: SilentMachine, observed_since: datetime, steady_since: datetime, now: datetime) -> bool:
        """Return true for a machine whose observed silence is longer than its rule."""
        assert machine.rule is not None  # only machines with a rule are judged
        lease = self._leases[machine.name]
        begin = max(machine.since, observed_since)
        # The clock may have been set forward by less than UNOBSERVED since the silence began.
        steady = now - steady_since >= min(machine.rule, UNOBSERVED)
        return steady and now - lease.since >= UNCHANGED and now - begin > machine.rule


def silent_since(node: Obj) -> datetime | None:
    """Return when the silence of a machine began, EARLIEST at least; None for one that is not silent.

    A machine may write a condition without a time, too: that is a time of the future, as `_dated` reads it.
    """
    ready = ready_condition(node)
    if ready is not None and ready.get("status") != "Unknown":
        return None
    text = node["metadata"].get("creationTimestamp") if ready is None else ready.get("lastTransitionTime")
    try:
        return max(parse_rfc3339(text or ""), EARLIEST)
    except ValueError:
        return LATEST


def _renewed(views: Views, name: str) -> str:
    lease = views[LEASES].get(name, LEASE_NAMESPACE)
    return str(((lease or {}).get("spec") or {}).get("renewTime") or "")


def _moment(renewed: str, since: datetime, now: datetime) -> datetime:
    """Return when a Lease was renewed, by the clock of its machine; `since` for a time of the future."""
    try:
        found = parse_rfc3339(renewed)
    except ValueError:
        return since
    return found if found <= now else since


def _data(mark: Obj | None) -> dict[str, str]:
    return (mark or {}).get("data") or {}


@dataclass(frozen=True, slots=True)
class Observation:
    """Content of the mark."""

    since: datetime
    """Time since which silence was observed without a break."""
    last: datetime
    """Time of observation to write."""
    spans: Sequence[Span] = ()
    """Times between which machines fell silent that are held back."""
    removed: Mapping[str, datetime] = field(default_factory=dict)
    """Machines that were removed of late, each with the time at which it fell silent."""


def _observation(mark: Obj | None, now: datetime) -> Observation:
    """Return what the mark says. One that cannot be read says nothing, and one that is old or of the future begins again."""
    data = _data(mark)
    try:
        since, last = parse_rfc3339(data.get(OBSERVED_SINCE, "")), parse_rfc3339(data.get(LAST_OBSERVED, ""))
        pairs = [text.split("/") for text in data.get(HELD_SPANS, "").split()]
        spans = [(parse_rfc3339(first), parse_rfc3339(end)) for first, end in pairs]
        named = [text.split("=") for text in data.get(REMOVED, "").split()]
        removed = {name: parse_rfc3339(text) for name, text in named}
    except ValueError:
        return Observation(now, now)
    if not (since <= last and now - UNOBSERVED <= last <= now + PERIOD):
        return Observation(now, now, spans, removed)
    return Observation(since, last if now - last < MARK_PERIOD else now, spans, removed)


def _of_late(
    removed: Mapping[str, datetime], silent: Sequence[SilentMachine], views: Views, now: datetime
) -> dict[str, datetime]:
    """Return the machines that were removed and may have fallen silent with others that are judged now or later."""
    beginnings = sorted(machine.since for machine in silent)
    return {
        name: since
        for name, since in removed.items()
        if views[NODES].get(name) is None
        and (since > now - TOGETHER or _count(beginnings, since - TOGETHER, since + TOGETHER))
    }


def _count(times: Sequence[datetime], first: datetime, last: datetime) -> int:
    """Return how many of the times, which are sorted, are between two."""
    return bisect_right(times, last) - bisect_left(times, first)


def _with_machines(spans: Sequence[Span], silent: Sequence[SilentMachine]) -> list[Span]:
    """Return the spans in which a machine fell silent that still is."""
    beginnings = sorted(machine.since for machine in silent)
    return [(first, last) for first, last in spans if _count(beginnings, first, last)]


def _text_of_spans(spans: Sequence[Span]) -> str:
    return " ".join(f"{rfc3339(first)}/{rfc3339(last)}" for first, last in spans)


def _text_of_removed(removed: Mapping[str, datetime]) -> str:
    return " ".join(f"{name}={rfc3339(since)}" for name, since in removed.items())


def _marked(mark: Obj | None, observed: dict[str, str], held: int, message: str) -> Sequence[Action]:
    """Return the write of the mark; none when it says the same."""
    kept = {name: observed[name] for name in (OBSERVED_SINCE, LAST_OBSERVED, HELD_SPANS, REMOVED) if observed.get(name)}
    data = kept | {HELD_BACK: str(held)} | ({MESSAGE: message} if message else {})
    if mark is None:
        metadata = {"name": MARK, "namespace": MARK_NAMESPACE}
        return (Create(CONFIG_MAPS, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}),)
    if _data(mark) == data:
        return ()
    # Said once, and not with each number.
    begins = _data(mark).get(HELD_BACK, "0") == "0"
    return (Update(CONFIG_MAPS, {**mark, "data": data}, announcement=message if begins else ""),)


def _shared(
    due: Sequence[SilentMachine],
    silent: Sequence[SilentMachine],
    removed: Mapping[str, datetime],
    spans: Sequence[Span],
    views: Views,
) -> tuple[list[SilentMachine], Sequence[Span]]:
    """Return the machines that are due and may be removed, and the spans of the sites that were cut off."""
    gone = sorted(removed.values())
    beginnings = sorted([*(machine.since for machine in silent), *gone])
    nodes = sum(1 for node in views[NODES].list() if not is_terminating(node))
    free: list[SilentMachine] = []
    cut_off = spans
    for machine in sorted(due, key=lambda one: one.since):
        assert machine.rule is not None  # only machines with a rule are judged
        apart = min(TOGETHER, machine.rule)
        first, last = machine.since - apart, machine.since + apart
        share = max(1, (nodes + _count(gone, first, last)) // SHARE)
        if any(begin <= machine.since <= end for begin, end in cut_off):
            continue
        if _count(beginnings, first, last) > share:
            cut_off = _merged(cut_off, (first, last))
        else:
            free.append(machine)
    # A machine that was found free may be in a span that a later one made.
    return [one for one in free if not any(begin <= one.since <= end for begin, end in cut_off)], cut_off


def _merged(spans: Sequence[Span], added: Span) -> list[Span]:
    """Return the spans and one more, as one where they overlap."""
    over = [span for span in spans if span[0] <= added[1] and span[1] >= added[0]]
    one = min([added[0], *(span[0] for span in over)]), max([added[1], *(span[1] for span in over)])
    return sorted([*(span for span in spans if span not in over), one])


def _held_message(held: Sequence[SilentMachine]) -> str:
    if not held:
        return ""
    return (
        f"silent machines that are not removed: {len(held)}, {held[0].name} among them. More than a quarter of all fell silent "
        "together, as when a site is cut off. If they do not come back, delete their Nodes: mooring node prune"
    )


def _held_event(message: str, now: datetime) -> Obj:
    about = {"apiVersion": "v1", "kind": "Namespace", "name": MARK_NAMESPACE}
    name = f"{MARK}.{now:%Y%m%d%H%M%S}"
    return new_event(about, "SilenceHeldBack", message, now, metadata={"name": name}, is_warning=True)


def _returned(views: Views, removed: Sequence[SilentMachine]) -> list[Action]:
    """Return the updates of identities that call a member silent: its removal failed, because it came back meanwhile."""
    names = {machine.name for machine in removed}
    updates: list[Action] = []
    for identity in views[IDENTITIES].list():
        name = identity["metadata"]["name"]
        if spec_of(identity).get("endReason") != SILENT or name in names:
            continue
        node = views[NODES].get(name)
        if node is not None and not was_deleted(identity, node):
            updates.append(Update(IDENTITIES, with_spec(identity, endReason="")))
    return updates


def _removal(machine: SilentMachine, views: Views, now: datetime) -> Iterator[Action]:
    """Yield the record of the reason, the deletion, and the Event about it."""
    still_silent = _still_silent(machine, _renewed(views, machine.name))
    identity, metadata = machine.identity, machine.node["metadata"]
    if identity is not None and spec_of(identity).get("endReason") != SILENT:
        yield Update(IDENTITIES, with_spec(identity, endReason=SILENT), precondition=still_silent)
    text = _removal_message(machine)
    yield Delete.of(NODES, machine.node, announcement=text, precondition=still_silent)
    about = {"apiVersion": "v1", "kind": "Node", "name": machine.name, "uid": metadata["uid"]}
    # By the uid of the Node: a plan that is repeated records it once.
    name = f"{machine.name[:200]}.{metadata['uid'][:36]}"
    yield Create(EVENTS, new_event(about, SILENT, text, now, metadata={"name": name}, is_warning=True))


def _still_silent(machine: SilentMachine, renewed: str) -> CommitPrecondition:
    version = machine.node["metadata"]["resourceVersion"]

    def holds(views: Views, now: datetime) -> bool:
        node = views[NODES].get(machine.name)
        unchanged = node is not None and node["metadata"]["resourceVersion"] == version
        return unchanged and _renewed(views, machine.name) == renewed

    return holds


def _removal_message(machine: SilentMachine) -> str:
    assert machine.rule is not None  # only machines with a rule are removed
    rule = "which its token set" if machine.is_ephemeral else "--end-silent-members-after"
    way = "" if machine.is_ephemeral else ", or approve its request (mooring csr approve)"
    return (
        f"the Node {machine.name} was deleted, because its machine has been silent since {rfc3339(machine.since)}, for longer than "
        f"{format_duration(machine.rule)} ({rule}). To let it back, let it join again with a valid token{way}"
    )
