"""OwnerReferencesPermissionEnforcement: who may change the owners of an object."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import certificaterevocation
from mooring.api.paths import GROUP
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Authorize, Decision, Ruling
from mooring.errors import ConfigError, ForbiddenError
from mooring.identity import UserInfo
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION, build
from tests.support.registryroom import kind, open_room

JANE = UserInfo("jane")
NODE = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u2"}
BLOCKING = {**MAP, "blockOwnerDeletion": True}


def granting(grants: Collection[str]) -> Authorize:
    """Return an authorizer of `<verb> <resource>[/<subresource>][ <name>]`; a grant without a name is for all names."""

    def authorize(attributes: Attributes) -> Decision:
        resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
        wanted = f"{attributes.verb} {resource}"
        allowed = wanted in grants or f"{wanted} {attributes.name}" in grants
        return Decision(Ruling.ALLOW) if allowed else Decision(Ruling.NO_OPINION, "no rule")

    return authorize


def obj(*owners: Obj) -> Obj:
    return {"metadata": {"name": "s", "namespace": "a", "ownerReferences": list(owners)}}


def admit(
    old: Obj | None, new: Obj | None, grants: Collection[str], plural: str = "secrets", subresource: str = ""
) -> None:
    ADMISSION["OwnerReferencesPermissionEnforcement"]().admit(
        AdmissionRequest(
            operation="CREATE" if old is None else "UPDATE" if new is not None else "DELETE",
            kind=BY_PLURAL[plural],
            namespace="a",
            name="s",
            new=new,
            old=old,
            change=Change(JANE, None),  # type: ignore[arg-type]  # no plugin reads the time
            views={},
            authorize=granting(grants),
            subresource=subresource,
        )
    )


@pytest.mark.parametrize(
    ("old", "new", "grants", "more"),
    [
        pytest.param(None, obj(NODE), [], {}, id="a new object has any owner"),
        pytest.param(obj(NODE), obj(NODE), [], {}, id="an update that leaves the owners alone"),
        pytest.param(obj(NODE), None, [], {}, id="a delete"),
        pytest.param(obj(), obj(NODE), ["delete secrets s"], {}, id="who may delete the object"),
        pytest.param(obj(NODE), obj(), ["delete secrets"], {}, id="removes an owner, too"),
        pytest.param(None, obj(BLOCKING), [], {}, id="a new object blocks the deletion of its owner"),
        pytest.param(obj(MAP), obj(BLOCKING), ["delete secrets"], {}, id="an owner that it blocks from now on"),
        pytest.param(
            obj(), obj(NODE), [], {"plural": "pods", "subresource": "status"}, id="the status of a Pod"
        ),
    ],
)  # fmt: skip
def test_what_is_allowed(old: Obj | None, new: Obj | None, grants: list[str], more: dict[str, str]) -> None:
    admit(old, new, grants, **more)


UNDELETABLE = "cannot set an ownerRef on a resource you can't delete: no rule"


@pytest.mark.parametrize(
    ("old", "new", "grants", "why"),
    [
        pytest.param(obj(), obj(NODE), ["delete secrets other"], UNDELETABLE, id="an owner that is added"),
        pytest.param(obj(NODE), obj(), [], UNDELETABLE, id="an owner that is removed"),
        pytest.param(obj(NODE), obj(MAP), [], UNDELETABLE, id="an owner that is replaced"),
        pytest.param(obj(MAP), obj(BLOCKING), [], UNDELETABLE, id="an owner that it blocks from now on"),
    ],
)  # fmt: skip
def test_what_is_refused(old: Obj | None, new: Obj, grants: list[str], why: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        admit(old, new, grants)
    assert why in caught.value.message


def test_the_check_cannot_be_turned_off() -> None:
    with pytest.raises(ConfigError, match="OwnerReferencesPermissionEnforcement"):
        build(("OwnerReferencesPermissionEnforcement",))


def test_a_right_to_patch_a_revocation_does_not_delete_it() -> None:
    """The owner is refused, and the collector does not look at the kind."""

    def may_patch(attributes: Attributes) -> Decision:
        return Decision(Ruling.NO_OPINION if attributes.verb == "delete" else Ruling.ALLOW, "no rule")

    async def body() -> None:
        async with open_room(authorize=may_patch) as room:
            entry = {"metadata": {"name": "node-n1"}, "spec": {"nodeName": "n1", "reason": "keyCompromise"}}
            await room.create(certificaterevocation.PLURAL, entry)
            patch = {"metadata": {"ownerReferences": [NODE]}}
            with pytest.raises(ForbiddenError, match="resource you can't delete"):
                await room.patch(certificaterevocation.PLURAL, "node-n1", patch, user=JANE)

    asyncio.run(body())
    trust = [row for row in BY_PLURAL.values() if row.resource.group == GROUP]
    assert kind(certificaterevocation.PLURAL) in trust
    assert not any(row.garbage_collected for row in trust)
