"""Schemas that every Kubernetes API shares: object and list metadata, Status, DeleteOptions.

Rules kept here: `data/api/io.k8s.apimachinery.pkg.apis.meta.v1.proto` has the fields, this file names those that code asks for.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, Message, message

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
"""Prefix of the OpenAPI names of these schemas."""

OBJECT_META = message(META + "ObjectMeta")
LIST_META = message(META + "ListMeta")
DELETE_OPTIONS = message(META + "DeleteOptions")
STATUS = message(META + "Status")
PARTIAL_OBJECT_METADATA = message(META + "PartialObjectMetadata")
PARTIAL_OBJECT_METADATA_LIST = message(META + "PartialObjectMetadataList")


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
