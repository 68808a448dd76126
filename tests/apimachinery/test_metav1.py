"""The shared messages: their numbers are unique and those of Kubernetes.

Source: docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery import metav1
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.metav1 import META
from mooring.apimachinery.schema import Message, Obj, message

MESSAGES = [
    message(META + name)
    for name in (
        *(
            "ObjectMeta",
            "ListMeta",
            "ShardInfo",
            "OwnerReference",
            "ManagedFieldsEntry",
            "DeleteOptions",
            "Preconditions",
        ),
        *(
            "Status",
            "StatusDetails",
            "StatusCause",
            "LabelSelector",
            "LabelSelectorRequirement",
            "FieldSelectorRequirement",
        ),
        *("Condition", "PartialObjectMetadata", "PartialObjectMetadataList"),
    )
]


@pytest.mark.parametrize("schema", MESSAGES, ids=lambda schema: schema.name)
def test_names_and_numbers_are_unique_and_everything_is_documented(schema: Message) -> None:
    assert len(schema.by_name) == len({field.number for field in schema.fields}) == len(schema.fields)
    assert schema.doc.endswith(".")
    assert all(field.doc.endswith(".") for field in schema.fields)


@pytest.mark.parametrize(
    ("schema", "numbers"),
    [
        (
            metav1.OBJECT_META,
            "name1 generateName2 namespace3 selfLink4 uid5 resourceVersion6 generation7 creationTimestamp8 "
            "deletionTimestamp9 deletionGracePeriodSeconds10 labels11 annotations12 ownerReferences13 finalizers14 "
            "managedFields17",
        ),
        (metav1.LIST_META, "selfLink1 resourceVersion2 continue3 remainingItemCount4 shardInfo5"),
        (message(META + "OwnerReference"), "kind1 name3 uid4 apiVersion5 controller6 blockOwnerDeletion7"),
        (
            message(META + "ManagedFieldsEntry"),
            "manager1 operation2 apiVersion3 time4 fieldsType6 fieldsV17 subresource8",
        ),
        (
            metav1.DELETE_OPTIONS,
            "gracePeriodSeconds1 preconditions2 orphanDependents3 propagationPolicy4 dryRun5 "
            "ignoreStoreReadErrorWithClusterBreakingPotential6",
        ),
        (message(META + "Preconditions"), "uid1 resourceVersion2"),
        (metav1.STATUS, "metadata1 status2 message3 reason4 details5 code6"),
        (message(META + "StatusDetails"), "name1 group2 kind3 causes4 retryAfterSeconds5 uid6"),
        (message(META + "StatusCause"), "reason1 message2 field3"),
        (message(META + "LabelSelector"), "matchLabels1 matchExpressions2"),
        (message(META + "LabelSelectorRequirement"), "key1 operator2 values3"),
        (message(META + "FieldSelectorRequirement"), "key1 operator2 values3"),
        (message(META + "Condition"), "type1 status2 observedGeneration3 lastTransitionTime4 reason5 message6"),
    ],
    ids=lambda value: value.name if isinstance(value, Message) else "",
)
def test_field_numbers(schema: Message, numbers: str) -> None:
    """Source: k8s.io/apimachinery pkg/apis/meta/v1/generated.proto."""
    found = sorted(schema.fields, key=lambda field: field.number)
    assert " ".join(f"{field.name}{field.number}" for field in found) == numbers


def test_owner_references_merge_by_uid_and_finalizers_as_a_set() -> None:
    owners, finalizers = metav1.OBJECT_META.by_name["ownerReferences"], metav1.OBJECT_META.by_name["finalizers"]
    assert (owners.patch, owners.patch_key) == ("merge", "uid")
    assert (finalizers.patch, finalizers.patch_key, finalizers.list_set) == ("merge", "", True)
    assert metav1.OBJECT_META.by_name["managedFields"].patch == "atomic"


def test_an_empty_list_of_managers_is_not_an_absent_one() -> None:
    obj: Obj = {"managedFields": [], "finalizers": []}
    unmarshal(obj, metav1.OBJECT_META)
    assert obj == {"managedFields": []}, (
        "a client ends the record with it (docs/protocol/server-side-apply.md#managed-fields)"
    )


def test_lists_of_a_kind() -> None:
    listed = metav1.list_of(message(META + "Condition"))
    assert listed.name == META + "ConditionList"
    assert [(field.name, field.number) for field in listed.fields] == [("metadata", 1), ("items", 2)]
