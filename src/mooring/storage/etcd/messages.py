"""Messages of etcd's API that the driver exchanges, declared by field number (etcd 3.4 API: rpc.proto, kv.proto, auth.proto).

Rules kept here: a message has the fields that the driver reads or writes; protobuf skips the others. Enumerations are declared as
int32, which has the same form on the wire. The classes are made by the protobuf runtime when this module is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "mooring.etcd"

EQUAL, VERSION, MOD_REVISION = 0, 0, 2
"""Compare.result; Compare.target."""
DELETED = 1
"""Event.type of a deletion."""
NOSPACE, CORRUPT = 1, 2
"""AlarmMember.alarm."""

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ResponseHeader": {"cluster_id": (1, "uint64"), "revision": (3, "int64"), "raft_term": (4, "uint64")},
    "KeyValue": {
        "key": (1, "bytes"), "create_revision": (2, "int64"), "mod_revision": (3, "int64"), "version": (4, "int64"),
        "value": (5, "bytes"),
    },
    "RangeRequest": {
        "key": (1, "bytes"), "range_end": (2, "bytes"), "limit": (3, "int64"), "revision": (4, "int64"),
        "keys_only": (8, "bool"), "count_only": (9, "bool"),
    },
    "RangeResponse": {
        "header": (1, "ResponseHeader"), "kvs": (2, "repeated KeyValue"), "more": (3, "bool"), "count": (4, "int64"),
    },
    "PutRequest": {"key": (1, "bytes"), "value": (2, "bytes"), "lease": (3, "int64")},
    "DeleteRangeRequest": {"key": (1, "bytes")},
    "RequestOp": {
        "request_range": (1, "RangeRequest"), "request_put": (2, "PutRequest"),
        "request_delete_range": (3, "DeleteRangeRequest"),
    },
    "ResponseOp": {"response_range": (1, "RangeResponse")},
    "Compare": {
        "result": (1, "int32"), "target": (2, "int32"), "key": (3, "bytes"), "version": (4, "int64"),
        "mod_revision": (6, "int64"),
    },
    "TxnRequest": {
        "compare": (1, "repeated Compare"), "success": (2, "repeated RequestOp"), "failure": (3, "repeated RequestOp"),
    },
    "TxnResponse": {
        "header": (1, "ResponseHeader"), "succeeded": (2, "bool"), "responses": (3, "repeated ResponseOp"),
    },
    "CompactionRequest": {"revision": (1, "int64")},
    "CompactionResponse": {"header": (1, "ResponseHeader")},
    "WatchCreateRequest": {
        "key": (1, "bytes"), "range_end": (2, "bytes"), "start_revision": (3, "int64"), "watch_id": (7, "int64"),
        "fragment": (8, "bool"),
    },
    "WatchCancelRequest": {"watch_id": (1, "int64")},
    "WatchProgressRequest": {},
    "WatchRequest": {
        "create_request": (1, "WatchCreateRequest"), "cancel_request": (2, "WatchCancelRequest"),
        "progress_request": (3, "WatchProgressRequest"),
    },
    "Event": {"type": (1, "int32"), "kv": (2, "KeyValue")},
    "WatchResponse": {
        "header": (1, "ResponseHeader"), "watch_id": (2, "int64"), "created": (3, "bool"), "canceled": (4, "bool"),
        "compact_revision": (5, "int64"), "cancel_reason": (6, "string"), "fragment": (7, "bool"),
        "events": (11, "repeated Event"),
    },
    "LeaseGrantRequest": {"TTL": (1, "int64")},
    "LeaseGrantResponse": {"header": (1, "ResponseHeader"), "ID": (2, "int64"), "TTL": (3, "int64")},
    "AuthenticateRequest": {"name": (1, "string"), "password": (2, "string")},
    "AuthenticateResponse": {"token": (2, "string")},
    "StatusRequest": {},
    "StatusResponse": {
        "header": (1, "ResponseHeader"), "version": (2, "string"), "dbSize": (3, "int64"), "leader": (4, "uint64"),
        "dbSizeInUse": (9, "int64"),
    },
    "AlarmRequest": {"action": (1, "int32")},
    "AlarmMember": {"memberID": (1, "uint64"), "alarm": (2, "int32")},
    "AlarmResponse": {"alarms": (2, "repeated AlarmMember")},
}  # fmt: skip


def _build() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    declared = descriptor_pb2.FileDescriptorProto(name="mooring/etcd.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = declared.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            repeated, _, kind = kind.rpartition(" ")
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _MESSAGES:
                message.field.add(
                    name=field_name, number=number, label=label, type=field.TYPE_MESSAGE, type_name=f".{PACKAGE}.{kind}"
                )
            else:
                message.field.add(
                    name=field_name, number=number, label=label, type=field.Type.Value(f"TYPE_{kind.upper()}")
                )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(declared)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


CLASSES = _build()
KeyValue: Any = CLASSES["KeyValue"]
RangeRequest: Any = CLASSES["RangeRequest"]
PutRequest: Any = CLASSES["PutRequest"]
DeleteRangeRequest: Any = CLASSES["DeleteRangeRequest"]
RequestOp: Any = CLASSES["RequestOp"]
Compare: Any = CLASSES["Compare"]
TxnRequest: Any = CLASSES["TxnRequest"]
CompactionRequest: Any = CLASSES["CompactionRequest"]
WatchCreateRequest: Any = CLASSES["WatchCreateRequest"]
WatchCancelRequest: Any = CLASSES["WatchCancelRequest"]
WatchProgressRequest: Any = CLASSES["WatchProgressRequest"]
WatchRequest: Any = CLASSES["WatchRequest"]
WatchResponse: Any = CLASSES["WatchResponse"]
LeaseGrantRequest: Any = CLASSES["LeaseGrantRequest"]
AuthenticateRequest: Any = CLASSES["AuthenticateRequest"]
StatusRequest: Any = CLASSES["StatusRequest"]
AlarmRequest: Any = CLASSES["AlarmRequest"]

METHODS: Mapping[str, tuple[str, str]] = {
    "/etcdserverpb.KV/Range": ("RangeRequest", "RangeResponse"),
    "/etcdserverpb.KV/Txn": ("TxnRequest", "TxnResponse"),
    "/etcdserverpb.KV/Compact": ("CompactionRequest", "CompactionResponse"),
    "/etcdserverpb.Lease/LeaseGrant": ("LeaseGrantRequest", "LeaseGrantResponse"),
    "/etcdserverpb.Auth/Authenticate": ("AuthenticateRequest", "AuthenticateResponse"),
    "/etcdserverpb.Maintenance/Status": ("StatusRequest", "StatusResponse"),
    "/etcdserverpb.Maintenance/Alarm": ("AlarmRequest", "AlarmResponse"),
}
"""Unary methods: request and response."""
RANGE, TXN, COMPACT, LEASE_GRANT, AUTHENTICATE, STATUS, ALARM = METHODS
WATCH = "/etcdserverpb.Watch/Watch"
