"""AuthorizedMachine: bounded fields in one form each, one use, and print columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.mooring.authorizedmachine import KIND, MAX_CIDRS, MAX_SERVING_NAMES, used_by
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "sha256:" + "0123456789abcdef" * 4
CODE = "ed25519:" + "A" * 43 + "="


def machine(use: Obj | None = None, **spec: Any) -> Obj:
    obj: Obj = {"metadata": {"name": "m1"}, "spec": {"nodeName": "n1", **spec}}
    return {**obj, "status": {"usedBy": use}} if use is not None else obj


def use(key: str = KEY, **more: str) -> Obj:
    return {"publicKey": key, "nodeName": "n1", **more}


@pytest.mark.parametrize(
    ("obj", "paths"),
    [
        pytest.param(machine(), [], id="a name"),
        pytest.param(machine(nodeName="rack-7-*.example"), [], id="a pattern"),
        pytest.param(machine(nodeName=""), ["spec.nodeName"], id="no name"),
        pytest.param(machine(nodeName="N1"), ["spec.nodeName"], id="no node name"),
        pytest.param(machine(keyFingerprint=KEY, codeVerifier=CODE), [], id="a key and a code"),
        pytest.param(machine(keyFingerprint=KEY.upper()), ["spec.keyFingerprint"], id="upper-case hex"),
        pytest.param(machine(codeVerifier="secret"), ["spec.codeVerifier"], id="a code instead of its verifier"),
        pytest.param(machine(allowedCIDRs=["10.1.0.0/16", "fd00::/64"]), [], id="networks"),
        pytest.param(machine(allowedCIDRs=["10.1.2.3/16"]), ["spec.allowedCIDRs[0]"], id="bits of a host"),
        pytest.param(machine(allowedCIDRs=["10.0.0.0/8,11.0.0.0/8"]), ["spec.allowedCIDRs[0]"], id="two in one"),
        pytest.param(machine(allowedCIDRs=["10.0.0.0/8"] * (MAX_CIDRS + 1)), ["spec.allowedCIDRs"], id="too many"),
        pytest.param(machine(servingNames=["vault.example.com", "192.0.2.9", "2001:db8::1"]), [], id="names to serve"),
        pytest.param(
            machine(servingNames=["a"] * (MAX_SERVING_NAMES + 1)), ["spec.servingNames"], id="too many of them"
        ),
        pytest.param(machine(nodeName="n*", servingNames=["a"]), ["spec.servingNames"], id="names of many machines"),
        pytest.param(
            machine(servingNames=["A", "a.", "*.a", "::ffff:192.0.2.9", "2002::1", "192.0.2.9"]),
            [f"spec.servingNames[{index}]" for index in range(5)],
            id="names in another form",
        ),
        pytest.param(machine(requestAnnotations={"rack": "7"}), [], id="a fact"),
        pytest.param(
            machine(requestAnnotations={"rack": "", "a b": "1"}),
            ["spec.requestAnnotations[rack]", "spec.requestAnnotations[a b]"],
            id="facts that no request says",
        ),
        pytest.param(
            machine(requestAnnotations={f"n{number}": "1" for number in range(17)}),
            ["spec.requestAnnotations"],
            id="many facts",
        ),
        pytest.param(machine(use()), [], id="a used entry"),
        pytest.param(machine(use("key")), ["status.usedBy.publicKey"], id="a use by no key"),
        pytest.param(machine(use(request="r" * 513)), ["status.usedBy.request"], id="a long name of a request"),
    ],
)
def test_validation(obj: Obj, paths: list[str]) -> None:
    assert [error.field for error in KIND.validate(obj)] == paths


@pytest.mark.parametrize(
    ("new", "old", "paths"),
    [
        pytest.param(machine(use()), machine(), [], id="the first use"),
        pytest.param(machine(use()), machine(use()), [], id="no change"),
        pytest.param(machine(use("sha256:" + "f" * 64)), machine(use()), ["status.usedBy"], id="another use"),
        pytest.param(machine(use(request="later")), machine(use()), [], id="another use of the same key"),
        pytest.param(machine(use(nodeName="n9")), machine(use()), ["status.usedBy"], id="for another node"),
        pytest.param(machine(), machine(use()), ["status.usedBy"], id="a use that is removed"),
        pytest.param(machine(nodeName="n2"), machine(), ["spec"], id="another name"),
    ],
)
def test_an_entry_belongs_to_the_key_that_used_it(new: Obj, old: Obj, paths: list[str]) -> None:
    assert [error.field for error in KIND.validate_update(new, old)] == paths


def test_a_new_entry_is_unused() -> None:
    obj = machine(use())
    KIND.prepare_for_create(obj, Change(UserInfo("admin"), NOW))
    assert used_by(obj) is None


@pytest.mark.parametrize(
    ("obj", "cells"),
    [
        pytest.param(machine(), ["m1", "n1", "none", "<none>", "<unknown>", "<none>"], id="a name"),
        pytest.param(
            machine(use(), keyFingerprint=KEY, codeVerifier=CODE, allowedCIDRs=["10.0.0.0/8"]),
            ["m1", "n1", "key,code", "sha256:0123456789abcdef", "<unknown>", "10.0.0.0/8"],
            id="a used entry with everything",
        ),
    ],
)
def test_columns(obj: Obj, cells: list[str]) -> None:
    assert [column.cell(obj, NOW) for column in KIND.resource.columns] == cells
