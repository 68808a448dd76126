"""NodeIdentity: bounded fields in one form each, and printed columns of the newest certificate."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.api.kind import Change
from mooring.api.mooring.nodeidentity import KIND, MAX_BOOTS, MAX_CERTIFIED, MAX_KEYS, MAX_USES, keys_of
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo

FINGERPRINT = "sha256:" + "0123456789abcdef" * 4
END = "2027-01-01T00:00:00Z"


def key(**fields: object) -> Obj:
    return {"publicKey": FINGERPRINT, "notAfter": END, **fields}


def identity(*keys: Obj, **fields: object) -> Obj:
    return {"metadata": {"name": "n1"}, "spec": {"keys": list(keys), **fields}}


@pytest.mark.parametrize(
    ("obj", "paths"),
    [
        pytest.param(identity(), [], id="a name without an owner"),
        pytest.param(identity(key()), [], id="a key without a certificate number"),
        pytest.param(identity(key(serialNumber="0a" * 20, issuer=FINGERPRINT)), [], id="20 octets of serial number"),
        pytest.param(identity(key(serialNumber="0a" * 21)), ["keys[0].serialNumber"], id="21 octets of serial number"),
        pytest.param(identity(key(serialNumber="0A")), ["keys[0].serialNumber"], id="upper-case hex"),
        pytest.param(identity(key(publicKey="")), ["keys[0].publicKey"], id="an entry without a key"),
        pytest.param(identity(key(publicKey="sha256:ab")), ["keys[0].publicKey"], id="a short fingerprint"),
        pytest.param(identity(key(issuer="ca")), ["keys[0].issuer"], id="an issuer by name"),
        pytest.param(identity(key(notAfter=None)), ["keys[0].notAfter"], id="a key without an end"),
        pytest.param(identity(*[key()] * MAX_KEYS), [], id="as many keys as an identity holds"),
        pytest.param(identity(*[key()] * (MAX_KEYS + 1)), ["keys"], id="one more"),
        pytest.param(identity(certifiedNames=[{"name": "a", "notAfter": END}] * MAX_CERTIFIED), [], id="names"),
        pytest.param(
            identity(certifiedNames=[{"name": "a", "notAfter": END}] * (MAX_CERTIFIED + 1)),
            ["certifiedNames"],
            id="too many",
        ),
        pytest.param(
            identity(certifiedNames=[{}, {"name": "a" * 254, "notAfter": END}]),
            ["certifiedNames[0].name", "certifiedNames[0].notAfter", "certifiedNames[1].name"],
            id="names without an end, or too long",
        ),
        pytest.param(identity(nodeUID="u" * 64, token="abcdef"), [], id="a deleted Node, and a token"),
        pytest.param(identity(nodeUID="u" * 65), ["nodeUID"], id="a long uid"),
        pytest.param(identity(token="abcdef.0123456789abcdef"), ["token"], id="a whole token, which is a secret"),
        pytest.param(identity(silenceSeconds=1800, endReason="Silent"), [], id="a machine that fell silent"),
        pytest.param(identity(silenceSeconds=-1), ["silenceSeconds"], id="a silence below zero"),
        pytest.param(identity(silenceSeconds=366 * 86400), ["silenceSeconds"], id="a silence of more than a year"),
        pytest.param(identity(endReason="Other"), ["endReason"], id="an end that no server writes"),
        pytest.param(identity(sourceAddress="2001:db8::1"), [], id="an IPv6 address"),
        pytest.param(identity(sourceAddress="n1.example"), ["sourceAddress"], id="a name instead of an address"),
        pytest.param(identity(formerCertificate=FINGERPRINT), [], id="a certificate from before the identity"),
        pytest.param(identity(formerCertificate="ab"), ["formerCertificate"], id="a certificate's short fingerprint"),
    ],
)
def test_validation(obj: Obj, paths: list[str]) -> None:
    assert [error.field for error in KIND.validate(obj)] == [f"spec.{path}" for path in paths]


@pytest.mark.parametrize(
    ("obj", "cells"),
    [
        pytest.param(
            identity(key(), key(publicKey="sha256:" + "f" * 64, serialNumber="ab"), token="abcdef"),
            ["n1", "sha256:" + "f" * 16, "ab", END, "abcdef", "<unknown>", "<none>", "<none>"],
            id="the newest key",
        ),
        pytest.param(
            identity(nodeUID="u1", sourceAddress="192.0.2.1"),
            ["n1", "<none>", "<none>", "<none>", "<none>", "<unknown>", "192.0.2.1", "u1"],
            id="no key",
        ),
    ],
)
def test_printed_columns(obj: Obj, cells: list[str]) -> None:
    assert [column.cell(obj, datetime(2026, 1, 1, tzinfo=UTC)) for column in KIND.resource.columns] == cells


def test_keys_of_an_object_that_another_server_wrote_without_any() -> None:
    assert keys_of({"metadata": {"name": "n1"}}) == []


USE = {"certificate": FINGERPRINT, "publicKey": FINGERPRINT, "firstUsed": END}
BOOT = {"id": "b", "since": END}


@pytest.mark.parametrize(
    ("status", "paths"),
    [
        pytest.param({}, [], id="nothing was observed"),
        pytest.param(
            {"certificates": [USE | {"sourceAddress": "2001:db8::1"}], "boots": [BOOT]}, [], id="observations"
        ),
        pytest.param({"certificates": [USE] * (MAX_USES + 1)}, ["certificates"], id="too many certificates"),
        pytest.param({"boots": [BOOT] * (MAX_BOOTS + 1)}, ["boots"], id="too many boots"),
        pytest.param(
            {"certificates": [{}], "boots": [{}]},
            [f"certificates[0].{name}" for name in ("certificate", "publicKey", "firstUsed")]
            + ["boots[0].id", "boots[0].since"],
            id="empty entries",
        ),
        pytest.param(
            {"certificates": [USE | {"parent": "p", "returnedFrom": "here", "returnedAfter": "x"}]},
            [f"certificates[0].{name}" for name in ("parent", "returnedAfter", "returnedFrom")],
            id="texts that are no fingerprints and no addresses",
        ),
        pytest.param({"boots": [BOOT | {"id": "b" * 65}]}, ["boots[0].id"], id="a long boot id"),
        pytest.param(
            {"conditions": [{"type": "T", "status": "Yes", "reason": "R", "lastTransitionTime": END}]},
            ["conditions[0].status"],
            id="a condition that is neither true nor false",
        ),
    ],
)
def test_validation_of_the_status(status: Obj, paths: list[str]) -> None:
    assert [error.field for error in KIND.validate({**identity(), "status": status})] == [
        f"status.{path}" for path in paths
    ]


def test_the_status_is_written_apart_from_the_spec() -> None:
    stored = {**identity(key()), "status": {"boots": [BOOT]}}
    change = Change(UserInfo("u"), datetime(2026, 1, 1, tzinfo=UTC))
    new, changed = {**identity(key()), "status": {"boots": []}}, {**identity(), "status": {"boots": []}}
    KIND.prepare_for_create(new, change)
    assert "status" not in new
    KIND.prepare_for_update(changed, stored, change)
    assert changed["status"] == stored["status"]
    assert KIND.subresources is not None
    by_status = {**identity(), "status": {"boots": []}}
    KIND.subresources["status"].prepare_for_update(by_status, stored, change)
    assert by_status["spec"] == stored["spec"]
