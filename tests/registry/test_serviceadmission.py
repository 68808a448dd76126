"""Test the allocation of addresses and node ports to Services.

Source: docs/protocol/namespaces.md#the-service-defaultkubernetes.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

import pytest

from mooring.api.core.service import DEFAULT_RANGE, NODE_PORT_RANGE
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import InternalServerError, InvalidError
from mooring.registry.admission import services
from mooring.registry.admission.table import build
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import EPOCH
from tests.support.registryroom import Room, in_room, open_room

NODE_PORT = {"type": "NodePort"}
LOCAL = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
NAME = {"type": "ExternalName", "externalName": "a.example"}


async def make(room: Room, name: str, **spec: Any) -> Obj:
    """Create a Service, and return its spec."""
    body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
    found: Obj = (await room.create("services", body)).obj["spec"]
    return found


def node_ports(spec: Obj) -> list[int]:
    return [port["nodePort"] for port in spec["ports"] if "nodePort" in port]


@in_room
async def test_every_service_has_an_address_of_its_own(room: Room) -> None:
    specs = [await make(room, f"s{number}") for number in range(20)]
    addresses = [spec["clusterIP"] for spec in specs]
    assert [spec["clusterIPs"] for spec in specs] == [[address] for address in addresses]
    assert len(set(addresses)) == 20
    assert all(IPv4Address(address) in DEFAULT_RANGE for address in addresses)
    await room.delete("services", "s0")
    assert (await make(room, "again", clusterIP=addresses[0]))["clusterIPs"] == [addresses[0]]


@in_room
async def test_services_without_an_address_get_none(room: Room) -> None:
    assert (await make(room, "headless", clusterIP="None"))["clusterIPs"] == ["None"]
    assert "clusterIP" not in await make(room, "name", **NAME)
    assert (await make(room, "headless2", clusterIP="None"))["clusterIP"] == "None", "none is not taken by anybody"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        pytest.param("10.96.0.9", "failed to allocate IP 10.96.0.9: provided IP is already allocated", id="one taken"),
        pytest.param(
            "192.0.2.1",
            "failed to allocate IP 192.0.2.1: the provided IP (192.0.2.1) is not in the valid range. "
            "The range of valid IPs is 10.96.0.0/12",
            id="one of another range",
        ),
        pytest.param("2001:db8::1", "The range of valid IPs is 10.96.0.0/12", id="one of another family"),
        pytest.param("10.96.0.0", "is not one that an endpoint can have", id="the first of the range"),
        pytest.param("10.111.255.255", "is not one that an endpoint can have", id="the last of the range"),
        pytest.param("x", "must be a valid IP address", id="what is none"),
    ],
)
def test_addresses_that_cannot_be_had(address: str, why: str) -> None:
    @in_room
    async def told(room: Room) -> None:
        await make(room, "first", clusterIP="10.96.0.9")
        with pytest.raises(InvalidError) as refused:
            await make(room, "second", clusterIP=address)
        assert why in refused.value.message
        assert 'Service "second" is invalid: spec.clusterIPs' in refused.value.message

    told()


def certified(name: str, *addresses: str, until: timedelta = timedelta(hours=1), **spec: Any) -> Obj:
    """Return the record of a node with a serving certificate."""
    names = [{"name": address, "notAfter": rfc3339(EPOCH + until)} for address in addresses]
    return {"metadata": {"name": name}, "spec": {**spec, "certifiedNames": names}}


@in_room
async def test_a_service_gets_no_address_for_which_a_node_has_a_certificate(room: Room) -> None:
    """A Service of that address would stop the renewal of the node."""
    await room.create("nodeidentities", certified("n1", "10.96.0.9"))
    with pytest.raises(InvalidError, match=r"a node has a certificate for the provided IP \(10\.96\.0\.9\)"):
        await make(room, "s", clusterIP="10.96.0.9")
    first = (await make(room, "first"))["clusterIP"]
    await room.delete("services", "first")
    await room.create("nodeidentities", certified("n2", first))
    await make(room, "kubernetes", clusterIP=first)


@pytest.mark.parametrize(
    "changes",
    [pytest.param({"until": -timedelta(hours=1)}, id="it has ended"), pytest.param({"nodeUID": "u0"}, id="no member")],
)
def test_an_address_that_was_a_nodes_is_free(changes: dict[str, Any]) -> None:
    @in_room
    async def body(room: Room) -> None:
        await room.create("nodeidentities", certified("n1", "10.96.0.9", **changes))
        assert (await make(room, "s", clusterIP="10.96.0.9"))["clusterIP"] == "10.96.0.9"

    body()


def test_nodes_do_not_use_up_the_addresses_of_services() -> None:
    """A range of six addresses, of which the first is the API server's."""

    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        async with open_room(storage, admission=build(services=ip_network("10.96.0.0/29"))) as room:
            await room.create("namespaces", {"metadata": {"name": "default"}})
            await room.create("nodeidentities", certified("n1", *(f"10.96.0.{number}" for number in range(2, 6))))
            assert (await make(room, "s"))["clusterIP"] == "10.96.0.6"
            assert (await make(room, "t"))["clusterIP"] in {f"10.96.0.{number}" for number in range(2, 6)}
        await storage.close()

    asyncio.run(body())


@in_room
async def test_an_update_keeps_the_address_and_a_new_type_gets_one(room: Room) -> None:
    first = await make(room, "s")
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 81}]}}
    second = (await room.update("services", body))[0].obj["spec"]
    assert (second["clusterIP"], second["ports"][0]["port"]) == (first["clusterIP"], 81)
    third = (await room.patch("services", "s", {"spec": {**NAME}})).obj["spec"]
    assert "clusterIP" not in third
    back = (await room.patch("services", "s", {"spec": {"type": "ClusterIP", "externalName": None}})).obj["spec"]
    assert IPv4Address(back["clusterIP"]) in DEFAULT_RANGE


@in_room
async def test_node_ports_are_given_out_once(room: Room) -> None:
    two = [{"name": "tcp", "port": 53}, {"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "web", "port": 80}]
    dns = node_ports(await make(room, "dns", **NODE_PORT, ports=two))
    assert dns[0] == dns[1] != dns[2]
    assert all(port in NODE_PORT_RANGE for port in dns)
    others = [node_ports(await make(room, f"s{number}", **NODE_PORT))[0] for number in range(20)]
    assert len({*others, *dns}) == 22
    assert node_ports(await make(room, "plain")) == []


@in_room
async def test_a_port_asked_for_serves_both_protocols_of_a_service(room: Room) -> None:
    two = [{"name": "tcp", "port": 53, "nodePort": 30053}, {"name": "udp", "port": 53, "protocol": "UDP"}]
    assert node_ports(await make(room, "dns", **NODE_PORT, ports=two)) == [30053, 30053]
    same = [{**two[0], "nodePort": 30054}, {**two[1], "nodePort": 30054}]
    assert node_ports(await make(room, "same", **NODE_PORT, ports=same)) == [30054, 30054]


@in_room
async def test_a_balancer_that_stays_local_is_asked_for_its_health(room: Room) -> None:
    spec = await make(room, "s", **LOCAL)
    assert spec["healthCheckNodePort"] in NODE_PORT_RANGE
    assert spec["healthCheckNodePort"] not in node_ports(spec)
    bare = await make(room, "bare", **LOCAL, allocateLoadBalancerNodePorts=False, healthCheckNodePort=30007)
    assert (node_ports(bare), bare["healthCheckNodePort"]) == ([], 30007)
    with pytest.raises(
        InvalidError, match=r"spec\.healthCheckNodePort: Invalid value: 30007: provided port is already"
    ):
        await make(room, "other", **LOCAL, healthCheckNodePort=30007)


@pytest.mark.parametrize(
    ("port", "why"),
    [
        pytest.param(30001, "provided port is already allocated", id="one taken"),
        pytest.param(
            80, "provided port is not in the valid range. The range of valid ports is 30000-32767", id="a low one"
        ),
    ],
)
def test_node_ports_that_cannot_be_had(port: int, why: str) -> None:
    @in_room
    async def told(room: Room) -> None:
        await make(room, "first", **NODE_PORT, ports=[{"port": 80, "nodePort": 30001}])
        with pytest.raises(InvalidError) as refused:
            await make(room, "second", **NODE_PORT, ports=[{"port": 80, "nodePort": port}])
        assert refused.value.message == (
            f'Service "second" is invalid: spec.ports[0].nodePort: Invalid value: {port}: {why}'
        )

    told()


@in_room
async def test_an_update_keeps_node_ports(room: Room) -> None:
    first = await make(room, "s", **NODE_PORT)
    stored = (await room.patch("services", "s", {"metadata": {"labels": {"a": "b"}}})).obj["spec"]
    assert node_ports(stored) == node_ports(first)


@in_room
async def test_when_everything_is_taken(room: Room) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "free_address", lambda *asked: None)
        with pytest.raises(
            InternalServerError, match=r"every address of 10\.96\.0\.0/12, the range of Services, is taken"
        ):
            await make(room, "s")
        patch.setattr(services, "free_port", lambda *asked: None)
        with pytest.raises(InternalServerError, match="every node port is taken"):
            await make(room, "s", **NODE_PORT, clusterIP="10.96.0.9")


def test_services_have_addresses_of_the_family_and_range_of_the_cluster() -> None:
    services = ip_network("fd00:10::/108")

    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        async with open_room(storage, admission=build(services=services)) as room:
            await room.create("namespaces", {"metadata": {"name": "default"}})
            spec = await make(room, "s")
            assert ip_address(spec["clusterIP"]) in services
            assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv6"], "SingleStack")
            taken = spec["clusterIP"]
            with pytest.raises(InvalidError, match="provided IP is already allocated"):
                await make(room, "t", clusterIP=taken.upper())
            with pytest.raises(
                InvalidError, match=r"is not in the valid range\. The range of valid IPs is fd00:10::/108"
            ):
                await make(room, "t", clusterIP="10.96.0.9")
            with pytest.raises(
                InvalidError, match=r'spec.ipFamilies\[0\]: Invalid value: "IPv4": not configured on this'
            ):
                await make(room, "t", ipFamilies=["IPv4"])
            elsewhere = await make(room, "t", clusterIP="None", ipFamilies=["IPv4"])
            assert elsewhere["ipFamilies"] == ["IPv4", "IPv6"], "nobody here keeps its endpoints"
            await make(room, "name", **NAME)
        await storage.close()

    asyncio.run(body())
