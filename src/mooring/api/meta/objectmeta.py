"""ObjectMeta of every kind: server-set fields on create and update, and validation.

Rules kept here (docs/protocol/objects.md; field paths and wording as kube-apiserver's):
* On create the server sets uid and creationTimestamp. Values of a client for them, for deletion fields, generation, selfLink or
  managedFields are dropped; a resourceVersion is refused. An empty name is generated from generateName.
* On update uid, creationTimestamp, the deletion fields and generation come from the stored object. generation grows by one when the
  kind tracks it and the object changed outside metadata and status. A uid that contradicts the stored one is 409. managedFields
  are not handled here but after all hooks (`mooring.registry.write.serversideapply`).
* Names follow the kind's rule. Label keys, annotation keys and finalizers are qualified names; a finalizer without a domain must be
  a standard one; annotations have at most 256 KiB together.
* Owner references are complete, at most one of them is the controller, and an Event owns nothing.
* No finalizer may be added to an object that is being deleted.
* All of it must be fast, because it runs on every write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.kind import Kind
from mooring.apimachinery.names import dns1123_label_errors, generate_name, label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import (
    MAX_FIELD_ERRORS,
    BadRequestError,
    ConflictError,
    FieldError,
    forbidden,
    invalid,
    required,
    too_long,
)

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
            break  # further errors are not reported, and a body may hold a hundred thousand labels
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
            elif not reported:  # once, because each such error quotes all references, which may be megabytes
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
