"""All controllers on a real registry: the state of a cluster after some time."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import APPROVED
from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, READ_ONLY
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.identity import BOOTSTRAPPERS, UserInfo
from mooring.pki.keys import generate_key
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.reconcile.loop import HELD_DELAY
from mooring.reconcile.registryapi import RegistryApi
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.discovery import clusterinfo
from tests.support.loops import CA, controllers, exists, running, until
from tests.support.manualclock import settle
from tests.support.registryroom import Room, in_room, masters_only, secret
from tests.support.testca import by_library

JOINER = UserInfo("system:bootstrap:abcdef", groups=(BOOTSTRAPPERS,))


async def start_token(room: Room, ttl: float) -> str:
    """Create cluster-info and a token that lives `ttl` seconds; return the key of its signature."""

    await room.create("configmaps", clusterinfo.config_map("https://192.0.2.1:6443", CA.certificate_pem), "kube-public")
    record = new_record(parse_token("abcdef.0123456789abcdef"), room.clock.now(), ttl=timedelta(seconds=ttl))
    await room.create("secrets", to_secret(record), "kube-system")
    return "jws-kubeconfig-abcdef"


def signed(room: Room, key: str) -> bool:
    found = room.registry.views["configmaps"].get("cluster-info", "kube-public")
    return found is not None and key in found["data"]


@in_room
async def test_a_token_is_signed_and_deleted_with_its_signature_after_the_clock_jumps(room: Room) -> None:
    key = await start_token(room, 3600)
    async with running(room, controllers()):
        await until(lambda: signed(room, key))
        await room.clock.advance(3599)
        assert signed(room, key)
        await room.clock.advance(1)
        await until(lambda: not signed(room, key))
        await until(lambda: not exists(room, "secrets", "bootstrap-token-abcdef", "kube-system"))


@in_room
async def test_a_signature_is_removed_at_expiry_without_the_cleaner(room: Room) -> None:
    key = await start_token(room, 3600)
    async with running(room, controllers("bootstrap-signer-controller")):
        await until(lambda: signed(room, key))
        await room.clock.advance(3600)
        await until(lambda: not signed(room, key))
        assert exists(room, "secrets", "bootstrap-token-abcdef", "kube-system")


@in_room
async def test_a_prolonged_token_stays(room: Room) -> None:
    key = await start_token(room, 3600)
    async with running(room, controllers()):
        await until(lambda: signed(room, key))
        longer = base64.b64encode(b"2026-01-03T00:00:00Z").decode()
        await room.patch("secrets", "bootstrap-token-abcdef", {"data": {"expiration": longer}}, "kube-system")
        await room.clock.advance(7200)
        assert signed(room, key)
        assert exists(room, "secrets", "bootstrap-token-abcdef", "kube-system")


@in_room
async def test_a_changed_kubeconfig_is_signed_anew(room: Room) -> None:
    key = await start_token(room, 3600)
    async with running(room, controllers("bootstrap-signer-controller")):
        await until(lambda: signed(room, key))
        before = (await room.get("configmaps", "cluster-info", "kube-public")).obj["data"][key]
        await room.patch("configmaps", "cluster-info", {"data": {"kubeconfig": "63a1"}}, "kube-public")
        views = room.registry.views["configmaps"]
        await until(lambda: (views.get("cluster-info", "kube-public") or {})["data"].get(key) != before)


def request(name: str, requester: str = "system:node:n1") -> Obj:
    pem = build_request(generate_key(), requester, ("system:nodes",))
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"],
    }
    return {"metadata": {"name": name}, "spec": spec}


def status(room: Room, name: str) -> Obj:
    found: Obj = (room.registry.views["certificatesigningrequests"].get(name) or {}).get("status") or {}
    return found


@in_room
async def test_an_allowed_request_is_approved_signed_and_deleted_after_an_hour(room: Room) -> None:
    async with running(room, controllers()):
        await room.create("certificatesigningrequests", request("join"))
        await until(lambda: "certificate" in status(room, "join"))
        (approved,) = status(room, "join")["conditions"]
        assert (approved["type"], approved["reason"]) == (APPROVED, "AutoApproved")
        assert approved["lastUpdateTime"] == "2026-01-02T03:04:05Z"
        (leaf,) = certificates(base64.b64decode(status(room, "join")["certificate"]))
        by_library(leaf).verify_directly_issued_by(by_library(CA.certificate))
        await room.clock.advance(3599)
        assert exists(room, "certificatesigningrequests", "join")
        await room.clock.advance(1)
        await until(lambda: not exists(room, "certificatesigningrequests", "join"))


@in_room
async def test_a_refused_request_waits_until_it_is_allowed(room: Room) -> None:
    may: list[str] = []

    class Granting(RegistryApi):
        async def allows(self, review: Obj) -> bool:
            return review["spec"]["resourceAttributes"]["subresource"] in may and await super().allows(
                {**review, "spec": {**review["spec"], "groups": ["system:masters"]}}
            )

    api = Granting(room.registry, masters_only, room.clock)
    token = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"}
    await room.create("secrets", token, "kube-system")
    async with running(room, controllers(), api):
        await room.create("certificatesigningrequests", request("join"), user=JOINER)
        await room.clock.advance(60)
        (held,) = status(room, "join")["conditions"]
        assert (held["type"], held["reason"]) == ("NeedsApproval", "NotGranted")
        may.append("nodeclient")
        await room.clock.advance(60)
        await until(lambda: "certificate" in status(room, "join"))


@in_room
async def test_many_joins_at_once_all_get_their_own_certificate(room: Room) -> None:
    async with running(room, controllers(), workers=16):
        for number in range(30):
            await room.create("certificatesigningrequests", request(f"j{number}", f"system:node:n{number}"))
        await until(lambda: all("certificate" in status(room, f"j{number}") for number in range(30)))
    serials = {
        certificates(base64.b64decode(status(room, f"j{number}")["certificate"]))[0].serial_number
        for number in range(30)
    }
    assert len(serials) == 30


# -- namespaces ----------------------------------------------------------------------------------------------------------


@in_room
async def test_every_namespace_gets_its_account_and_ca_and_keeps_them(room: Room) -> None:
    def complete(namespace: str) -> bool:
        return exists(room, "serviceaccounts", "default", namespace) and exists(
            room, "configmaps", "kube-root-ca.crt", namespace
        )

    async with running(room, controllers()):
        await until(lambda: complete("default"))
        await room.create("namespaces", {"metadata": {"name": "new"}})
        await until(lambda: complete("new"))
        await room.delete("serviceaccounts", "default", "new")
        await room.delete("configmaps", "kube-root-ca.crt", "new")
        await until(lambda: complete("new"))
        await room.patch("configmaps", "kube-root-ca.crt", {"data": {"ca.crt": "evil"}}, "new")
        views = room.registry.views["configmaps"]
        pem = CA.certificate_pem.decode()
        await until(lambda: (views.get("kube-root-ca.crt", "new") or {})["data"] == {"ca.crt": pem})


@in_room
async def test_a_deleted_namespace_is_removed_with_its_content(room: Room) -> None:
    async with running(room, controllers()):
        await room.create("namespaces", {"metadata": {"name": "going"}})
        for number in range(40):
            await room.create("secrets", secret(f"s{number}"), "going")
        await room.create("secrets", secret("stays"))
        await room.create("roles", {"metadata": {"name": "r"}, "rules": []}, "going")
        await until(lambda: exists(room, "serviceaccounts", "default", "going"))
        await room.delete("namespaces", "going")
        await until(lambda: not exists(room, "namespaces", "going"))
        assert await room.names("secrets") == ["stays"]
        for plural in ("roles", "serviceaccounts", "configmaps"):
            assert await room.names(plural, "going") == []
        await room.create("namespaces", {"metadata": {"name": "going"}})
        await until(lambda: exists(room, "serviceaccounts", "default", "going"), "its name can be used again")


@pytest.mark.parametrize(
    "kind", [kind for kind in READ_ONLY if kind.resource.namespaced], ids=lambda kind: kind.storage
)
@in_room
async def test_stored_objects_of_a_kind_that_is_only_read_go_with_their_namespace(room: Room, kind: Kind) -> None:
    plural, resource = kind.resource.plural, kind.resource
    async with running(room, controllers("namespace-controller")):
        await room.create("namespaces", {"metadata": {"name": "going"}})
        stored: Obj = {"apiVersion": resource.api_version, "kind": resource.kind}
        stored |= {"metadata": {"name": "x", "namespace": "going", "uid": "u"}}
        await room.storage.create(kind.key("going", "x"), json.dumps(stored).encode())
        await until(lambda: exists(room, plural, "x", "going"))
        await room.delete("namespaces", "going")
        await until(lambda: not exists(room, "namespaces", "going"))
        assert await room.names(plural, "going") == []


@in_room
async def test_content_with_finalizers_keeps_its_namespace_waiting(room: Room) -> None:
    async with running(room, controllers()):
        await room.create("namespaces", {"metadata": {"name": "going"}})
        await room.create("secrets", secret("held", metadata={"finalizers": ["example.com/f"]}), "going")
        await room.create("rolebindings", binding(), "going")
        await room.delete("namespaces", "going")

        def statuses() -> dict[str, Any]:
            found = room.registry.views["namespaces"].get("going") or {}
            conditions = found.get("status", {}).get("conditions", [])
            return {one["type"]: one["message"] for one in conditions if one["status"] == "True"}

        await until(lambda: bool(statuses()))
        assert statuses() == {
            "NamespaceContentRemaining": "Waiting for content to go: 1 secrets",
            "NamespaceFinalizersRemaining": "Waiting for finalizers: 1 example.com/f",
        }
        assert exists(room, "rolebindings", "b", "going"), "the right to finish is still there"
        await room.patch("secrets", "held", {"metadata": {"finalizers": None}}, "going")
        await until(lambda: not exists(room, "namespaces", "going"))


def binding() -> Obj:
    subject = {"kind": "User", "name": "finisher", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
    return {"metadata": {"name": "b"}, "subjects": [subject], "roleRef": reference}


# -- ownership -----------------------------------------------------------------------------------------------------------


async def owned(room: Room, block: bool = False) -> None:
    """Secret `owner`, Secrets `child…` it owns, Secret `grandchild` that `child0` owns."""
    owner = (await room.create("secrets", secret("owner"))).obj["metadata"]["uid"]
    for number in range(3):
        child = await room.create("secrets", secret(f"child{number}", metadata=references("owner", owner, block)))
        if not number:
            await room.create(
                "secrets", secret("grandchild", metadata=references("child0", child.obj["metadata"]["uid"]))
            )


def references(name: str, uid: str, block: bool = False) -> Obj:
    return {
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "name": name,
                "uid": uid,
                **({"blockOwnerDeletion": True} if block else {}),
            }
        ]
    }


def left(room: Room) -> list[str]:
    return [obj["metadata"]["name"] for obj in room.registry.views["secrets"].list("default")]


@pytest.mark.parametrize("propagation", ["", "Background", "Foreground"])
@pytest.mark.parametrize("block", [False, True], ids=["not blocking", "blocking"])
@in_room
async def test_dependents_of_all_generations_are_deleted_with_their_owner(
    room: Room, propagation: str, block: bool
) -> None:
    await owned(room, block)
    async with running(room, controllers()):
        await settle()
        await room.delete("secrets", "owner", options=DeleteOptions(propagation=propagation))
        await until(lambda: left(room) == [])


@in_room
async def test_in_the_foreground_a_blocking_dependent_is_deleted_before_its_owner(room: Room) -> None:
    await owned(room, block=True)
    gone: list[str] = []
    async with running(room, controllers()):
        watch = await room.watch("secrets", "default", lambda event: gone.append(str(event)))
        await room.delete("secrets", "owner", options=DeleteOptions(propagation="Foreground"))
        await until(lambda: left(room) == [])
        watch.close()
    deleted = [line.split("/")[-1].split("'")[0] for line in gone if "DELETED" in line]
    assert deleted.index("owner") > max(deleted.index(f"child{number}") for number in range(3))


@in_room
async def test_orphans_stay_and_lose_their_owner_reference(room: Room) -> None:
    await owned(room)
    async with running(room, controllers()):
        await room.delete("secrets", "owner", options=DeleteOptions(propagation="Orphan"))
        await until(lambda: "owner" not in left(room))
        await settle()
        assert left(room) == ["child0", "child1", "child2", "grandchild"]
        child = room.registry.views["secrets"].get("child0", "default") or {}
        assert "ownerReferences" not in child["metadata"]


@in_room
async def test_dependents_of_owners_deleted_before_the_start_are_collected(room: Room) -> None:
    await owned(room)
    await room.delete("secrets", "owner")
    assert len(left(room)) == 4
    async with running(room, controllers()):
        await until(lambda: left(room) == [])


@in_room
async def test_the_collector_works_when_it_leads_a_second_time(room: Room) -> None:
    await owned(room)
    which = controllers()
    async with running(room, which):
        await settle()
    await room.delete("secrets", "child1")
    async with running(room, which):
        await room.delete("secrets", "owner")
        await until(lambda: left(room) == [])


# -- roles ---------------------------------------------------------------------------------------------------------------


@in_room
async def test_an_aggregated_role_follows_what_it_selects(room: Room) -> None:
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}
    aggregation = {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}

    def rules() -> list[Obj]:
        return list((room.registry.views["clusterroles"].get("sum") or {}).get("rules") or ())

    async with running(room, controllers()):
        await room.create("clusterroles", {"metadata": {"name": "sum"}, "aggregationRule": aggregation, "rules": []})
        await room.create("clusterroles", {"metadata": {"name": "part", "labels": {"to": "sum"}}, "rules": [rule]})
        await until(lambda: rules() == [rule])
        await room.delete("clusterroles", "part")
        await until(lambda: rules() == [])


@in_room
async def test_the_rules_of_an_aggregated_role_belong_to_the_controller_that_tools_know(room: Room) -> None:
    """Source: docs/protocol/rbac.md#aggregation. Argo CD's `managedFieldsManagers` lists this name."""
    aggregation = {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}
    part = {
        "metadata": {"name": "part", "labels": {"to": "sum"}},
        "rules": [{"verbs": ["get"], "nonResourceURLs": ["/"]}],
    }
    name = "clusterrole-aggregation-controller"
    api = RegistryApi(room.registry, masters_only, room.clock, name)
    async with running(room, controllers(name), api):
        await room.registry.writer.create(
            BY_PLURAL["clusterroles"],
            "",
            {"metadata": {"name": "sum"}, "aggregationRule": aggregation},
            room.change(),
            WriteOptions(field_manager="tool"),
        )
        await room.create("clusterroles", part)

        def owners() -> list[tuple[str, list[str]]]:
            role = room.registry.views["clusterroles"].get("sum") or {"metadata": {}}
            entries = role["metadata"].get("managedFields") or ()
            return [(one["manager"], sorted(one["fieldsV1"])) for one in entries]

        await until(lambda: (name, ["f:rules"]) in owners())
        assert sorted(owners()) == [(name, ["f:rules"]), ("tool", ["f:aggregationRule"])]


@in_room
async def test_a_node_without_a_heartbeat_becomes_unknown_and_comes_back(room: Room) -> None:
    def node() -> Obj:
        found = room.registry.views["nodes"].get("m1")
        assert found is not None
        return found

    def ready(status: str) -> Obj:
        now = room.clock.now().isoformat(timespec="seconds").replace("+00:00", "Z")
        condition = {"type": "Ready", "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now}
        return {"status": {"conditions": [condition]}}

    def taints() -> list[str]:
        return [f"{one['key'].rpartition('/')[2]}:{one['effect']}" for one in node()["spec"].get("taints", ())]

    async def renew() -> None:
        spec = {"renewTime": room.clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")}
        await room.patch("leases", "m1", {"spec": spec}, "kube-node-lease")

    await room.create("leases", {"metadata": {"name": "m1"}, "spec": {"holderIdentity": "m1"}}, "kube-node-lease")
    async with running(room, controllers("node-lifecycle-controller")):
        await room.create("nodes", {"metadata": {"name": "m1"}, **ready("True")})
        for _ in range(12):
            await renew()
            await room.clock.advance(10)
        assert taints() == []
        await room.clock.advance(60)
        await until(lambda: taints() == ["unreachable:NoSchedule", "unreachable:NoExecute"])
        assert node()["status"]["conditions"][0]["reason"] == "NodeStatusUnknown"
        await renew()
        await room.patch("nodes", "m1", ready("True"), subresource="status")
        await until(lambda: taints() == [])


@in_room
async def test_the_log_names_once_what_other_servers_have_in_a_terminating_namespace(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(room, controllers("namespace-controller")):
        await room.create("namespaces", {"metadata": {"name": "left"}})
        entry = await room.storage.create("/registry/example.com/things/left/one", b"value")
        await room.delete("namespaces", "left", "", options=DeleteOptions())
        await until(lambda: "waits" in caplog.text)
        await room.clock.advance(60)
        assert exists(room, "namespaces", "left")
        assert caplog.text.count("the namespace has objects of kinds that this server does not serve") == 1
        assert "namespace-controller left waits: " in caplog.text
        assert "example.com/things (1)" in caplog.text
        await room.storage.delete(entry.key, expected=entry.revision)
        await room.clock.advance(HELD_DELAY)
        await until(lambda: not exists(room, "namespaces", "left"))


@in_room
async def test_a_machine_that_never_comes_back_loses_its_node_and_its_membership(room: Room) -> None:
    keys = [{"publicKey": "sha256:" + "0" * 64, "notAfter": "2027-01-01T00:00:00Z"}]
    await room.create("nodeidentities", {"metadata": {"name": "n1"}, "spec": {"keys": keys, "silenceSeconds": 120}})
    await room.create("nodes", {"metadata": {"name": "n1"}})
    node = room.registry.views["nodes"].get("n1")
    assert node is not None
    async with running(room, controllers("node-lifecycle-controller", "silent-node-controller")):
        for _ in range(34):
            await room.clock.advance(5)
        assert exists(room, "nodes", "n1")
        assert exists(room, "configmaps", "mooring-silence", "kube-system")
        for _ in range(9):
            await room.clock.advance(5)
        await until(lambda: not exists(room, "nodes", "n1"))
    identity = room.registry.views["nodeidentities"].get("n1")
    assert identity is not None
    assert identity["spec"]["endReason"] == "Silent"
    assert identity["spec"]["nodeUID"] == node["metadata"]["uid"]
    events = [event for event in room.registry.views["events"].list("default") if event["reason"] == "Silent"]
    assert [event["involvedObject"]["name"] for event in events] == ["n1"]
