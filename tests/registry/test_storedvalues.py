"""Read what a real kube-apiserver 1.36 stored (recorded in tests/vectors/storage), and lose nothing that is unknown here."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.api.events import KIND as EVENTS_EVENT
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.codec.protobuf import decode_envelope, encode_envelope
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import InternalServerError, StorageError
from mooring.registry.cache.events import PartlyKnown, Stored, encoded
from mooring.registry.cache.keys import Keys
from mooring.storage.contract import Entry
from tests.support.registryroom import Room, in_room, kind

RECORDED = json.loads((Path(__file__).parent.parent / "vectors" / "storage" / "kube-apiserver.json").read_text())
VALUES = {key: base64.b64decode(value) for key, value in RECORDED["values"].items()}
KEYS = Keys(tuple(BY_PLURAL.values()))
SECRET = "/registry/secrets/layout/every"


def read(key: str, value: bytes) -> Stored | None:
    return KEYS.stored(Entry(key, value, 7, 5))


def _nothing(obj: Obj) -> None:
    return None


def _drop_template_types(obj: Obj) -> None:
    for template in obj["spec"]["volumeClaimTemplates"]:
        del template["kind"], template["apiVersion"]


def _drop_old_fields(obj: Obj) -> None:
    assert (obj["spec"].pop("pkixPublicKey"), obj["spec"].pop("proofOfPossession")) == (None, None)


DEFAULTED: dict[str, Callable[[Obj], object]] = {
    "/registry/jobs/layout/every": lambda obj: obj["metadata"].pop("labels"),
    "/registry/persistentvolumeclaims/layout/every": lambda obj: obj["status"].pop("phase"),
    "/registry/podcertificaterequests/layout/every": _drop_old_fields,
    "/registry/statefulsets/layout/every": _drop_template_types,
}
"""Fields that kube-apiserver has not stored and sets on each read, null included (docs/protocol/storage.md#values)."""


@pytest.mark.parametrize("key", RECORDED["objects"])
def test_an_object_that_kube_apiserver_stored_reads_as_kube_apiserver_shows_it(key: str) -> None:
    stored = read(key, VALUES[key])
    assert stored is not None
    assert not stored.is_partly_known
    shown = deep_copy(RECORDED["objects"][key])
    shown["metadata"]["resourceVersion"] = "7"
    DEFAULTED.get(key, _nothing)(shown)
    assert stored.obj == shown
    again = encoded(stored.kind.resource, stored.obj)
    assert Stored.of(stored.kind, stored.namespace, stored.name, 7, again).raw == stored.raw


def test_every_kind_that_kube_apiserver_has_is_recorded() -> None:
    recorded = {stored.kind.resource.plural for key in RECORDED["objects"] if (stored := read(key, VALUES[key]))}
    kubernetes = {plural for plural, one in BY_PLURAL.items() if one.resource.group != "mooring.dev"}
    assert kubernetes - recorded == set()


@pytest.mark.parametrize("key", sorted(VALUES.keys() - RECORDED["objects"].keys()))
def test_what_is_no_object_of_a_kind_is_left_alone(key: str) -> None:
    assert read(key, VALUES[key]) is None


def with_unknown_field(value: bytes, field: bytes) -> bytes:
    """Return a protobuf value whose message ends with one more field."""
    api_version, name, message = decode_envelope(value)
    return encode_envelope(api_version, name, message + field)


UNKNOWN_TEXT, UNKNOWN_ZERO = b"\xba\x3e\x03new", b"\xb8\x3e\x00"
"""Field 999: a text, and the number 0."""


def test_an_unknown_field_is_noticed_unless_it_is_zero() -> None:
    zero = read(SECRET, with_unknown_field(VALUES[SECRET], UNKNOWN_ZERO))
    text = read(SECRET, with_unknown_field(VALUES[SECRET], UNKNOWN_TEXT))
    assert zero is not None
    assert text is not None
    assert not zero.is_partly_known
    assert isinstance(text, PartlyKnown)
    assert text.obj == zero.obj


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"k8s\0\xff", "unexpected EOF", id="a broken envelope"),
        pytest.param(encode_envelope("v1", "Secret", b"\x0a\xff"), "unexpected EOF", id="a broken message"),
        pytest.param(encode_envelope("v9", "Secret", b""), "it is no Secret of v1", id="another version"),
        pytest.param(encode_envelope("v1", "ConfigMap", b""), "it is no Secret of v1", id="another kind"),
        pytest.param(encode_envelope("v1", "Secret", b""), "it has no metadata", id="an empty message"),
        pytest.param(b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}', "no Secret", id="JSON of another kind"),
        pytest.param(b'{"apiVersion":"v1","kind":"Secret","metadata":"a"}', "no metadata", id="JSON with another metadata"),
        pytest.param(b'{"apiVersion":"v1","kind":"Secret","metadata":{"ownerReferences":3}}', "type", id="JSON of another type"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_object_of_the_kind_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(StorageError, match=reason):
        read(SECRET, value)


def test_an_event_stored_in_the_form_of_the_events_group_is_read_in_the_core_form() -> None:
    key = "/registry/events/layout/every.2"
    recorded = read(key, VALUES[key])
    assert recorded is not None
    stored = read(key, encoded(EVENTS_EVENT.resource, EVENTS_EVENT.from_storage(recorded.obj)))
    assert stored is not None
    assert stored.kind is kind("events")
    assert stored.obj["involvedObject"] == recorded.obj["involvedObject"]
    assert stored.obj["apiVersion"] == "v1"


# -- updates -----------------------------------------------------------------------------------------------------------


async def in_namespace(room: Room, value: bytes) -> None:
    await room.create("namespaces", {"metadata": {"name": "layout"}})
    await room.storage.create(SECRET, value)


@in_room
async def test_an_update_of_an_object_from_kube_apiserver_is_stored_as_json(room: Room) -> None:
    await in_namespace(room, VALUES[SECRET])
    await room.patch("secrets", "every", {"data": {"two": "AA=="}}, "layout")
    entry = await room.storage.get(SECRET)
    assert entry is not None
    kept = json.loads(entry.value)
    before = RECORDED["objects"][SECRET]
    assert kept["data"] == {**before["data"], "two": "AA=="}
    assert kept["metadata"]["uid"] == before["metadata"]["uid"]


def json_with(**fields: Any) -> bytes:
    obj: Obj = json.loads(json.dumps(RECORDED["objects"][SECRET]))
    for name, value in fields.items():
        if name == "metadata":
            obj["metadata"].update(value)
        else:
            obj[name] = value
    obj["metadata"].pop("resourceVersion", None)
    return encoded(kind("secrets").resource, obj)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(with_unknown_field(VALUES[SECRET], UNKNOWN_TEXT), id="protobuf"),
        pytest.param(json_with(newField={"a": 1}), id="JSON"),
        pytest.param(json_with(metadata={"ownerReferences": [{"uid": "u", "newField": 1}]}), id="JSON, deeper"),
    ],
)
@in_room
async def test_an_update_that_would_lose_unknown_fields_is_refused(room: Room, value: bytes) -> None:
    await in_namespace(room, value)
    assert (await room.get("secrets", "every", "layout")).obj["type"] == "example.com/kind"
    with pytest.raises(InternalServerError, match="fields that this server does not know"):
        await room.patch("secrets", "every", {"data": {"two": "AA=="}}, "layout")
    entry = await room.storage.get(SECRET)
    assert entry is not None
    assert entry.value == value
    await room.delete("secrets", "every", "layout", options=DeleteOptions())
    assert await room.storage.get(SECRET) is None


@in_room
async def test_finalizers_of_an_object_with_unknown_fields_can_be_removed(room: Room) -> None:
    await in_namespace(room, json_with(newField=1, metadata={"finalizers": ["example.com/held"]}))
    await room.delete("secrets", "every", "layout", options=DeleteOptions())
    await room.patch("secrets", "every", {"metadata": {"finalizers": None}}, "layout")
    assert await room.storage.get(SECRET) is None
