"""The objects every cluster has: made once, reconciled where asked, left to administrators otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_network
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import DeleteOptions
from mooring.authz.rbac.bootstrappolicy import default_policy, k3s_policy, kubeadm_policy
from mooring.controlplane.configuration import server_config
from mooring.controlplane.publishing.firstboot import SYSTEM_NAMESPACES, FirstBoot
from mooring.errors import InternalServerError, NotFoundError, StorageError
from mooring.identity import API_SERVER_USER
from mooring.pki.pem import RootCa
from mooring.pki.x509.clusterca import CaState, ClusterCa
from mooring.storage.contract import Entry
from mooring.storage.memory import MemoryStorage
from mooring.trust import kubeadmconfig
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.pins import pin_of
from tests.support.manualclock import settle
from tests.support.registryroom import Room, open_room
from tests.support.serverroom import open_server
from tests.support.testca import ThrowawayCA

CLUSTER_CA = ThrowawayCA().cluster_ca
CA = CLUSTER_CA.trusted_pem
KUBEADM = [
    ("clusterroles", "", "kubeadm:get-nodes"),
    ("clusterrolebindings", "", "kubeadm:get-nodes"),
    ("clusterrolebindings", "", "kubeadm:kubelet-bootstrap"),
    ("clusterrolebindings", "", "kubeadm:node-autoapprove-bootstrap"),
    ("clusterrolebindings", "", "kubeadm:node-autoapprove-certificate-rotation"),
    ("clusterrolebindings", "", "kubeadm:apiserver-kubelet-client"),
    ("clusterrolebindings", "", "kubeadm:cluster-admins"),
    ("roles", "kube-public", "kubeadm:bootstrap-signer-clusterinfo"),
    ("rolebindings", "kube-public", "kubeadm:bootstrap-signer-clusterinfo"),
    ("roles", "kube-system", "kubeadm:nodes-kubeadm-config"),
    ("rolebindings", "kube-system", "kubeadm:nodes-kubeadm-config"),
    ("roles", "kube-system", "kubeadm:kubelet-config"),
    ("rolebindings", "kube-system", "kubeadm:kubelet-config"),
    ("roles", "kube-system", "kubeadm:kubeadm-certs"),
    ("rolebindings", "kube-system", "kubeadm:kubeadm-certs"),
    ("clusterrolebindings", "", "kubeadm:node-proxier"),
    ("roles", "kube-system", "kube-proxy"),
    ("rolebindings", "kube-system", "kube-proxy"),
]


def first_boot(room: Room, ca: bytes = CA, **flags: Any) -> FirstBoot:
    config = server_config(**{"data_dir": "/d", "detected_addresses": ("192.0.2.1",), **flags})
    return FirstBoot(room.registry, room.clock, config, RootCa(ca), CLUSTER_CA)


def in_empty_room(test: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> None:
        async def body() -> None:
            async with open_room(namespaces=()) as room:
                await test(room, *args, **kwargs)

        asyncio.run(body())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_empty_room
async def test_the_objects_of_kubeadm_and_the_default_policy_are_there(room: Room) -> None:
    await first_boot(room).run()
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        assert (await room.get("namespaces", name)).name == name
    for plural, namespace, name in KUBEADM:
        assert (await room.get(plural, name, namespace)).name == name
    for wanted in default_policy():
        plural = wanted["kind"].lower() + "s"
        found = await room.get(plural, wanted["metadata"]["name"], wanted["metadata"].get("namespace", ""))
        assert found.name == wanted["metadata"]["name"]
    info = (await room.get("configmaps", "cluster-info", "kube-public")).obj
    wanted_info = clusterinfo.config_map("https://192.0.2.1:6443", CA, cluster_id=cluster_id_of(room))
    assert info["data"] == wanted_info["data"]
    assert len(KUBEADM) == len(kubeadm_policy())
    for wanted in k3s_policy():
        metadata = wanted["metadata"]
        found = await room.get(wanted["kind"].lower() + "s", metadata["name"], metadata.get("namespace", ""))
        part = "rules" if wanted["kind"].endswith("Role") else "roleRef"
        assert found.obj[part] == wanted[part]


@in_empty_room
async def test_a_second_boot_writes_nothing(room: Room) -> None:
    await first_boot(room).run()
    before = room.registry.cache.revision
    await first_boot(room).run()
    assert room.registry.cache.revision == before


def test_a_server_room_that_copies_its_first_boot_is_like_one_that_writes_it() -> None:
    async def state(copies: bool) -> tuple[Any, ...]:
        async with open_server(copies=copies) as server:
            watch = await server.follow("/apis/rbac.authorization.k8s.io/v1/clusterroles?watch=1&resourceVersion=1")
            events, metrics = watch.raw, (await server.get("/metrics")).text
            await watch.end()
            assert isinstance(server.storage, MemoryStorage)
            page = await server.storage.range("/")
            entries = [
                entry if "/configmaps/" not in entry.key else (entry.key, json.loads(entry.value)["metadata"]["uid"])
                for entry in page.entries  # the ConfigMaps hold the CA of this server
            ]
            changes = [(change.key, change.revision) for change in server.storage.read_now(1)]
            # no moments of the real clock, and no use of the real machine
            counted = [line for line in metrics.splitlines() if "_created" not in line and "process_" not in line]
            return events, entries, page.revision, changes, counted, server.clock.sleepers

    async def compare() -> None:
        assert await state(copies=True) == await state(copies=False) == await state(copies=True)

    asyncio.run(compare())


@in_empty_room
async def test_two_servers_that_boot_at_once_end_in_the_same_state(room: Room) -> None:
    async with open_room(room.storage, clock=room.clock) as other:
        await asyncio.gather(first_boot(room).run(), first_boot(other).run())
        await other.registry.reader.fresh()
        await first_boot(other).run()
        names = [await one.names("clusterroles") for one in (room, other)]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


@in_empty_room
async def test_what_administrators_change_in_kubeadms_objects_stays(room: Room) -> None:
    await first_boot(room).run()
    await room.patch("clusterrolebindings", "kubeadm:cluster-admins", {"subjects": []})
    await first_boot(room).run()
    assert not (await room.get("clusterrolebindings", "kubeadm:cluster-admins")).obj.get("subjects")


@in_empty_room
async def test_what_administrators_delete_of_kubeadms_objects_comes_back(room: Room) -> None:
    await first_boot(room).run()
    await room.delete("roles", "kubeadm:bootstrap-signer-clusterinfo", "kube-public")
    await first_boot(room).run()
    assert (await room.get("roles", "kubeadm:bootstrap-signer-clusterinfo", "kube-public")).obj["rules"]


@in_empty_room
async def test_the_default_policy_is_completed_and_additions_stay(room: Room) -> None:
    await first_boot(room).run()
    own = {"apiGroups": ["x.io"], "resources": ["things"], "verbs": ["get"]}
    await room.patch("clusterroles", "system:basic-user", {"rules": [own]})
    await first_boot(room).run()
    rules = (await room.get("clusterroles", "system:basic-user")).obj["rules"]
    assert own in rules
    assert any("selfsubjectreviews" in rule["resources"] for rule in rules)


@in_empty_room
async def test_a_store_that_fails_while_the_rest_is_created_is_tried_again(room: Room) -> None:
    boot = first_boot(room)
    refused: list[str] = []

    async def failing(key: str, value: bytes, *, ttl: int = 0) -> Entry:
        refused.append(key)
        raise StorageError("the disk is full")

    completing = asyncio.ensure_future(boot.complete())
    with patch.object(room.storage, "create", failing):
        while len(refused) < 2 * len(SYSTEM_NAMESPACES):
            await room.clock.advance(1)
            await settle()
            assert not completing.done()
    async with asyncio.timeout(30):
        while not completing.done():
            await room.clock.advance(1)
            await settle()
    assert room.registry.views["namespaces"].get("kube-system") is not None


@in_empty_room
async def test_a_role_that_says_hands_off_is_left_alone(room: Room) -> None:
    await first_boot(room).run()
    off = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []}
    await room.patch("clusterroles", "system:basic-user", off)
    await first_boot(room).run()
    assert not (await room.get("clusterroles", "system:basic-user")).obj.get("rules")


@in_empty_room
async def test_a_default_binding_to_another_role_is_replaced(room: Room) -> None:
    await first_boot(room).run()
    name = "system:basic-user"
    wanted = (await room.get("clusterrolebindings", name)).obj
    await room.delete("clusterrolebindings", name)
    other = {**wanted, "metadata": {k: wanted["metadata"][k] for k in ("name", "labels", "annotations")}}
    other["roleRef"] = {**wanted["roleRef"], "name": "view"}
    await room.create("clusterrolebindings", other)
    await first_boot(room).run()
    assert (await room.get("clusterrolebindings", name)).obj["roleRef"]["name"] == name


def cluster_id_of(room: Room) -> str:
    namespace = room.registry.views["namespaces"].get("kube-system")
    assert namespace is not None
    uid: str = namespace["metadata"]["uid"]
    return uid


async def cluster_info(room: Room) -> Any:
    return (await room.get("configmaps", "cluster-info", "kube-public")).obj["data"]["kubeconfig"]


@in_empty_room
async def test_cluster_info_follows_the_endpoint_until_somebody_edits_it(room: Room) -> None:
    await first_boot(room).run()
    await room.patch("configmaps", "cluster-info", {"data": {"more": "x"}}, "kube-public")
    await first_boot(room, detected_addresses=("192.0.2.2",)).run()
    found = (await room.get("configmaps", "cluster-info", "kube-public")).obj["data"]
    assert ("192.0.2.2" in found["kubeconfig"], found["more"]) == (True, "x")


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(
            clusterinfo.config_map("https://192.0.2.1:6443", CA + ThrowawayCA("next").certificate_pem)["data"][
                "kubeconfig"
            ],
            id="a second CA",
        ),
        pytest.param(
            clusterinfo.config_map("https://balancer.example:443", CA)["data"]["kubeconfig"], id="another server"
        ),
        pytest.param("apiVersion: v1\nkind: Config\n# by hand\n", id="made by hand"),
        pytest.param("not: [yaml", id="not readable"),
        pytest.param("", id="empty"),
    ],
)
def test_an_edited_cluster_info_stays_over_every_restart(edited: str, caplog: pytest.LogCaptureFixture) -> None:
    @in_empty_room
    async def body(room: Room) -> None:
        await first_boot(room).run()
        await room.patch("configmaps", "cluster-info", {"data": {"kubeconfig": edited}}, "kube-public")
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.2"):
            await first_boot(room, detected_addresses=(address,)).run()
            assert await cluster_info(room) == edited

    body()
    assert "the ConfigMap kube-public/cluster-info was edited: its kubeconfig stays as it is" in caplog.text


@in_empty_room
async def test_a_changed_cluster_info_is_signed_anew_in_the_same_write(room: Room) -> None:
    boot, token = first_boot(room), parse_token("abcdef.0123456789abcdef")
    await boot.run()
    await boot.create_token(TokenRecord(token, expires=room.clock.now() + timedelta(hours=1), usages=("signing",)))
    for address in ("192.0.2.2", "192.0.2.3"):
        await first_boot(room, detected_addresses=(address,)).run()
        data = (await room.get("configmaps", "cluster-info", "kube-public")).obj["data"]
        assert address in clusterinfo.verify(data, token)


@in_empty_room
async def test_a_cluster_info_put_back_to_what_was_written_follows_again(room: Room) -> None:
    await first_boot(room).run()
    written = await cluster_info(room)
    for text in ("by: hand", written):
        await room.patch("configmaps", "cluster-info", {"data": {"kubeconfig": text}}, "kube-public")
        await first_boot(room, detected_addresses=("192.0.2.2",)).run()
    assert "192.0.2.2" in await cluster_info(room)


@in_empty_room
async def test_a_cluster_info_of_an_earlier_release_stays(room: Room) -> None:
    await first_boot(room).run()
    unmarked = {"metadata": {"annotations": None}, "data": {"kubeconfig": "of an earlier release"}}
    await room.patch("configmaps", "cluster-info", unmarked, "kube-public")
    await first_boot(room).run()
    assert await cluster_info(room) == "of an earlier release"


OLD, NEW, ROOT = (ThrowawayCA(name) for name in ("old", "new", "root"))


def boot_with(room: Room, state: CaState, root: bytes | None = None) -> FirstBoot:
    """The first boot of a server with these CAs, which verify the server too unless `root` does."""
    ca = ClusterCa(state)
    config = server_config(data_dir="/d", detected_addresses=("192.0.2.1",))
    return FirstBoot(room.registry, room.clock, config, RootCa(ca.trusted_pem if root is None else root), ca)


def state_of(key: ThrowawayCA, *trusted: ThrowawayCA, retired: Sequence[ThrowawayCA] = ()) -> CaState:
    return CaState.of_files(
        tuple(ca.certificate for ca in trusted), key.key, retired=tuple(ca.certificate for ca in retired)
    )


def text_of(room: Room, ca_pem: bytes, clients: bytes = b"") -> str:
    text: str = clusterinfo.config_map(
        "https://192.0.2.1:6443", ca_pem, client_ca_pem=clients, cluster_id=cluster_id_of(room)
    )["data"]["kubeconfig"]
    return text


@pytest.mark.parametrize("comment", ["# mine\n", ""], ids=["edited", "not marked"])
def test_a_store_of_an_earlier_version_follows_out_of_the_trap(comment: str) -> None:
    @in_empty_room
    async def body(room: Room) -> None:
        await boot_with(room, state_of(OLD, OLD)).run()
        before = {
            "metadata": {"annotations": None},
            "data": {"kubeconfig": text_of(room, OLD.certificate_pem) + comment},
        }
        await room.patch("configmaps", "cluster-info", before, "kube-public")
        await boot_with(room, state_of(NEW, NEW, retired=[OLD])).run()
        assert await cluster_info(room) == text_of(room, NEW.certificate_pem) + comment
        await boot_with(room, state_of(NEW, NEW, OLD)).run()
        assert await cluster_info(room) == text_of(room, NEW.certificate_pem + OLD.certificate_pem) + comment

    body()


@in_empty_room
async def test_an_edited_cluster_info_follows_root_ca_file(room: Room) -> None:
    state = state_of(OLD, OLD)
    for root in (ROOT.certificate_pem, ROOT.certificate_pem + NEW.certificate_pem, NEW.certificate_pem):
        await boot_with(room, state, root).run()
        if root == ROOT.certificate_pem:
            text = await cluster_info(room) + "# mine\n"
            await room.patch("configmaps", "cluster-info", {"data": {"kubeconfig": text}}, "kube-public")
        assert await cluster_info(room) == text_of(room, root, OLD.certificate_pem) + "# mine\n"


def pin(ca: ThrowawayCA) -> str:
    return str(pin_of(ca.certificate))


@in_empty_room
async def test_an_edit_since_the_last_phase_follows_before_a_rollover_is_judged(room: Room) -> None:
    boot = boot_with(room, state_of(OLD, OLD, NEW))
    await boot.run()
    await room.patch(
        "configmaps", "cluster-info", {"data": {"kubeconfig": text_of(room, OLD.certificate_pem)}}, "kube-public"
    )
    assert await boot.join_obstacles(pin(OLD), pin(NEW), "new") == ()
    assert await cluster_info(room) == text_of(room, OLD.certificate_pem + NEW.certificate_pem)
    await room.registry.writer.delete(
        BY_PLURAL["configmaps"],
        "kube-public",
        "cluster-info",
        DeleteOptions(),
        Change(API_SERVER_USER, room.clock.now()),
    )
    await room.registry.reader.fresh()
    assert await boot.join_obstacles(pin(OLD), pin(NEW), "new") == (), "it is made again"
    assert await cluster_info(room) == text_of(room, OLD.certificate_pem + NEW.certificate_pem)


def test_what_stands_in_the_way_of_joining_is_named(caplog: pytest.LogCaptureFixture) -> None:
    @in_empty_room
    async def body(room: Room) -> None:
        boot = boot_with(room, state_of(OLD, OLD, NEW), OLD.certificate_pem)
        await boot.run()
        assert await boot.join_obstacles(pin(OLD), pin(NEW), "new") == (
            "root-ca-file does not hold the new CA: append pki/rollover/new.crt of the data directory to it",
        )
        assert await boot.join_obstacles(pin(OLD), pin(ROOT), "new") == (
            "this process has not read both CAs from the data directory yet",
        )
        boot = boot_with(room, state_of(OLD, OLD, NEW))
        await room.patch("configmaps", "cluster-info", {"data": {"kubeconfig": "not: [yaml"}}, "kube-public")
        (said,) = await boot.join_obstacles(pin(OLD), pin(NEW), "new")
        assert "the ConfigMap kube-public/cluster-info cannot be used" in said
        assert "no machine can join by the edited cluster-info" in caplog.text
        fixed = {"immutable": True, "data": {"kubeconfig": text_of(room, OLD.certificate_pem)}}
        await room.patch("configmaps", "cluster-info", fixed, "kube-public")
        (said,) = await boot.join_obstacles(pin(OLD), pin(NEW), "new")
        assert "it is immutable: delete it" in said
        for _ in range(3):
            await boot.join_obstacles(pin(OLD), pin(NEW), "new")
        assert caplog.text.count("is immutable, and stays as it is") == 1
        assert caplog.text.count("was edited") == 1
        with patch.object(room.registry.reader, "get", side_effect=NotFoundError("gone")):
            (said,) = await boot.join_obstacles(pin(OLD), pin(NEW), "new")
        assert "is missing and could not be made again" in said
        with patch.object(room.registry.reader, "get", side_effect=InternalServerError("not to be decrypted")):
            (said,) = await boot.join_obstacles(pin(OLD), pin(NEW), "new")
        assert said == "the ConfigMap kube-public/cluster-info cannot be read or written: not to be decrypted"

    body()


@in_empty_room
async def test_a_write_in_the_same_moment_is_merged(room: Room) -> None:
    await boot_with(room, state_of(OLD, OLD)).run()
    boot, update, others = boot_with(room, state_of(OLD, OLD, NEW)), room.registry.writer.update, [1]

    async def slower(*args: Any, **kwargs: Any) -> Any:
        if others and args[2] == "cluster-info":
            others.pop()
            await room.patch("configmaps", "cluster-info", {"data": {"other": "1"}}, "kube-public")
        return await update(*args, **kwargs)

    with patch.object(room.registry.writer, "update", slower):
        await boot.publish_cluster_info()
    data = (await room.get("configmaps", "cluster-info", "kube-public")).obj["data"]
    assert (data["kubeconfig"], data["other"]) == (text_of(room, OLD.certificate_pem + NEW.certificate_pem), "1")


@in_empty_room
async def test_a_token_that_is_there_is_replaced(room: Room) -> None:
    boot = first_boot(room)
    await boot.run()
    token = parse_token("abcdef.0123456789abcdef")
    for usages in (("signing",), ("signing", "authentication")):
        expires = room.clock.now() + timedelta(hours=1)
        await boot.create_token(TokenRecord(token, expires=expires, usages=usages))
    data = (await room.get("secrets", "bootstrap-token-abcdef", "kube-system")).obj["data"]
    assert "usage-bootstrap-authentication" in data


@in_empty_room
async def test_what_kubeadm_join_reads_is_there(room: Room) -> None:
    services = ip_network("192.0.2.128/25")
    await first_boot(room, service_cluster_ip_range=str(services)).run()
    for wanted in (
        kubeadmconfig.kubeadm_config("192.0.2.1:6443", "v1.37.1", services),
        kubeadmconfig.kubelet_config(services),
    ):
        found = await room.get("configmaps", wanted["metadata"]["name"], "kube-system")
        assert found.obj["data"] == wanted["data"]


@in_empty_room
async def test_kubeadm_config_follows_the_endpoint(room: Room) -> None:
    await first_boot(room).run()
    await room.patch("configmaps", "kubeadm-config", {"data": {"more": "x"}}, "kube-system")
    await first_boot(room, detected_addresses=("192.0.2.2",)).run()
    data = (await room.get("configmaps", "kubeadm-config", "kube-system")).obj["data"]
    assert yaml.safe_load(data["ClusterConfiguration"])["controlPlaneEndpoint"] == "192.0.2.2:6443"
    assert data["more"] == "x"


@pytest.mark.parametrize(
    ("edit", "then"),
    [
        pytest.param("", "v1.37.1", id="follows"),
        pytest.param("featureGates: {}\n", "v1.36.2", id="stays when it was edited"),
    ],
)
def test_kubeadm_config_of_a_server_of_an_earlier_kubernetes(edit: str, then: str) -> None:
    @in_empty_room
    async def body(room: Room) -> None:
        async def text() -> str:
            found: str = (await room.get("configmaps", "kubeadm-config", "kube-system")).obj["data"][
                "ClusterConfiguration"
            ]
            return found

        with patch("mooring.controlplane.publishing.firstboot.KUBERNETES_VERSION", "v1.36.2"):
            await first_boot(room).run()
        written = await text()
        assert yaml.safe_load(written)["kubernetesVersion"] == "v1.36.2"
        await room.patch(
            "configmaps", "kubeadm-config", {"data": {"ClusterConfiguration": written + edit}}, "kube-system"
        )
        await first_boot(room).run()
        assert yaml.safe_load(await text())["kubernetesVersion"] == then
        assert (await text()).endswith(edit)

    body()


@pytest.mark.parametrize(
    ("name", "key"), [("kubeadm-config", "ClusterConfiguration"), ("kubelet-config", "kubelet")], ids=lambda text: text
)
def test_what_administrators_write_for_joiners_stays(name: str, key: str) -> None:
    @in_empty_room
    async def body(room: Room) -> None:
        await first_boot(room).run()
        written = (await room.get("configmaps", name, "kube-system")).obj["data"][key]
        for edited in ("by: hand\n", written.replace("192.0.2.1", "192.0.2.9") + "featureGates: {}\n", written[:-1]):
            await room.patch("configmaps", name, {"data": {key: edited}}, "kube-system")
            await first_boot(room, detected_addresses=("192.0.2.2",)).run()
            assert (await room.get("configmaps", name, "kube-system")).obj["data"] == {key: edited}

    body()
