"""Uniqueness of a member: whether two machines use one identity, by the uses of its certificates and the boots of its Node.

Rules kept here (docs/names-and-membership.md#one-machine-for-each-name):
* The evidence is in the status of the NodeIdentity: certificates in the order of their first use, and boots in the order of their
  first report. A machine only moves on in both: to the next certificate, to the next boot.
* One that is used although a newer one was in use has *returned*. That alone may be a machine that went back to an older state,
  such as a snapshot. Once the newer one is used again as well, two machines use the identity.
* A certificate that was requested with another one comes after it, whichever was seen first. Certificates of one key are one.
* The order of first uses and returns is that in which they were recorded. Clocks of servers are not compared.
* Addresses and machine ids decide nothing: addresses change, and images share machine ids. They are told to the operator.
* Only certificates of keys that the identity lists, and that its caller accepts, are evidence. So a finding ends when one of its
  two sides can authenticate no more.
* Boots are in the order in which they took over from one another. A return is evidence for BOOTS_HOLD.
* `finding` is the one judge: controllers, commands and metrics call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.mooring.nodeidentity import (
    MAX_BOOT_ID,
    MAX_BOOTS,
    MAX_USES,
    boots_of,
    companions_of,
    keys_of,
    status_of,
    uses_of,
)
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339

DUPLICATE = "DuplicateIdentity"
"""Condition of a NodeIdentity, and reason of Events and of held requests."""
OLDER_STATE = "OlderState"
"""Reason of the condition while the machine may have gone back to an older state."""
TWO_CERTIFICATES, TWO_BOOTS, RESOLVED = "TwoCertificatesInUse", "TwoMachinesReport", "Resolved"
"""Reasons of the condition."""
OLDER_AFTER = timedelta(minutes=1)
"""Time after a return before it is told as an older state: a second machine is seen within seconds."""
BOOTS_HOLD = timedelta(hours=2)
"""Time for which the return of a boot is evidence."""
BOOTS_REPEAT = timedelta(hours=1)
"""Age of a return after which a further one is written: two kubelets take turns every ten seconds."""


@dataclass(frozen=True, slots=True)
class CertificateUse:
    """A certificate of the identity authenticated a request. Fingerprints are `sha256:<hex>`, the serial number is hex."""

    certificate: str
    public_key: str
    serial_number: str
    address: str
    at: datetime


@dataclass(frozen=True, slots=True)
class EvidenceSide:
    """One of the two machines of a finding: its certificate, or its boot. `key`: "" for a boot."""

    id: str
    key: str
    since: str
    address: str
    again: str
    again_from: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Two machines use one identity, or one machine went back to an older state."""

    reason: str
    older: EvidenceSide
    newer: EvidenceSide

    @property
    def is_duplicate(self) -> bool:
        return self.reason != OLDER_STATE


# Evidence: what a use, or a report of the Node, adds to the status.


def newer_uses(identity: Obj, use: CertificateUse) -> Sequence[tuple[Obj, bool]]:
    """Return the certificates in use that come after that of this use, the newest last, each with whether it descends from it."""
    uses = _current(identity)
    own = _find(uses, use.certificate) or _new(identity, use)
    known = {one["certificate"]: one for one in (*uses, own)}
    before = uses.index(own) if own in uses else len(uses)
    found: list[tuple[Obj, bool]] = []
    for place, one in enumerate(uses):
        if one["publicKey"] != own["publicKey"]:
            # A parent that is seen for the first time comes before its children, which are in use already.
            descends = _descends(one, own, known)
            if descends or (place > before and not _descends(own, one, known)):
                found.append((one, descends))
    return found


def with_use(identity: Obj, use: CertificateUse, behind: str = "") -> Obj | None:
    """Return the identity with this use in its status; None when the use says nothing new.

    `behind`: the newest of `newer_uses` that is in use for longer than a machine takes to change to it; "" for none.
    """
    if not any(key.get("publicKey") == use.public_key for key in keys_of(identity)):
        return None
    uses = _current(identity)
    own = _find(uses, use.certificate)
    told = own or _new(identity, use)
    after = _returned_before(uses, told) or (behind if _is_news(uses, told, behind) else "")
    if after:
        told = told | {"returnedAt": _next_moment(uses, use.at), "returnedFrom": use.address, "returnedAfter": after}
    if told == own:
        return None
    if own is not None:
        uses[uses.index(own)] = told
    else:
        newer = newer_uses(identity, use)
        uses.insert(uses.index(newer[0][0]) if newer else len(uses), told)
    return _with_status(identity, certificates=_trimmed(uses))


def with_boot(identity: Obj, boot: str, now: datetime) -> Obj | None:
    """Return the identity with a report by this boot in its status; None when the report says nothing new."""
    # Those from before the name last changed hands were the boots of a membership that has ended.
    changed = str(spec_of(identity).get("changedAt") or "")
    boots = [one for one in boots_of(identity) if str(one.get("returnedAt") or one["since"]) >= changed]
    if not boot or (boots and boots[-1]["id"] == boot):
        return None
    own = next((one for one in boots if one["id"] == boot), None)
    if own is None:
        return _with_status(identity, boots=[*boots, {"id": boot, "since": rfc3339(now)}][-MAX_BOOTS:])
    if _is_within(own.get("returnedAt"), BOOTS_REPEAT, now):
        return None
    others = [one for one in boots if one is not own]
    return _with_status(identity, boots=[*others, own | {"returnedAt": rfc3339(now)}])


def boot_of(node: Obj) -> str:
    """Return the boot of the machine that reported a Node: its boot id, else its machine id or system UUID; "" for none."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("bootID") or info.get("machineID") or info.get("systemUUID") or "")[:MAX_BOOT_ID]


def _current(identity: Obj) -> list[Obj]:
    """Return the uses whose keys the identity lists, in order. An entry that another server wrote without its fields is none."""
    listed = {key.get("publicKey") for key in keys_of(identity)}
    return [
        one
        for one in uses_of(identity)
        if one.get("publicKey") in listed and one.get("certificate") and one.get("firstUsed")
    ]


def _find(uses: Sequence[Obj], certificate: str) -> Obj | None:
    return next((one for one in uses if one["certificate"] == certificate), None)


def _new(identity: Obj, use: CertificateUse) -> Obj:
    keys = [key for key in keys_of(identity) if key.get("publicKey") == use.public_key]
    key = next((one for one in keys if one.get("serialNumber") == use.serial_number), keys[0] if keys else {})
    told = {
        "certificate": use.certificate,
        "publicKey": use.public_key,
        "parent": key.get("parent", ""),
        "firstUsed": rfc3339(use.at),
        "sourceAddress": use.address,
    }
    return {name: value for name, value in told.items() if value}


def _descends(one: Obj, ancestor: Obj, known: Mapping[str, Obj]) -> bool:
    """Return true when a certificate was requested with `ancestor`, or with one that descends from it."""
    at: Obj | None = one
    for _ in known:  # a circle can only be written by hand
        at = known.get((at or {}).get("parent", ""))
        if at is None:
            return False
        if at["certificate"] == ancestor["certificate"]:
            return True
    return False


def _left_behind(uses: Sequence[Obj], older: Obj) -> Sequence[Obj]:
    """Return the certificates that were in use when `older` returned, apart from those before it."""
    newest = _find(uses, older.get("returnedAfter", ""))
    end = uses.index(newest) + 1 if newest is not None else 0
    return [one for one in uses[uses.index(older) + 1 : end] if one["publicKey"] != older["publicKey"]]


def _is_other_side(uses: Sequence[Obj], one: Obj, older: Obj) -> bool:
    """Return true for a certificate that `older` has left behind when it returned, and for one that descends from such a one."""
    known = {use["certificate"]: use for use in (*uses, one)}
    left = _left_behind(uses, older)
    return one in left or any(_descends(one, other, known) for other in left)


def _returned_before(uses: Sequence[Obj], told: Obj) -> str:
    """Return an older certificate that returned since the last return of `told`, which is on the other side; "" for none."""
    for older in uses:
        if older.get("returnedAt", "") > told.get("returnedAt", "") and _is_other_side(uses, told, older):
            return str(older["certificate"])
    return ""


def _next_moment(uses: Sequence[Obj], at: datetime) -> str:
    """Return the moment of a return, which is after every return before it: the clock of another server may have been ahead."""
    last = max((one.get("returnedAt", "") for one in uses), default="")
    moment = rfc3339(at)
    return moment if moment > last else rfc3339(parse_rfc3339(last) + timedelta(seconds=1))


def _is_news(uses: Sequence[Obj], told: Obj, behind: str) -> bool:
    """Return true for a return that is the first, or that is after a newer certificate than the last one."""
    order = [one["certificate"] for one in uses]
    before = told.get("returnedAfter", "")
    # The record may have lost what was seen before.
    return behind in order and (before not in order or order.index(behind) > order.index(before))


def _trimmed(uses: list[Obj]) -> list[Obj]:
    """Return at most MAX_USES; the oldest that have not returned go first."""
    while len(uses) > MAX_USES:
        uses.remove(next((one for one in uses if not one.get("returnedAt")), uses[0]))
    return uses


def _with_status(identity: Obj, **changed: object) -> Obj:
    return {**identity, "status": {**status_of(identity), **changed}}


def _is_within(moment: str | None, limit: timedelta, now: datetime) -> bool:
    try:
        return timedelta(0) <= now - parse_rfc3339(moment or "") < limit
    except ValueError:
        return False


def keys_below(identity: Obj, public_key: str, certificates: Mapping[str, str]) -> frozenset[str]:
    """Return a key, and those of the identity whose certificates descend from it.

    `certificates`: keys by the certificate, beside those of the recorded uses.
    """
    known = {**certificates, **{use["certificate"]: use["publicKey"] for use in uses_of(identity)}}
    entries, found = (*keys_of(identity), *companions_of(identity)), {public_key}
    # A child may stand before its parent in a list that a person has edited.
    for _ in entries:
        found.update(one["publicKey"] for one in entries if known.get(one.get("parent", "")) in found)
    return frozenset(found)


# The judgement.


def has_expired(identity: Obj, use: Obj, now: datetime) -> bool:
    """Return true for a use of a certificate that the identity lists as expired."""
    return any(key.get("publicKey") == use["publicKey"] and _has_expired(key, now) for key in keys_of(identity))


def accept_all(use: Obj) -> bool:
    """Return true: the certificate of a use is judged by the record alone."""
    return True


def finding(identity: Obj, now: datetime, is_accepted: Callable[[Obj], bool] = accept_all) -> Finding | None:
    """Return that two machines use the identity, or that one may have gone back to an older state; None for one machine.

    `is_accepted` judges the certificate of a use: a server may reject one that the identity lists.
    """
    uses = [one for one in _current(identity) if is_accepted(one)]
    returned = [one for one in uses if one.get("returnedAt")]
    for older in reversed(returned):
        for newer in reversed(returned):
            if newer["returnedAt"] > older["returnedAt"] and _is_other_side(uses, newer, older):
                return Finding(TWO_CERTIFICATES, _certificate_side(older), _certificate_side(newer))
    # The boots of a machine of which the server accepts nothing are those of its past.
    boots = boots_of(identity) if uses or not _current(identity) else []
    # One that returned before the name last changed hands was another machine's.
    changed = spec_of(identity).get("changedAt") or ""
    back = [one for one in boots if _is_within(one.get("returnedAt"), BOOTS_HOLD, now) and one["returnedAt"] >= changed]
    if len(back) > 1:
        return Finding(TWO_BOOTS, _boot_side(back[-2]), _boot_side(back[-1]))
    for older in reversed(returned):
        if left := _left_behind(uses, older):
            return Finding(OLDER_STATE, _certificate_side(older), _certificate_side(left[-1]))
    # The one before it in the list is the one from which it took over.
    if back and (place := boots.index(back[0])):
        return Finding(OLDER_STATE, _boot_side(back[0]), _boot_side(boots[place - 1]))
    return None


def condition_of(identity: Obj) -> Obj:
    """Return the condition DuplicateIdentity; empty where none was written."""
    conditions = status_of(identity).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == DUPLICATE), {})


def is_suspect(identity: Obj) -> bool:
    """Return true while some evidence is there, which may become a finding or end as one by time alone."""
    return any(one.get("returnedAt") for one in (*_current(identity), *boots_of(identity)))


def is_duplicate(identity: Obj | None) -> bool:
    """Return true while the condition says that two machines use the identity."""
    return identity is not None and condition_of(identity).get("status") == "True"


def with_condition(
    identity: Obj, now: datetime, is_accepted: Callable[[Obj], bool] = accept_all, *, ends_both: bool = False
) -> Obj | None:
    """Return the identity with the condition that its evidence calls for; None when it has that one.

    `ends_both`: both machines are revoked by a finding.
    """
    found, present = finding(identity, now, is_accepted), condition_of(identity)
    if found is None and not present:
        return None
    if found is not None and not found.is_duplicate and not present and _is_within(found.older.again, OLDER_AFTER, now):
        return None
    reason = found.reason if found is not None else RESOLVED
    if found is not None:
        text = described(found, identity["metadata"]["name"], ends_both=ends_both)
    else:
        text = _ONE_MACHINE if any(map(is_accepted, _current(identity))) else _NO_MACHINE
    status = "True" if found is not None and found.is_duplicate else "False"
    # A finding keeps its first words while it lasts: each renewal of one side would change them.
    is_same = (present.get("status"), present.get("reason")) == (status, reason)
    if is_same and (found is not None or present.get("message") == text):
        return None
    changed = present.get("lastTransitionTime") if present.get("status") == status else None
    condition = {
        "type": DUPLICATE,
        "status": status,
        "reason": reason,
        "message": text,
        "lastTransitionTime": changed or rfc3339(now),
    }
    others = [one for one in status_of(identity).get("conditions") or () if one.get("type") != DUPLICATE]
    return _with_status(identity, conditions=[*others, condition])


ENDS_BOTH = "--duplicate-identity=end"
"""In the message of a condition whose finding revokes both machines."""
_ONE_MACHINE = "one machine uses the identity"
_NO_MACHINE = "the server accepts no certificate of the identity any more"


def described(found: Finding, name: str, *, ends_both: bool = False) -> str:
    """Return a finding in words, with the remedy. `ends_both`: both machines are revoked by it."""
    if not found.is_duplicate:
        return _older_state(found, name)
    if found.reason == TWO_BOOTS:
        told = (
            f"two machines report the Node {name} in turns: boot {found.older.id} (first reported at {found.older.since}, again at "
            f"{found.older.again}) and boot {found.newer.id} ({found.newer.since}, {found.newer.again})"
        )
        # They may have the same key: none has renewed.
        remedy = (
            "/proc/sys/kernel/random/boot_id tells which is which. On the wrong one stop the agent and remove the files (mooring "
            f"leave --files-only), or end both: mooring node revoke {name}"
        )
    else:
        told = f"two machines use the identity {name}: {_told(found.older)}; and {_told(found.newer)}"
        remedy = (
            f"Keep one of them: mooring node split {name} --keep KEY; or end both, and let the right one join again: mooring node "
            f"revoke {name}"
        )
    if ends_both:
        remedy = (
            f"The certificates of both were revoked ({ENDS_BOTH}). Let the right one join again: mooring token create --node-name "
            f"{name}"
        )
    return f"{told}. {remedy}"


def _older_state(found: Finding, name: str) -> str:
    if not found.older.key:
        return (
            f"boot {found.older.id} reported the Node {name} again at {found.older.again}, after boot {found.newer.id}: the "
            "machine went back to an older state, such as a snapshot in memory; if the other one reports again, there are two "
            "machines"
        )
    return (
        f"{_told(found.older)}, although {_told(found.newer)}, was in use: the machine went back to an older state, such as a "
        "snapshot or a backup, or a copy of it is used while it is off; if the newer one is used again, there are two machines"
    )


def _told(side: EvidenceSide) -> str:
    first = f"first used at {side.since}" + (f" from {side.address}" if side.address else "")
    again = f", used again at {side.again}" if side.again else ""
    again += f" from {side.again_from}" if side.again_from else ""
    return f"key {side.key}, {first}{again}"


def _has_expired(key: Obj, now: datetime) -> bool:
    try:
        return parse_rfc3339(key.get("notAfter") or "") < now
    except ValueError:
        return False


def _certificate_side(use: Obj) -> EvidenceSide:
    return EvidenceSide(
        use["certificate"],
        use["publicKey"],
        use.get("firstUsed", ""),
        use.get("sourceAddress", ""),
        use.get("returnedAt", ""),
        use.get("returnedFrom", ""),
    )


def _boot_side(boot: Obj) -> EvidenceSide:
    return EvidenceSide(boot["id"], "", boot.get("since", ""), "", boot.get("returnedAt", ""), "")
