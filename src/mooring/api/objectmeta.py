"""Parts that many kinds share: metadata, label selectors, conditions and print columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime

from mooring.api.kind import Kind
from mooring.apimachinery.names import dns1123_label_errors, generate_name, label_value_errors, qualified_name_errors
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import (
    MAX_FIELD_ERRORS,
    BadRequestError,
    ConflictError,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)

# Reset of fields that an update may not change, for the `prepare_for_update` hooks.
#
# Rules kept here: values are shared with the stored object, not copied, because hooks get a copy of it for this one write.


def reset_fields(new: Obj, old: Obj, *names: str) -> None:
    """Set the named fields of `new`, in place, to their values in `old`; fields absent in `old` are removed."""
    for name in names:
        if name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)


# ObjectMeta of every kind: server-set fields on create and update, and validation.
#
# Rules kept here (docs/protocol/objects.md; field paths and wording as kube-apiserver's):
# * On create the server sets uid and creationTimestamp. Values of a client for them, for deletion fields, generation, selfLink or
#   managedFields are dropped; a resourceVersion is refused. An empty name is generated from generateName.
# * On update uid, creationTimestamp, the deletion fields and generation come from the stored object. generation grows by one when
#   the kind tracks it and the object changed outside metadata and status. A uid that contradicts the stored one is 409.
#   managedFields are not handled here but after all hooks (`mooring.registry.write.serversideapply`).
# * Names follow the kind's rule. Label keys, annotation keys and finalizers are qualified names; a finalizer without a domain
#   must be a standard one; annotations have at most 256 KiB together.
# * Owner references are complete, at most one of them is the controller, and an Event owns nothing.
# * No finalizer may be added to an object that is being deleted.
# * All of it must be fast, because it runs on every write.

MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all annotation keys and values together; kube-apiserver's limit."""

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
STANDARD_FINALIZERS = frozenset({"kubernetes", ORPHAN, FOREGROUND})
"""Finalizers that need no domain."""

_DROPPED_ON_CREATE = (
    "selfLink",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
_KEPT_ON_UPDATE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def prepare_meta_for_create(
    obj: Obj, kind: Kind, namespace: str, uid: str, now: datetime, entropy: Callable[[int], bytes]
) -> None:
    """Fill in the metadata of a new object, in place. `namespace` is the request's; `uid` is a new one.

    Raises BadRequestError when the body has another namespace, or a resourceVersion.
    """
    meta = obj.setdefault("metadata", {})
    if meta.pop("resourceVersion", ""):
        raise BadRequestError("resourceVersion should not be set on objects to be created")
    if not kind.resource.namespaced:
        meta.pop("namespace", None)
    elif meta.setdefault("namespace", namespace) != namespace:
        raise BadRequestError("the namespace of the provided object does not match the namespace sent on the request")
    for name in _DROPPED_ON_CREATE:
        meta.pop(name, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generate_name(meta["generateName"], entropy)
    meta["uid"] = uid
    meta["creationTimestamp"] = rfc3339(now)
    if kind.has_generation:
        meta["generation"] = 1


def prepare_meta_for_update(new: Obj, old: Obj, kind: Kind) -> None:
    """Reset in `new`, in place, the metadata that clients may not change.

    It runs after the kind's own hook, because generation depends on the fields that the hook reset. Raises ConflictError when
    `new` carries the uid of another object.
    """
    meta, old_meta = new.setdefault("metadata", {}), old["metadata"]
    if meta.get("uid") and meta["uid"] != old_meta.get("uid"):
        raise ConflictError.of(
            kind.resource.group,
            kind.resource.plural,
            old_meta["name"],
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old_meta.get('uid', '')}",
        )
    meta.pop("selfLink", None)
    meta.pop("managedFields", None)
    if kind.resource.namespaced:
        meta.setdefault("namespace", old_meta["namespace"])
    else:
        meta.pop("namespace", None)
    for name in _KEPT_ON_UPDATE:
        if name in old_meta:
            meta[name] = old_meta[name]
        else:
            meta.pop(name, None)
    if kind.has_generation and _generation_content(new) != _generation_content(old):
        meta["generation"] = old_meta.get("generation", 0) + 1


def _generation_content(obj: Obj) -> Obj:
    """Return the fields whose changes increase generation: all but metadata and status."""
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion", "metadata", "status")}


def validate_meta(obj: Obj, kind: Kind) -> list[FieldError]:
    """Validate the metadata of `obj`, on create and on update."""
    meta = obj["metadata"]
    errors: list[FieldError] = []
    if base := meta.get("generateName"):
        errors += [invalid("metadata.generateName", base, detail) for detail in kind.name_errors(_as_name(base))]
    if name := meta.get("name"):
        errors += [invalid("metadata.name", name, detail) for detail in kind.name_errors(name)]
    else:
        errors.append(required("metadata.name", "name or generateName is required"))
    if kind.resource.namespaced:
        if namespace := meta.get("namespace"):
            errors += [invalid("metadata.namespace", namespace, detail) for detail in dns1123_label_errors(namespace)]
        else:
            errors.append(required("metadata.namespace"))
    if labels := meta.get("labels"):
        errors += label_errors(labels, "metadata.labels")
    if annotations := meta.get("annotations"):
        errors += _annotation_errors(annotations)
    if references := meta.get("ownerReferences"):
        errors += _owner_reference_errors(references)
    if finalizers := meta.get("finalizers"):
        errors += _finalizer_list_errors(finalizers, kind.finalizers_need_domain)
    return errors


def validate_meta_update(new: Obj, old: Obj, kind: Kind) -> list[FieldError]:
    """Validate the changes of metadata from `old` to `new`, in addition to `validate_meta`.

    `new` must still carry the client's resourceVersion, because kinds without unconditional update require one.
    """
    meta, old_meta = new["metadata"], old["metadata"]
    errors: list[FieldError] = []
    if "deletionTimestamp" in old_meta and (finalizers := meta.get("finalizers")):
        added = sorted(set(finalizers).difference(old_meta.get("finalizers", ())))
        if added:
            listed = ", ".join(f'"{finalizer}"' for finalizer in added)
            errors.append(
                forbidden(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, "
                    f"found new finalizers []string{{{listed}}}",
                )
            )
    if not kind.allow_unconditional_update and not meta.get("resourceVersion"):
        errors.append(invalid("metadata.resourceVersion", 0, "must be specified for an update"))
    errors += [
        invalid(f"metadata.{name}", meta.get(name), "field is immutable")
        for name in _IMMUTABLE
        if meta.get(name) != old_meta.get(name)
    ]
    return errors


def _as_name(base: str) -> str:
    """Replace a final dash of a generateName by a letter: it is valid there, because a suffix follows."""
    return base[:-2] + "a" if len(base) > 1 and base.endswith("-") else base


def label_errors(labels: dict[str, str], path: str) -> list[FieldError]:
    """Validate label keys and values."""
    errors: list[FieldError] = []
    for key, value in labels.items():
        errors += [invalid(path, key, detail) for detail in qualified_name_errors(key)]
        errors += [invalid(path, value, detail) for detail in label_value_errors(value)]
        if len(errors) > MAX_FIELD_ERRORS:
            # Further errors are not reported, and a body may hold a hundred thousand labels.
            break
    return errors


def _annotation_errors(annotations: dict[str, str]) -> list[FieldError]:
    path = "metadata.annotations"
    errors = [invalid(path, key, detail) for key in annotations for detail in qualified_name_errors(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        errors.append(too_long(path, MAX_ANNOTATIONS))
    return errors


def _owner_reference_errors(references: list[Obj]) -> list[FieldError]:
    path = "metadata.ownerReferences"
    errors: list[FieldError] = []
    controller, reported = "", False
    for index, reference in enumerate(references):
        at = f"{path}[{index}]"
        if not reference.get("apiVersion"):
            errors.append(invalid(f"{at}.apiVersion", "", "version must not be empty"))
        errors += [
            invalid(f"{at}.{name}", "", "must not be empty")
            for name in ("kind", "name", "uid")
            if not reference.get(name)
        ]
        if reference.get("apiVersion") == "v1" and reference.get("kind") == "Event":
            errors.append(invalid(at, reference, "/v1, Kind=Event is disallowed from being an owner"))
        if reference.get("controller"):
            this = f"{reference.get('kind', '')}/{reference.get('name', '')}"
            if not controller:
                controller = this
            elif not reported:
                # Once, because each such error quotes all references, which may be megabytes.
                reported = True
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {this}"
                )
                errors.append(invalid(path, references, detail))
    return errors


def finalizer_errors(finalizer: str, path: str, needs_domain: bool = True) -> list[FieldError]:
    """Validate one finalizer: a qualified name, with a domain unless it is a standard one."""
    errors = [invalid(path, finalizer, detail) for detail in qualified_name_errors(finalizer)]
    if needs_domain and not errors and "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
        errors.append(invalid(path, finalizer, "name is neither a standard finalizer name nor is it fully qualified"))
    return errors


def _finalizer_list_errors(finalizers: list[str], needs_domain: bool) -> list[FieldError]:
    path = "metadata.finalizers"
    errors = [
        error
        for index, finalizer in enumerate(finalizers)
        for error in finalizer_errors(finalizer, f"{path}[{index}]", needs_domain)
    ]
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        errors.append(invalid(path, finalizers, f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set"))
    return errors


# Validation of a label selector that an object has (LabelSelector of meta/v1).


def label_selector_errors(selector: Obj, path: str) -> list[FieldError]:
    """Return the errors of a selector at `path`, in kube-apiserver's words."""
    errors = label_errors(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or []):
        at = f"{path}.matchExpressions[{index}]"
        key, operator, values = (
            expression.get("key", ""),
            expression.get("operator", ""),
            expression.get("values") or [],
        )
        if operator in ("In", "NotIn"):
            if not values:
                errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden(f"{at}.values", detail))
        else:
            errors.append(invalid(f"{at}.operator", operator, "not a valid selector operator"))
        errors += [invalid(f"{at}.key", key, detail) for detail in qualified_name_errors(key)]
        errors += [
            invalid(f"{at}.values[{place}]", value, detail)
            for place, value in enumerate(values)
            for detail in label_value_errors(value)
        ]
    return errors


# Validation of conditions of the common form (Condition of meta/v1).
#
# Rules kept here (k8s.io/apimachinery, `ValidateConditions`; wording as kube-apiserver's): types are label names and unique, the
# status is True, False or Unknown, reason and lastTransitionTime are set, and reason and message have a greatest length.

STATUSES = ("False", "True", "Unknown")
MAX_REASON = 1 << 10
"""Bytes of a reason."""
MAX_MESSAGE = 32 << 10
"""Bytes of a message."""
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_NOT_A_REASON = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or "
    "'_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or "
    "'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)


def condition_list_errors(conditions: list[Obj], path: str) -> list[FieldError]:
    """Return the errors of the conditions at `path`."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        kind = condition.get("type", "")
        if kind in seen:
            errors.append(duplicate(f"{path}[{index}].type", kind))
        seen.add(kind)
        errors += _condition_errors(condition, f"{path}[{index}]")
    return errors


def _condition_errors(condition: Obj, at: str) -> Iterator[FieldError]:
    kind, status = condition.get("type", ""), condition.get("status", "")
    for detail in qualified_name_errors(kind):
        yield invalid(f"{at}.type", kind, detail)
    if status not in STATUSES:
        yield not_supported(f"{at}.status", status, STATUSES)
    generation = condition.get("observedGeneration", 0)
    if generation < 0:
        yield invalid(f"{at}.observedGeneration", generation, "must be greater than or equal to zero")
    if not condition.get("lastTransitionTime"):
        yield required(f"{at}.lastTransitionTime")
    yield from _reason_errors(condition.get("reason", ""), f"{at}.reason")
    if len(condition.get("message", "").encode("utf-8", "surrogatepass")) > MAX_MESSAGE:
        yield too_long(f"{at}.message", MAX_MESSAGE)


def _reason_errors(reason: str, path: str) -> Iterator[FieldError]:
    if not reason:
        yield required(path)
        return
    if not _REASON.fullmatch(reason):
        yield invalid(path, reason, _NOT_A_REASON)
    if len(reason.encode("utf-8", "surrogatepass")) > MAX_REASON:
        yield too_long(path, MAX_REASON)


# Print columns and cell words that many kinds share (docs/protocol/tables.md).
#
# Rules kept here: cells never fail; a missing value prints a word in angle brackets.

UNKNOWN = "<unknown>"
NONE = "<none>"


def spec_of(obj: Obj) -> Obj:
    spec: Obj = obj.get("spec") or {}
    return spec


def name_cell(obj: Obj, now: datetime) -> str:
    text: str = obj["metadata"].get("name", "")
    return text


NAME = Column("Name", name_cell, format="name", description="Name of the object, unique within its namespace.")
CREATED_AT = Column(
    "Created At",
    lambda obj, now: obj["metadata"].get("creationTimestamp"),
    type="date",
    description="When the object was created.",
)
