"""Rollover of the cluster's CA: the next step on disk, the gate that waits for machines, and the status to report.

Rules kept here:
* The files in the data directory are the truth about the phase that was reached, the object says which one is wanted. So a server
  that was killed continues from the files.
* Each call plans one step. A step that would lock machines out waits until no machine is behind, or until `spec.force` names the
  wanted phase.
* A step after which clients or joining machines need the CA that stays waits until they know it. `spec.force` does not change that:
  it is about machines that are behind.
* With a key in other hands, neither CA vouches for the other from then on, whatever the phase.
* A machine is behind while its newest certificate is of the other CA, or while it does not say that it trusts the new one. The
  agent says so in an annotation of its Node. A kubelet does not, so it is named as unknown. Certificates that have expired or that
  the server refuses do not count. A machine without any other is not waited for: after the end of its certificate it comes back
  under the CAs that were retired, and a refused one is locked out already. What cannot be read refuses nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from mooring.api.mooring.certificateauthorityrollover import (
    ABORTED,
    ABORTING,
    DONE,
    DRAIN,
    ENDED,
    ISSUE_NEW,
    PREPARED,
    RETIRED,
    TRUST_BOTH,
    status_of,
)
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.membership import lapse
from mooring.api.mooring.nodeidentity import companions_of, keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.revocations import entries_about
from mooring.clock import parse_rfc3339, rfc3339
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.clientcertificate import PathCertificate, RecordedCertificate

TRUSTED_CAS = "mooring.dev/trusted-cas"
"""Annotation of a Node in which an agent lists the pins of the CAs under which it verifies the server, separated by commas."""
MAX_MACHINES = 100
"""Machines that the status names. The total is counted beside them."""
ABSENT = ""
"""Phase of a data directory without a rollover."""
CLEANING = "Cleaning"
"""Phase of a data directory from which the files of an abort are being removed."""
_LATEST = datetime.max.replace(tzinfo=UTC)
ORDER = (ABSENT, PREPARED, TRUST_BOTH, ISSUE_NEW, DRAIN, RETIRED)


class RolloverStep(Enum):
    """One change of the files of a data directory."""

    PREPARE = "make the new CA"
    PUBLISH = "trust both CAs"
    ISSUE = "issue from the new CA"
    DRAIN = "ask machines to renew"
    RETIRE = "retire the old CA"
    REVERT = "issue from the old CA again"
    WITHDRAW = "trust the old CA alone again"
    UNBRIDGE = "let neither CA vouch for the other"
    CLEAN = "destroy the keys that are not needed any more"


JUDGED = (RolloverStep.ISSUE, RolloverStep.DRAIN, RolloverStep.RETIRE, RolloverStep.REVERT, RolloverStep.WITHDRAW)
"""Steps after which the CA that stays has to be known to those who verify by it."""


@dataclass(frozen=True, slots=True)
class ReportedCa:
    """One CA as the status names it."""

    pin: str
    subject: str
    not_after: datetime

    def status(self) -> Obj:
        return {"publicKey": self.pin, "subject": self.subject, "notAfter": rfc3339(self.not_after)}


@dataclass(frozen=True, slots=True)
class RolloverOnDisk:
    """The rollover in the files of one data directory. `old` and `new` are None without the keys of both."""

    phase: str
    issuing: str
    """Pin of the CA that issues."""
    old: ReportedCa | None = None
    new: ReportedCa | None = None
    is_bridged: bool = False
    """True when one CA vouches for the other."""


@dataclass(frozen=True, slots=True)
class MachineBehind:
    """A machine that is behind."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The step to take, if any, and the status to write."""

    step: RolloverStep | None
    status: Obj = field(default_factory=dict)


def next_step(phase: str, wanted: str) -> RolloverStep | None:
    """Return the step from the phase of the files towards the wanted one; None when it is reached."""
    if phase in (RETIRED, CLEANING):
        return RolloverStep.CLEAN
    if wanted in (ABORTED, ABORTING):
        back = {
            PREPARED: RolloverStep.CLEAN,
            TRUST_BOTH: RolloverStep.WITHDRAW,
            ISSUE_NEW: RolloverStep.REVERT,
            DRAIN: RolloverStep.REVERT,
        }
        return back.get(phase)
    if ORDER.index(phase) >= ORDER.index(wanted):
        return None
    return (RolloverStep.PREPARE, RolloverStep.PUBLISH, RolloverStep.ISSUE, RolloverStep.DRAIN, RolloverStep.RETIRE)[
        ORDER.index(phase)
    ]


def plan(
    rollover: Obj,
    disk: RolloverOnDisk,
    views: Views,
    now: datetime,
    *,
    verifies_server: bool = True,
    obstacles: Sequence[str] = (),
) -> Planned:
    """Plan for the server that carries the rollover out.

    `verifies_server`: machines verify the server under the new CA, so that each has to say that it trusts it. `obstacles` are
    reasons not to take the next step yet, one of `JUDGED`. They are named before it is wanted.
    """
    before, spec = status_of(rollover), spec_of(rollover)
    reached, wanted = before.get("phase", ""), spec["phase"]
    if reached in ENDED:
        return Planned(None, before)
    status = dict(before)
    if disk.old is not None and disk.new is not None:
        # Before any step: a server that has another new CA than the status names must not change its files.
        if problem := _foreign(before, disk):
            return Planned(None, {**status, "message": problem})
        # With a key in other hands neither CA may vouch for the other, so this does not wait for a phase or a machine.
        if disk.is_bridged and spec.get("compromised"):
            return Planned(RolloverStep.UNBRIDGE, {**status, "message": RolloverStep.UNBRIDGE.value})
        status |= {"oldCA": disk.old.status(), "newCA": disk.new.status()}
    step = next_step(disk.phase, wanted)
    behind = _waited_for(status, disk, wanted, views, now, verifies_server)
    status = _with_machines(status, behind)
    if disk.phase == ABSENT and reached and disk.new is None:
        return Planned(None, _ended(status, disk, wanted, now))
    if disk.phase == ABSENT and wanted == ABORTED:
        return Planned(None, _reached(status, ABORTED, now))
    is_back = wanted == ABORTED and disk.phase != RETIRED
    status = _reached(status, ABORTING if is_back else "" if disk.phase == CLEANING else disk.phase, now)
    if disk.phase == PREPARED and wanted != ABORTED and reached != PREPARED:
        # The status names the new CA before anything is published, so that all servers agree on one.
        step = None
    # Judged before `spec.force`, which is about machines that are behind and not about clients that do not know the CA.
    if step in JUDGED and obstacles:
        return Planned(None, {**status, "message": "; ".join(obstacles)})
    # These steps would lock out the machines that are behind.
    if step in (RolloverStep.RETIRE, RolloverStep.WITHDRAW) and behind and spec.get("force") != wanted:
        return Planned(None, {**status, "message": f"waiting for {_counted(behind)}"})
    told = (step.value,) if step else (*obstacles, _waiting(disk.phase, behind or ()))
    return Planned(step, {**status, "message": "; ".join(filter(None, told))})


def follow(rollover: Obj, disk: RolloverOnDisk) -> tuple[RolloverStep | None, str]:
    """Return the step of a server that does not carry the rollover out, and a problem that a person has to solve."""
    status = status_of(rollover)
    reached: str = status.get("phase", "")
    new = (status.get("newCA") or {}).get("publicKey", "")
    if not new or reached in (PREPARED, ABSENT) or (disk.issuing == new and disk.phase == ABSENT):
        return None, ""
    if disk.new is None or disk.new.pin != new:
        if reached in (ABORTED, ABORTING) and disk.new is None:
            return None, ""
        return None, _missing(new)
    if disk.is_bridged and spec_of(rollover).get("compromised"):
        return RolloverStep.UNBRIDGE, ""
    return next_step(disk.phase, RETIRED if reached == DONE else reached), ""


def machines_behind(
    old_pin: str, new_pin: str, views: Views, now: datetime, verifies_server: bool
) -> tuple[MachineBehind, ...]:
    """Return the machines that would be locked out without the old CA, or of which it is not known that they would not."""
    return tuple(
        MachineBehind(name, reason)
        for name, node, identity in _members(views)
        if (reason := _lag(node, identity, old_pin, new_pin if verifies_server else "", views, now))
    )


def machines_ahead(new_pin: str, views: Views, now: datetime) -> tuple[MachineBehind, ...]:
    """Return the machines whose newest certificate is of the new CA, which an abort would lock out."""
    return tuple(
        MachineBehind(name, "its certificate is of the new CA")
        for name, _, identity in _members(views)
        if identity and (counted := _counting(name, identity, views, now)) and counted[-1].get("issuer") == new_pin
    )


def _members(views: Views) -> Iterable[tuple[str, Obj, Obj | None]]:
    identities = views["nodeidentities"]
    for node in views["nodes"].list():
        name = node["metadata"]["name"]
        yield name, node, identities.get(name)


def _lag(node: Obj, identity: Obj | None, old_pin: str, new_pin: str, views: Views, now: datetime) -> str:
    """Return why a machine is behind; empty when it is not. An empty `new_pin`: which CAs it trusts does not matter."""
    if identity is None or not keys_of(identity):
        return "unknown: no certificate of it is recorded"
    counted = _counting(node["metadata"]["name"], identity, views, now)
    if not counted:
        return ""
    if counted[-1].get("issuer", "") in (old_pin, ""):
        return f"its certificate is of the old CA, valid until {counted[-1]['notAfter']}"
    if not new_pin:
        return ""
    said = (node["metadata"].get("annotations") or {}).get(TRUSTED_CAS)
    if said is None:
        return "unknown: it does not say which CAs it trusts, as a kubelet does not; check its kubeconfig"
    return "" if new_pin in said.split(",") else "it does not trust the new CA yet"


def _counting(name: str, identity: Obj, views: Views, now: datetime) -> list[Obj]:
    """Return the records of the machine's certificates that neither have expired nor are refused, the newest last."""
    ended = lapse(name, views)
    if ended is not None and not ended.is_undecided:
        return []
    records = [*companions_of(identity), *keys_of(identity)]  # its own certificate decides, while it has one
    return [
        key
        for key in records
        if (end := key.get("notAfter")) and parse_rfc3339(end) > now and not _is_revoked(name, key, views)
    ]


def _is_revoked(name: str, key: Obj, views: Views) -> bool:
    """Return true when an entry of the denylist that can be read concerns the certificate."""
    number, issuer, public_key = (key.get(field, "") for field in ("serialNumber", "issuer", "publicKey"))
    peer = RecordedCertificate(
        common_name=f"{NODE_PREFIX}{name}",
        node_name=name,
        fingerprint="",
        serial_number=int(number or "0", 16),
        public_key=public_key,
        issuer=issuer,
        # the record lacks the moment of issue: an entry of the node revokes the certificates that it names, or all
        issued_at=_LATEST,
        path=(PathCertificate(number, issuer, (public_key,)),),
    )
    return any(entries_about(peer, views[REVOCATIONS]))


def _waited_for(
    status: Obj, disk: RolloverOnDisk, wanted: str, views: Views, now: datetime, verifies_server: bool
) -> tuple[MachineBehind, ...] | None:
    """Return the machines that the next phase waits for; None in a phase whose successor waits for none."""
    if disk.old is None or disk.new is None:
        return None
    if wanted == ABORTED:
        issued = any(one["phase"] == ISSUE_NEW for one in status.get("transitions", ()))
        return machines_ahead(disk.new.pin, views, now) if issued and disk.phase == TRUST_BOTH else None
    return machines_behind(disk.old.pin, disk.new.pin, views, now, verifies_server) if disk.phase == DRAIN else None


def _with_machines(status: Obj, behind: tuple[MachineBehind, ...] | None) -> Obj:
    """Return the status with the machines, without their fields where they are not counted: 0 would read as "all are ready"."""
    if behind is None:
        return {name: value for name, value in status.items() if not name.startswith("machinesBehind")}
    named = [{"name": one.name, "reason": one.reason} for one in behind[:MAX_MACHINES]]
    return {**status, "machinesBehind": named, "machinesBehindTotal": len(behind)}


def _foreign(status: Obj, disk: RolloverOnDisk) -> str:
    """Return the problem when the status names another new CA than the files."""
    named = (status.get("newCA") or {}).get("publicKey", "")
    return _missing(named) if named and disk.new is not None and named != disk.new.pin else ""


def _missing(pin: str) -> str:
    return (
        f"the data directory of this server has no key of the new CA {pin}: copy pki/rollover/ from the server that made it, "
        "with mode 0600"
    )


def _ended(status: Obj, disk: RolloverOnDisk, wanted: str, now: datetime) -> Obj:
    """Return the status when the files have no rollover any more."""
    if disk.issuing == (status.get("newCA") or {}).get("publicKey"):
        return {**_reached(status, DONE, now), "message": "the new CA is the only one"}
    if wanted == ABORTED:
        return {**_reached(status, ABORTED, now), "message": "the old CA is the only one"}
    return {**status, "message": _missing((status.get("newCA") or {}).get("publicKey", ""))}


def _reached(status: Obj, phase: str, now: datetime) -> Obj:
    if not phase or status.get("phase", "") == phase:
        return status
    transitions = [*status.get("transitions", ()), {"phase": phase, "time": rfc3339(now)}]
    return {**status, "phase": phase, "transitions": transitions}


def _waiting(phase: str, behind: tuple[MachineBehind, ...]) -> str:
    if behind:
        return f"{_counted(behind)} would be locked out by the next phase"
    return "no machine is behind" if phase == DRAIN else ""


def _counted(machines: tuple[MachineBehind, ...]) -> str:
    return "1 machine" if len(machines) == 1 else f"{len(machines)} machines"
