"""OpenAPI v3: one document for each group version, and the definitions of objects that v2 uses, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mooring.apimachinery.discovery import digest, groups, resources_of, versions
from mooring.apimachinery.metav1 import DELETE_OPTIONS, META, STATUS, list_of
from mooring.apimachinery.negotiation import JSON, PROTOBUF, YAML
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type

# OpenAPI definitions of objects, derived from their schemas.
#
# Source: docs/protocol/openapi.md, docs/protocol/patches.md#strategic-merge.
#
# Rules kept here: each message is one component under its Kubernetes definition name; top-level objects also have kind, apiVersion
# and `x-kubernetes-group-version-kind`; lists have their merge strategy (`x-kubernetes-list-type`, `-list-map-keys`,
# `-patch-strategy`, `-patch-merge-key`). Quantities, times and similar scalars have definitions of their own.

REF = "#/components/schemas/"

_SCALARS: dict[Scalar, Obj] = {
    Scalar.STRING: {"type": "string"},
    Scalar.BOOL: {"type": "boolean"},
    Scalar.INT32: {"type": "integer", "format": "int32"},
    Scalar.INT64: {"type": "integer", "format": "int64"},
    Scalar.DOUBLE: {"type": "number", "format": "double"},
    Scalar.BYTES: {"type": "string", "format": "byte"},
    Scalar.STRING_LIST: {"type": "array", "items": {"type": "string"}},
    Scalar.RAW: {"type": "object"},
}
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_NAMED: dict[Scalar, tuple[str, Obj]] = {
    Scalar.TIME: (
        _META + "Time",
        {"description": "A time as RFC 3339 writes it, to the second.", "type": "string", "format": "date-time"},
    ),
    Scalar.MICRO_TIME: (
        _META + "MicroTime",
        {"description": "A time as RFC 3339 writes it, to the microsecond.", "type": "string", "format": "date-time"},
    ),
    Scalar.QUANTITY: (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {
            "description": "A number with a suffix, such as 500m, 1.5, 2Gi or 1e3.",
            "oneOf": [{"type": "string"}, {"type": "number"}],
        },
    ),
    Scalar.INT_OR_STRING: (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {
            "description": "A whole number or a text, such as a port or its name.",
            "format": "int-or-string",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
    ),
    Scalar.FIELDS_V1: (
        _META + "FieldsV1",
        {"description": "A set of fields, as a tree of their names.", "type": "object"},
    ),
}
"""Scalars with definitions of their own, which `kubectl explain` names."""


class Schemas:
    """Collects the component schemas of one document, each once."""

    def __init__(self) -> None:
        self.components: Obj = {}

    def add_object(self, schema: Message, gvk: tuple[str, str, str]) -> Obj:
        """Add a top-level object with kind and apiVersion; return a reference to it."""
        group, version, kind = gvk
        component = self._message(schema)
        extra = {
            "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
            "kind": {"type": "string", "description": "Kind of this object, in CamelCase."},
        }
        component["properties"] = dict(sorted((extra | component["properties"]).items()))
        entry = {"group": group, "version": version, "kind": kind}
        known = component.setdefault("x-kubernetes-group-version-kind", [])
        if entry not in known:
            known.append(entry)
        return {"$ref": REF + schema.name}

    def _message(self, schema: Message) -> Obj:
        component: Obj | None = self.components.get(schema.name)
        if component is None:
            component = self.components[schema.name] = {"description": schema.doc, "type": "object", "properties": {}}
            component["properties"] = {
                field.name: self._field(field) for field in sorted(schema.fields, key=lambda field: field.name)
            }
            if required := sorted(field.name for field in schema.fields if field.required):
                component["required"] = required
            if schema.atomic:
                component["x-kubernetes-map-type"] = "atomic"
        return component

    def _field(self, field: Field) -> Obj:
        shape: Obj = self._type(field.type)
        if "$ref" in shape:
            shape = {"allOf": [shape]}
        shape = Obj({"description": field.doc}) | shape
        if field.enum:
            (shape["items"] if isinstance(field.type, ListOf) else shape)["enum"] = sorted(field.enum)
        if isinstance(field.type, ListOf):
            shape |= _list_extensions(field)
        elif field.patch == "replace":
            shape["x-kubernetes-patch-strategy"] = "replace"
        if field.map_atomic:
            shape["x-kubernetes-map-type"] = "atomic"
        return shape

    def _type(self, kind: Type) -> Obj:
        if isinstance(kind, Message):
            self._message(kind)
            return {"$ref": REF + kind.name}
        if isinstance(kind, ListOf):
            return {"type": "array", "items": self._type(kind.item)}
        if isinstance(kind, MapOf):
            return {"type": "object", "additionalProperties": self._type(kind.value)}
        if kind in _NAMED:
            name, shape = _NAMED[kind]
            self.components.setdefault(name, shape)
            return {"$ref": REF + name}
        return dict(_SCALARS[kind])


def _list_extensions(field: Field) -> Obj:
    extensions: Obj = {}
    if field.list_keys:
        extensions = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(field.list_keys)}
    elif field.list_set:
        extensions = {"x-kubernetes-list-type": "set"}
    elif field.patch == "atomic":
        extensions = {"x-kubernetes-list-type": "atomic"}
    if field.patch == "merge":
        extensions["x-kubernetes-patch-strategy"] = "merge"
        if field.patch_key:
            extensions["x-kubernetes-patch-merge-key"] = field.patch_key
    return extensions


# OpenAPI 3.0 documents, one per group version, derived from the resources.
#
# Source: docs/protocol/openapi.md.
#
# Rules kept here:
# * `kubectl create|apply --validate` looks for a PATCH operation of the kind with a `fieldValidation` parameter; `kubectl
#   explain` reads the schemas and `x-kubernetes-group-version-kind`. Both are generated for every resource.
# * The response of DELETE is a Status, or the object for resources with `returns_deleted`; that of deletecollection is a Status.
# * The index has a hash of the bytes of each document, so that clients can cache it without limit.
#
# Documents depend on the resources only: the server builds them once.

_PATCH = META + "Patch"
PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
"""Content types of PATCH (docs/protocol/patches.md#patch-types)."""
_MEDIA = (JSON, YAML, PROTOBUF)
_STREAMS = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")


def _query(name: str, kind: str, doc: str) -> Obj:
    return {"name": name, "in": "query", "description": doc, "schema": {"type": kind, "uniqueItems": True}}


_PRETTY = _query("pretty", "string", "Indent the answer; on by default for curl, Wget and browsers.")
_DRY_RUN = _query("dryRun", "string", "All: run every stage but store nothing.")
_FORCE = _query("force", "boolean", "Apply only: take over fields that another manager owns.")
_WRITE = (
    _DRY_RUN,
    _query("fieldManager", "string", "Name of the actor that makes the change, at most 128 printable characters."),
    _query("fieldValidation", "string", "What unknown and duplicate fields lead to: Ignore, Warn (default) or Strict."),
)
_SELECT = (
    _query("continue", "string", "Token of the previous chunk of the same list."),
    _query("fieldSelector", "string", "Only objects whose fields match."),
    _query("labelSelector", "string", "Only objects whose labels match."),
    _query("limit", "integer", "Objects in one answer at most; the rest follows with continue."),
    _query("resourceVersion", "string", "Which version of the collection is wanted."),
    _query("resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan."),
    _query("sendInitialEvents", "boolean", "Begin a watch with the current state, ended by a bookmark."),
    _query("timeoutSeconds", "integer", "End the call after this time, whatever happens."),
)
_LIST = (
    _query("allowWatchBookmarks", "boolean", "Send BOOKMARK events, which carry a resourceVersion only."),
    *_SELECT,
    _query("watch", "boolean", "Answer with a stream of changes instead of a list."),
)
_DELETE = (
    _DRY_RUN,
    _query("gracePeriodSeconds", "integer", "Seconds before the object is deleted; 0 means now."),
    _query(
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Delete even an object that cannot be read from storage.",
    ),
    _query("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    _query("propagationPolicy", "string", "What happens to dependents: Orphan, Background or Foreground."),
)


@dataclass(frozen=True, slots=True)
class _Action:
    """OpenAPI form of one verb: HTTP method, `x-kubernetes-action`, first word of its operationId, parameters, success codes."""

    method: str
    action: str
    word: str
    parameters: tuple[Obj, ...] = ()
    codes: tuple[str, ...] = ("200",)


_COLLECTION = {
    "list": _Action("get", "list", "list", _LIST),
    "create": _Action("post", "post", "create", _WRITE, ("200", "201", "202")),
    "deletecollection": _Action("delete", "deletecollection", "deleteCollection", (*_SELECT, *_DELETE)),
}
_ITEM = {
    "get": _Action("get", "get", "read"),
    "create": _Action("post", "post", "create", _WRITE, ("200", "201", "202")),
    "update": _Action("put", "put", "replace", _WRITE, ("200", "201")),
    "patch": _Action("patch", "patch", "patch", (*_WRITE, _FORCE), ("200", "201")),
    "delete": _Action("delete", "delete", "delete", _DELETE, ("200", "202")),
}
"""Verbs of one object. `create` is for subresources only (serviceaccounts/token)."""


_WATCH = {"watch": _Action("get", "watch", "watch", _LIST)}
_WATCH_LIST = {"watch": _Action("get", "watchlist", "watch", _LIST)}
WATCH_EVENT = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"
_STREAMED = frozenset({"list", "watch", "watchlist"})


@dataclass(frozen=True, slots=True)
class Document:
    """One document ready to serve, and its hash."""

    raw: bytes
    hash: str


def openapi_v3_documents(resources: Sequence[Resource]) -> dict[str, Document]:
    """Return the documents by their keys in the index: `api/v1`, `apis/<group>/<version>`."""
    documents = {}
    for group in groups(resources):
        for version in versions(resources, group):
            here = resources_of(resources, group, version)
            raw = msgspec.json.encode(openapi_v3_document(here))
            documents[here[0].prefix.lstrip("/")] = Document(raw, digest(raw))
    return documents


def index_of(documents: Mapping[str, Document]) -> Obj:
    """Return the index `/openapi/v3` with the URL of each document."""
    return {
        "paths": {
            key: {"serverRelativeURL": f"/openapi/v3/{key}?hash={document.hash}"}
            for key, document in sorted(documents.items())
        }
    }


def openapi_v3_document(resources: Sequence[Resource], *, old_watches: bool = False) -> Obj:
    """Return the document of one group version. `resources` are all of its resources, at least one.

    `old_watches`: with the deprecated paths below `/watch/`, from which a client that builds itself makes its watches.
    """
    schemas = Schemas()
    gv = (resources[0].group, resources[0].version)
    schemas.add_object(DELETE_OPTIONS, (*gv, "DeleteOptions"))
    schemas.add_object(STATUS, ("", "v1", "Status"))
    schemas.components[_PATCH] = {
        "description": "The body of a PATCH; its content type says what it means.",
        "type": "object",
    }
    paths: Obj = {}
    for resource in sorted(resources, key=lambda item: item.plural):
        paths |= _paths(resource, schemas)
        if old_watches and "watch" in resource.verbs:
            paths |= _watch_paths(resource, schemas)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Mooring", "version": resources[0].api_version},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {
                "BearerToken": {
                    "type": "apiKey",
                    "name": "authorization",
                    "in": "header",
                    "description": "Bearer token",
                }
            },
        },
    }


GVK = tuple[str, str, str]
"""Group, version, kind."""


@dataclass(frozen=True, slots=True)
class _ResourcePath:
    """One path of a resource: its request and response schemas, and the names of its operations."""

    gvk: GVK
    body: Obj
    listed: Obj
    deleted: Obj
    name: str
    parameters: tuple[Obj, ...]

    def item(self, verbs: Iterable[str], actions: Mapping[str, _Action]) -> Obj:
        """Return the path item: one operation for each served verb."""
        operations: Obj = {action.method: self._operation(action) for verb, action in actions.items() if verb in verbs}
        return operations | {"parameters": [*self.parameters, _PRETTY]}

    def _operation(self, action: _Action) -> Obj:
        group, version, kind = self.gvk
        tag = _camel(group.removesuffix(".k8s.io") or "core") + _camel(version)
        operation: Obj = {
            "tags": [tag[:1].lower() + tag[1:]],
            "description": f"{action.action} {kind}",
            "operationId": f"{action.word}{tag}{self.name}",
            "responses": {code: self._response(action) for code in action.codes},
            "x-kubernetes-action": action.action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        }
        operation["responses"]["401"] = {"description": "Unauthorized"}
        if action.parameters:  # kube-openapi leaves out an empty list, and takes a document with one for changed
            operation["parameters"] = list(action.parameters)
        if action.method == "patch":
            content = {media: {"schema": _reference(_PATCH)} for media in PATCH_TYPES}
            operation["requestBody"] = {"content": content, "required": True}
        elif action.method == "delete":
            operation["requestBody"] = {"content": {"*/*": {"schema": _reference(DELETE_OPTIONS.name)}}}
        elif action.method in ("post", "put"):
            operation["requestBody"] = {"content": {"*/*": {"schema": self.body}}, "required": True}
        return operation

    def _response(self, action: _Action) -> Obj:
        shape = self.body
        medias: tuple[str, ...] = _MEDIA
        if action.action in _STREAMED:
            shape, medias = self.listed, (*_MEDIA, *_STREAMS)
        elif action.action == "deletecollection":
            shape = _reference(STATUS.name)
        elif action.action == "delete":
            shape = self.deleted
        return {"description": "OK", "content": {media: {"schema": shape} for media in medias}}


def _reference(name: str) -> Obj:
    return {"$ref": REF + name}


def _camel(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in text.replace("-", ".").split("."))


def _paths(resource: Resource, schemas: Schemas) -> Obj:
    gvk = (resource.group, resource.version, resource.kind)
    body = schemas.add_object(resource.schema, gvk)
    listed = body
    if "list" in resource.verbs:
        listed = schemas.add_object(list_of(resource.schema), (*gvk[:2], resource.kind + "List"))
    deleted = body if resource.returns_deleted else _reference(STATUS.name)
    name = ("Namespaced" if resource.namespaced else "") + resource.kind
    namespace = "{namespace}" if resource.namespaced else ""
    in_namespace = (_path_parameter("namespace", "Namespace of the object."),) if resource.namespaced else ()
    at_name = (_path_parameter("name", f"Name of the {resource.kind}."), *in_namespace)

    paths = {
        resource.path(namespace): _ResourcePath(gvk, body, listed, deleted, name, in_namespace).item(
            resource.verbs, _COLLECTION
        ),
    }
    if resource.namespaced and "list" in resource.verbs:
        everywhere = _ResourcePath(gvk, body, listed, deleted, f"{resource.kind}ForAllNamespaces", ())
        paths[resource.path()] = everywhere.item(("list",), _COLLECTION)
    if "get" in resource.verbs:
        verbs = set(resource.verbs) - {"create"}
        paths[resource.path(namespace, "{name}")] = _ResourcePath(gvk, body, listed, deleted, name, at_name).item(
            verbs, _ITEM
        )
    for sub in resource.subresources:
        sub_gvk = _gvk_of(resource, sub)
        sub_body = schemas.add_object(sub.schema, sub_gvk) if sub.schema is not None else body
        place = _ResourcePath(sub_gvk, sub_body, listed, deleted, name + _camel(sub.name), at_name)
        paths[resource.path(namespace, "{name}", sub.name)] = place.item(sub.verbs, _ITEM)
    return paths


def _watch_paths(resource: Resource, schemas: Schemas) -> Obj:
    """Return the paths below `/watch/` of one resource."""
    schemas.components[WATCH_EVENT] = {
        "description": "One change of a watched collection.",
        "type": "object",
        "required": ["type", "object"],
        "properties": {
            "type": {"type": "string", "description": "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."},
            "object": {"type": "object", "description": "The object as it is now, or a Status."},
        },
    }
    event, gvk = _reference(WATCH_EVENT), (resource.group, resource.version, resource.kind)
    name = ("Namespaced" if resource.namespaced else "") + resource.kind
    namespace = "{namespace}" if resource.namespaced else ""
    in_namespace = (_path_parameter("namespace", "Namespace of the objects."),) if resource.namespaced else ()
    at_name = (_path_parameter("name", f"Name of the {resource.kind}."), *in_namespace)
    places = [
        (resource.path(namespace), f"{name}List", in_namespace, _WATCH_LIST),
        (resource.path(namespace, "{name}"), name, at_name, _WATCH),
    ]
    if resource.namespaced:
        places.append((resource.path(), f"{resource.kind}ListForAllNamespaces", (), _WATCH_LIST))
    return {
        f"{resource.prefix}/watch{path.removeprefix(resource.prefix)}": _ResourcePath(
            gvk, event, event, event, operation, parameters
        ).item(("watch",), actions)
        for path, operation, parameters, actions in places
    }


def _gvk_of(resource: Resource, sub: Subresource) -> GVK:
    if not sub.kind:
        return resource.group, resource.version, resource.kind
    return sub.group or resource.group, sub.version or resource.version, sub.kind


def _path_parameter(name: str, doc: str) -> Obj:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": doc,
        "schema": {"type": "string", "uniqueItems": True},
    }
