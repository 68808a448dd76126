"""Schemas that every Kubernetes API shares: object and list metadata, Status, DeleteOptions, selectors, conditions.

Rules kept here:
* Data only, declared once; field numbers are those of k8s.io/apimachinery `pkg/apis/meta/v1/generated.proto`
  (docs/protocol/negotiation.md#field-numbers), patch keys those of docs/protocol/patches.md#strategic-merge: ownerReferences merge
  by uid, finalizers merge as a set.
* `kind` and `apiVersion` of a top-level object are not fields of its `Message`: in protobuf they are in the envelope, and
  the codec and OpenAPI add them to JSON.
* `pointer` marks what Go declares as a pointer or without omitempty: there a zero differs from an absent field.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
"""Prefix of the OpenAPI names of these schemas."""

STRINGS = ListOf(Scalar.STRING)
STRING_MAP = MapOf(Scalar.STRING)

OWNER_REFERENCE = Message(
    META + "OwnerReference",
    (
        Field("apiVersion", 5, Scalar.STRING, "API version of the owner.", required=True),
        Field("kind", 1, Scalar.STRING, "Kind of the owner.", required=True),
        Field("name", 3, Scalar.STRING, "Name of the owner.", required=True),
        Field("uid", 4, Scalar.STRING, "UID of the owner.", required=True),
        Field("controller", 6, Scalar.BOOL, "True when this owner is the managing controller.", pointer=True),
        Field(
            "blockOwnerDeletion",
            7,
            Scalar.BOOL,
            "True when foreground deletion of the owner waits until this reference is gone.",
            pointer=True,
        ),
    ),
    "Names an object of the same namespace, or a cluster-scoped one, that owns this object.",
    atomic=True,
)

MANAGED_FIELDS_ENTRY = Message(
    META + "ManagedFieldsEntry",
    (
        Field("manager", 1, Scalar.STRING, "Who manages these fields."),
        Field("operation", 2, Scalar.STRING, "How they were set: Apply or Update."),
        Field("apiVersion", 3, Scalar.STRING, "Version of the resource that the field set refers to."),
        Field("time", 4, Scalar.TIME, "When the entry was added or last changed.", pointer=True),
        Field("fieldsType", 6, Scalar.STRING, "Format of the field set; only FieldsV1 exists."),
        Field("fieldsV1", 7, Scalar.FIELDS_V1, "The field set in the FieldsV1 format.", pointer=True),
        Field("subresource", 8, Scalar.STRING, "Subresource through which the fields were set, if any."),
    ),
    "Which manager owns which fields, and since when.",
)

OBJECT_META = Message(
    META + "ObjectMeta",
    (
        Field("name", 1, Scalar.STRING, "Unique within a namespace; cannot be changed."),
        Field("generateName", 2, Scalar.STRING, "Prefix from which the server makes a unique name when name is empty."),
        Field("namespace", 3, Scalar.STRING, "The space within which the name is unique; cannot be changed."),
        Field("selfLink", 4, Scalar.STRING, "Legacy field that the server no longer fills in."),
        Field("uid", 5, Scalar.STRING, "Unique in time and space; set by the server."),
        Field("resourceVersion", 6, Scalar.STRING, "Opaque version of the object, for concurrency and watches."),
        Field("generation", 7, Scalar.INT64, "Sequence number of the desired state; set by the server."),
        Field("creationTimestamp", 8, Scalar.TIME, "When the server created the object.", always=False),
        Field("deletionTimestamp", 9, Scalar.TIME, "When deletion was asked for; set by the server.", pointer=True),
        Field(
            "deletionGracePeriodSeconds",
            10,
            Scalar.INT64,
            "Seconds the object may take to end before it is removed; set with deletionTimestamp.",
            pointer=True,
        ),
        Field("labels", 11, STRING_MAP, "Keys and values by which objects are organised and selected."),
        Field("annotations", 12, STRING_MAP, "Unstructured keys and values kept for tools; not queryable."),
        Field(
            "ownerReferences",
            13,
            ListOf(OWNER_REFERENCE),
            "Owners of this object: it is deleted when all of them are gone.",
            patch="merge",
            patch_key="uid",
            list_keys=("uid",),
        ),
        Field(
            "finalizers",
            14,
            STRINGS,
            "The object is removed only when this list is empty.",
            patch="merge",
            list_set=True,
        ),
        Field(
            "managedFields",
            17,
            ListOf(MANAGED_FIELDS_ENTRY),
            "Which manager set which fields.",
            pointer=True,  # a client that sends an empty list resets it
        ),
    ),
    "What every stored object has, whatever its kind.",
)

SHARD_INFO = Message(
    META + "ShardInfo",
    (Field("selector", 1, Scalar.STRING, "The shard selector of the request.", required=True),),
    "Says that a list is one shard of the whole.",
)

LIST_META = Message(
    META + "ListMeta",
    (
        Field("selfLink", 1, Scalar.STRING, "Legacy field that the server no longer fills in."),
        Field("resourceVersion", 2, Scalar.STRING, "Version of the snapshot that was listed."),
        Field("continue", 3, Scalar.STRING, "Opaque token for the next chunk; absent when this was the last one."),
        Field(
            "remainingItemCount",
            4,
            Scalar.INT64,
            "How many items are left, when that is known.",
            pointer=True,
        ),
        Field("shardInfo", 5, SHARD_INFO, "Set when the list is one shard of the whole.", pointer=True),
    ),
    "What every list has.",
)

PRECONDITIONS = Message(
    META + "Preconditions",
    (
        Field("uid", 1, Scalar.STRING, "Act only on the object with this UID.", pointer=True),
        Field("resourceVersion", 2, Scalar.STRING, "Act only on this version of the object.", pointer=True),
    ),
    "What must hold before the operation is carried out.",
)

DELETE_OPTIONS = Message(
    META + "DeleteOptions",
    (
        Field(
            "gracePeriodSeconds", 1, Scalar.INT64, "Seconds before the object is deleted; 0 means now.", pointer=True
        ),
        Field("preconditions", 2, PRECONDITIONS, "Must hold, otherwise the answer is 409 Conflict.", pointer=True),
        Field("orphanDependents", 3, Scalar.BOOL, "Deprecated: use propagationPolicy.", pointer=True),
        Field(
            "propagationPolicy",
            4,
            Scalar.STRING,
            "What happens to dependents: Orphan, Background or Foreground.",
            pointer=True,
        ),
        Field("dryRun", 5, STRINGS, "All: run every stage but change nothing."),
        Field(
            "ignoreStoreReadErrorWithClusterBreakingPotential",
            6,
            Scalar.BOOL,
            "Delete even an object that cannot be read from storage.",
            pointer=True,
        ),
    ),
    "How an object is to be deleted.",
)

STATUS_CAUSE = Message(
    META + "StatusCause",
    (
        Field("reason", 1, Scalar.STRING, "Machine-readable cause."),
        Field("message", 2, Scalar.STRING, "The cause in words."),
        Field("field", 3, Scalar.STRING, "The field that caused the error, as a path from the object's root."),
    ),
    "One of the causes of a failure.",
)

STATUS_DETAILS = Message(
    META + "StatusDetails",
    (
        Field("name", 1, Scalar.STRING, "Name of the object concerned."),
        Field("group", 2, Scalar.STRING, "API group of the object concerned."),
        Field("kind", 3, Scalar.STRING, "Kind or resource of the object concerned."),
        Field("causes", 4, ListOf(STATUS_CAUSE), "What led to the failure."),
        Field("retryAfterSeconds", 5, Scalar.INT32, "Seconds to wait before trying again."),
        Field("uid", 6, Scalar.STRING, "UID of the object concerned."),
    ),
    "More about a failure; every field is optional.",
)

STATUS = Message(
    META + "Status",
    (
        Field("metadata", 1, LIST_META, "List metadata; holds a continue token in some 410 answers."),
        Field("status", 2, Scalar.STRING, "Success or Failure."),
        Field("message", 3, Scalar.STRING, "What happened, in words."),
        Field("reason", 4, Scalar.STRING, "Machine-readable reason."),
        Field("details", 5, STATUS_DETAILS, "More about the reason.", pointer=True),
        Field("code", 6, Scalar.INT32, "HTTP status code."),
    ),
    "The answer to a call that returns no other object.",
)


def _requirement(name: str, what: str) -> Message:
    return Message(
        META + name,
        (
            Field("key", 1, Scalar.STRING, f"The {what} that the requirement is about.", required=True),
            Field("operator", 2, Scalar.STRING, "In, NotIn, Exists or DoesNotExist.", required=True),
            Field("values", 3, STRINGS, "Not empty for In and NotIn, empty for the others."),
        ),
        f"A {what}, an operator and the values it relates to.",
    )


LABEL_SELECTOR_REQUIREMENT = _requirement("LabelSelectorRequirement", "label key")
FIELD_SELECTOR_REQUIREMENT = _requirement("FieldSelectorRequirement", "field selector key")

LABEL_SELECTOR = Message(
    META + "LabelSelector",
    (
        Field("matchLabels", 1, STRING_MAP, "Labels that must have exactly these values."),
        Field("matchExpressions", 2, ListOf(LABEL_SELECTOR_REQUIREMENT), "Requirements that must all hold."),
    ),
    "Selects by labels; an empty selector matches everything.",
    atomic=True,
)

CONDITION = Message(
    META + "Condition",
    (
        Field("type", 1, Scalar.STRING, "What the condition is about, in CamelCase.", required=True),
        Field("status", 2, Scalar.STRING, "True, False or Unknown.", required=True),
        Field("observedGeneration", 3, Scalar.INT64, "The metadata.generation that the condition was computed from."),
        Field("lastTransitionTime", 4, Scalar.TIME, "When the status last changed.", required=True),
        Field("reason", 5, Scalar.STRING, "Machine-readable reason of the last change.", required=True),
        Field("message", 6, Scalar.STRING, "The last change in words; may be empty.", required=True, pointer=True),
    ),
    "One aspect of the current state of an object.",
)

PARTIAL_OBJECT_METADATA = Message(
    META + "PartialObjectMetadata",
    (Field("metadata", 1, OBJECT_META, "Metadata of the object."),),
    "Any object, reduced to its metadata.",
)

PARTIAL_OBJECT_METADATA_LIST = Message(
    META + "PartialObjectMetadataList",
    (
        Field("metadata", 1, LIST_META, "List metadata."),
        Field("items", 2, ListOf(PARTIAL_OBJECT_METADATA), "The objects.", required=True, pointer=True),
    ),
    "A list of objects reduced to their metadata.",
)


def list_of(schema: Message) -> Message:
    """The list message of a kind: every `<Kind>List` of Kubernetes is `{ListMeta metadata = 1; repeated <Kind> items = 2}`."""
    return Message(
        schema.name + "List",
        (
            Field("metadata", 1, LIST_META, "Standard list metadata."),
            Field("items", 2, ListOf(schema), "The objects of the list.", required=True, pointer=True),
        ),
        f"A list of {schema.name.rsplit('.', 1)[-1]} objects.",
    )
