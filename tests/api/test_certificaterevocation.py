"""CertificateRevocation: what an entry may say, its name, and that an update never revokes less."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.mooring.certificaterevocation import KIND, entry_name, known_serial_numbers
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
KEY = "sha256:" + "ab" * 32
CA = "sha256:" + "cd" * 32


def entry(name: str = "", **spec: Any) -> Obj:
    spec = {"reason": "unspecified", **spec}
    return {"metadata": {"name": name or entry_name(spec)}, "spec": spec}


def errors(obj: Obj) -> list[str]:
    return [f"{error.field}: {error.detail}" for error in KIND.validate(obj)]


@pytest.mark.parametrize(
    ("obj", "name"),
    [
        pytest.param(entry(serialNumber="1f"), "serial-1f", id="a serial number of any issuer"),
        pytest.param(entry(serialNumber="f" * 40, issuer=CA), f"serial-{'f' * 40}-{'cd' * 32}", id="of one issuer"),
        pytest.param(entry(publicKey=KEY), f"key-{'ab' * 32}", id="a key"),
        pytest.param(entry(nodeName="n1.example", issuedBefore="2026-01-01T00:00:00Z"), "node-n1.example", id="a node"),
        pytest.param(entry(nodeName="a" * 63, reason="keyCompromise", message="stolen in Kraków"), None, id="a reason"),
    ],
)
def test_a_valid_entry(obj: Obj, name: str | None) -> None:
    assert errors(obj) == []
    assert name is None or obj["metadata"]["name"] == name


NO_SERIAL = "spec.serialNumber: must be a hexadecimal number in lower case without leading zeros, of at most 40 digits"
NO_FINGERPRINT = "must be sha256: and 64 hexadecimal digits in lower case"


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param({"metadata": {}}, ["spec: must have one of serialNumber, publicKey, nodeName"], id="no spec"),
        pytest.param(
            entry(serialNumber="1", publicKey=KEY, nodeName="n1"),
            [f"spec.{field}: may not be set beside serialNumber" for field in ("publicKey", "nodeName")],
            id="three subjects",
        ),
        pytest.param(entry(serialNumber="0F"), [NO_SERIAL], id="a serial number with a leading zero"),
        pytest.param(entry(serialNumber="F"), [NO_SERIAL], id="in upper case"),
        pytest.param(entry(serialNumber="f" * 41), [NO_SERIAL], id="too long"),
        pytest.param(entry(serialNumber="1\n"), [NO_SERIAL], id="with a line break"),
        pytest.param(entry(serialNumber="1", issuer="x"), [f"spec.issuer: {NO_FINGERPRINT}"], id="a strange issuer"),
        pytest.param(
            entry(publicKey=KEY, issuer=CA), ["spec.issuer: may only be set beside serialNumber"], id="issuer of a key"
        ),
        pytest.param(entry(publicKey=KEY.upper()), [f"spec.publicKey: {NO_FINGERPRINT}"], id="a strange key"),
        pytest.param(
            entry(publicKey=KEY, issuedBefore="2026-01-01T00:00:00Z"),
            ["spec.issuedBefore: may only be set beside nodeName"],
            id="a moment for a key",
        ),
        pytest.param(
            entry(nodeName="a" * 249),
            ["spec.nodeName: may not be more than 248 bytes"],
            id="a node name that is too long",
        ),
        pytest.param(
            entry(publicKey=KEY, message="x" * 513),
            ["spec.message: may not be more than 512 bytes"],
            id="a long message",
        ),
        pytest.param(
            entry(publicKey=KEY, message="a\nb"),
            ["spec.message: must be one line of printable characters"],
            id="a message that would forge a log line",
        ),
        pytest.param(
            entry(serialNumber="1", knownSerialNumbers=["2"]),
            ["spec.knownSerialNumbers: is set by the server, to at most 64 of a key or node"],
            id="serial numbers beside a serial number",
        ),
        pytest.param(
            entry(publicKey=KEY, knownSerialNumbers=["2"] * 65),
            ["spec.knownSerialNumbers: is set by the server, to at most 64 of a key or node"],
            id="too many serial numbers",
        ),
        pytest.param(
            entry(publicKey=KEY, knownSerialNumbers=["2", "x"]),
            ["spec.knownSerialNumbers: must be hexadecimal numbers; they are set by the server"],
            id="a serial number that is none",
        ),
        pytest.param(
            entry("x", publicKey=KEY),
            [f'metadata.name: must be "key-{"ab" * 32}", which follows from what is revoked'],
            id="another name",
        ),
    ],
)
def test_an_invalid_entry(obj: Obj, expected: list[str]) -> None:
    assert errors(obj) == expected


@pytest.mark.parametrize("reason", ["", "removeFromCRL", "bored"])
def test_a_reason_is_one_of_rfc_5280(reason: str) -> None:
    assert [error.field for error in KIND.validate(entry(publicKey=KEY, reason=reason))] == ["spec.reason"]


def test_a_node_name_is_a_dns_name() -> None:
    assert [error.field for error in KIND.validate(entry(nodeName="N1"))] == ["spec.nodeName"]


def created(obj: Obj) -> Obj:
    KIND.default(obj)
    KIND.prepare_for_create(obj, Change(UserInfo("admin"), NOW))
    return obj


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        pytest.param({"publicKey": KEY}, {"publicKey": KEY, "reason": "unspecified"}, id="no reason is unspecified"),
        pytest.param(
            {"nodeName": "n1", "reason": "superseded"},
            {"nodeName": "n1", "reason": "superseded", "issuedBefore": "2026-01-01T12:00:01Z"},
            id="a node without a moment: the end of this second",
        ),
        pytest.param(
            {"nodeName": "n1", "reason": "superseded", "issuedBefore": "2025-01-01T00:00:00Z"},
            {"nodeName": "n1", "reason": "superseded", "issuedBefore": "2025-01-01T00:00:00Z"},
            id="a moment that is given",
        ),
    ],
)
def test_defaults(given: Obj, stored: Obj) -> None:
    assert created({"metadata": {}, "spec": given})["spec"] == stored


def test_nothing_is_filled_into_an_object_without_a_spec() -> None:
    assert created({"metadata": {}}) == {"metadata": {}}


EARLY, LATE = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        pytest.param({"publicKey": KEY}, {"publicKey": KEY, "reason": "superseded", "message": "why"}, [], id="why"),
        pytest.param({"publicKey": KEY}, {"publicKey": CA}, ["publicKey"], id="what is revoked"),
        pytest.param({"publicKey": KEY}, {"nodeName": "n"}, ["publicKey", "nodeName"], id="its kind"),
        pytest.param({"serialNumber": "1"}, {"serialNumber": "1", "issuer": CA}, ["issuer"], id="less by its issuer"),
        pytest.param({"issuedBefore": EARLY}, {"issuedBefore": LATE}, [], id="more certificates of a node"),
        pytest.param({"issuedBefore": LATE}, {"issuedBefore": EARLY}, ["issuedBefore"], id="fewer certificates"),
        pytest.param({"expiresAt": EARLY}, {"expiresAt": LATE}, [], id="for longer"),
        pytest.param({"expiresAt": EARLY}, {}, [], id="for ever"),
        pytest.param({"expiresAt": LATE}, {"expiresAt": EARLY}, ["expiresAt"], id="for a shorter time"),
        pytest.param({}, {"expiresAt": EARLY}, ["expiresAt"], id="no longer for ever"),
    ],
)
def test_an_update_never_revokes_less(old: Obj, new: Obj, fields: list[str]) -> None:
    found = KIND.validate_update({"metadata": {}, "spec": new}, {"metadata": {}, "spec": old})
    assert [error.field for error in found] == [f"spec.{field}" for field in fields]


def test_serial_numbers_that_an_entry_revokes() -> None:
    assert known_serial_numbers({"serialNumber": "1f"}) == ["1f"]
    assert known_serial_numbers({"publicKey": KEY, "knownSerialNumbers": ["1", "2"]}) == ["1", "2"]
    assert known_serial_numbers({"nodeName": "n1"}) == []


def test_to_revoke_a_node_again_moves_the_moment() -> None:
    new = entry(nodeName="n1")
    KIND.prepare_for_update(new, entry(nodeName="n1", issuedBefore=EARLY), Change(UserInfo("admin"), NOW))
    assert new["spec"]["issuedBefore"] == "2026-01-01T12:00:01Z"


@pytest.mark.parametrize(
    ("spec", "cells"),
    [
        pytest.param({"serialNumber": "1f"}, ["serial 1f", "unspecified", "<never>", "<none>", "<none>"], id="serial"),
        pytest.param(
            {"publicKey": KEY, "reason": "keyCompromise", "expiresAt": EARLY, "message": "lost"},
            [f"key {KEY}", "keyCompromise", "<passed>", "<none>", "lost"],
            id="key",
        ),
        pytest.param(
            {"nodeName": "n1", "issuedBefore": EARLY, "expiresAt": "2026-01-02T13:00:00Z"},
            ["node n1", "unspecified", "24h", EARLY, "<none>"],
            id="node",
        ),
        pytest.param({}, ["<none>", "unspecified", "<never>", "<none>", "<none>"], id="nothing"),
    ],
)
def test_print_columns(spec: Obj, cells: list[str]) -> None:
    obj = {"metadata": {"name": "x"}, "spec": spec}
    moment = NOW + timedelta(hours=0)
    shown = [column.cell(obj, moment) for column in KIND.resource.columns if column.name not in ("Name", "Age")]
    assert shown == cells
