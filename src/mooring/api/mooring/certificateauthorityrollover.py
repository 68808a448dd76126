"""CertificateAuthorityRollover: the wanted and the reached phase of a replacement of the cluster's CA.

Rules kept here (docs/adr/0027-serving-trust-and-issuing-trust.md):
* There is one object, `cluster-ca`. Keys are never in it.
* The wanted phase goes forward only, or to Aborted as long as Retired is not wanted. Aborted is final.
* status belongs to the server that carries the rollover out, and changes through `/status` alone.
"""

from __future__ import annotations

from datetime import datetime

from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.objectmeta import NAME, NONE, reset_fields, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, not_supported

SINGLETON = "cluster-ca"
"""Name of the one object: a cluster has one CA to replace."""

PREPARED, TRUST_BOTH, ISSUE_NEW, DRAIN, RETIRED, DONE = "Prepared", "TrustBoth", "IssueNew", "Drain", "Retired", "Done"
ABORTING, ABORTED = "Aborting", "Aborted"
FORWARD = (TRUST_BOTH, ISSUE_NEW, DRAIN, RETIRED)
"""Phases that an administrator asks for, in order."""
WANTED = (*FORWARD, ABORTED)
ENDED = (DONE, ABORTED)
"""Reached phases after which another rollover may start."""


def status_of(obj: Obj) -> Obj:
    """Return the status; empty when there is none."""
    status: Obj = obj.get("status") or {}
    return status


def next_phase(obj: Obj) -> str:
    """Return the phase to ask for after the one that was reached; empty at the end."""
    reached, wanted = status_of(obj).get("phase", ""), spec_of(obj).get("phase", "")
    if wanted == ABORTED or reached in (RETIRED, *ENDED):
        return ""
    return FORWARD[FORWARD.index(reached) + 1] if reached in FORWARD else TRUST_BOTH


def _name_errors(name: str) -> list[str]:
    return [] if name == SINGLETON else [f'the one rollover of a cluster is named "{SINGLETON}"']


def _default(obj: Obj) -> None:
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    spec.setdefault("phase", TRUST_BOTH)


def _prepare_for_create(obj: Obj, change: Change) -> None:
    obj["status"] = {}


def _validate(obj: Obj) -> list[FieldError]:
    spec = spec_of(obj)
    errors = []
    if spec.get("phase") not in WANTED:
        errors.append(not_supported("spec.phase", spec.get("phase"), WANTED))
    if spec.get("force") and spec["force"] not in WANTED:
        errors.append(not_supported("spec.force", spec["force"], WANTED))
    return errors


def _validate_create(obj: Obj) -> list[FieldError]:
    if spec_of(obj).get("phase") == ABORTED:
        return [forbidden("spec.phase", "a rollover that did not begin cannot be aborted")]
    return []


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    wanted, before = spec_of(new).get("phase", ""), spec_of(old).get("phase", "")
    # Unknown phases are an error of `_validate`, or were stored by another version.
    if wanted == before or wanted not in WANTED or before not in WANTED:
        return []
    # Its last steps are under way: they must not meet those of another rollover.
    if before == ABORTED:
        return [
            forbidden("spec.phase", "the rollover was aborted: delete the object when it has ended, and start another")
        ]
    if wanted == ABORTED:
        return (
            [forbidden("spec.phase", "the old CA is being retired: there is no way back")] if before == RETIRED else []
        )
    if WANTED.index(wanted) < WANTED.index(before):
        return [forbidden("spec.phase", f"it cannot go back from {before}; Aborted leads back to the old CA")]
    return []


def _behind(obj: Obj, now: datetime) -> str:
    return str(status_of(obj).get("machinesBehindTotal", NONE))


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="CertificateAuthorityRollover",
        plural="certificateauthorityrollovers",
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.CertificateAuthorityRollover"),
        short_names=("carollover",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=(
            NAME,
            Column("Wanted", lambda obj, now: spec_of(obj).get("phase", ""), description="The wanted phase."),
            Column(
                "Reached",
                lambda obj, now: status_of(obj).get("phase") or NONE,
                description="The phase that was reached.",
            ),
            Column("Behind", _behind, description="Number of machines that the next phase waits for."),
            AGE,
            Column(
                "Message",
                lambda obj, now: status_of(obj).get("message", ""),
                description="What the rollover waits for.",
                priority=1,
            ),
        ),
    ),
    garbage_collected=False,
    is_exact=True,
    storage=STORAGE_PREFIX + "certificateauthorityrollovers",
    name_errors=_name_errors,
    default=_default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=lambda new, old, change: reset_fields(new, old, "status"),
    validate=_validate,
    validate_create=_validate_create,
    validate_update=_validate_update,
    subresources={
        "status": SubresourceStrategy(prepare_for_update=lambda new, old, change: reset_fields(new, old, "spec"))
    },
    has_generation=True,
)
