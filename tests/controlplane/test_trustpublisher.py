"""CAs in force are published when their files change: in cluster-info, in ConfigMaps, and to new TLS connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.sanpolicy.evidence import PUBLISHED_PREFIX
from mooring.controlplane.publishing.firstboot import FirstBoot
from mooring.errors import StorageError
from mooring.identity import MASTERS
from tests.support.manualclock import EPOCH, settle
from tests.support.serverroom import Server, connection, open_server
from tests.support.testca import ThrowawayCA

CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
NEXT_CA = ThrowawayCA("next", EPOCH)
NEXT = NEXT_CA.certificate_pem


def with_root_ca_file(path: Path, test: Callable[[Server], Awaitable[None]]) -> None:
    """Run a test with a server whose `root-ca-file` is `path`."""

    async def body() -> None:
        async with open_server(root_ca_file=str(path)) as server:
            await test(server)

    asyncio.run(body())


async def append_ca(server: Server, path: Path) -> None:
    """Add a CA to the file, and let the server notice it."""
    path.write_bytes(path.read_bytes() + NEXT)
    for _ in range(2):
        await server.assembly.trust.authentication.reloading.look()
    await settle()


async def server_records(server: Server) -> list[Obj]:
    """Return the records in which servers publish the names of their certificates."""
    listed = (await server.get("/api/v1/namespaces/kube-system/configmaps")).obj["items"]
    return [one for one in listed if one["metadata"]["name"].startswith(PUBLISHED_PREFIX)]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of the CA that every server of these tests is made with."""
    ca = ThrowawayCA(now=EPOCH)
    monkeypatch.setattr("tests.support.serverroom.ThrowawayCA", lambda now: ca)
    path = tmp_path / "root.crt"
    path.write_bytes(ca.certificate_pem)
    return path


def test_a_changed_bundle_reaches_cluster_info_and_new_connections(bundle: Path) -> None:
    async def test(server: Server) -> None:
        before = server.assembly.trust.context.current
        first = (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"]
        await append_ca(server, bundle)
        assert (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"] != first
        assert server.assembly.trust.serving.root_ca.pem == bundle.read_bytes()
        assert server.assembly.trust.context.current is not before

    with_root_ca_file(bundle, test)


def test_a_ca_that_only_verifies_the_server_certifies_no_client(bundle: Path) -> None:
    async def test(server: Server) -> None:
        await append_ca(server, bundle)
        assert server.assembly.trust.serving.root_ca.pem.endswith(NEXT)
        for name in ("jane", "system:masters"):
            refused = await server.get("/api", via=connection([NEXT_CA.client(name, MASTERS).der]))
            assert refused.status == 401
        assert (await server.get("/api", via=connection([server.ca.client("jane").der]))).status == 200

    with_root_ca_file(bundle, test)


def test_a_failed_publication_is_logged_and_the_next_one_still_happens(
    bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: Server) -> None:
        async def fail() -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(server.assembly.upkeep.first_boot, "publish_cluster_info", fail)
            await append_ca(server, bundle)
        assert "the ConfigMap cluster-info could not be brought up to date: the disk is full" in caplog.messages
        first = (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"]
        await append_ca(server, bundle)
        assert (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"] != first

    with_root_ca_file(bundle, test)


def test_a_failed_publication_is_repeated_until_it_succeeds(
    bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: Server) -> None:
        failures = iter((StorageError("the disk is full"),) * 2)
        publish = FirstBoot.publish_cluster_info

        async def fail_twice(boot: FirstBoot) -> None:
            for failure in failures:
                raise failure
            await publish(boot)

        monkeypatch.setattr(FirstBoot, "publish_cluster_info", fail_twice)
        first = (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"]
        await append_ca(server, bundle)
        await server.clock.advance(60)
        assert (
            caplog.messages.count("the ConfigMap cluster-info could not be brought up to date: the disk is full") == 2
        )
        assert (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"] == first
        await server.clock.advance(60)
        published = (await server.get(CLUSTER_INFO)).obj["data"]["kubeconfig"]
        assert published != first
        failures = iter((StorageError("it is done"),))
        await server.clock.advance(120)
        assert "it is done" not in caplog.text

    with_root_ca_file(bundle, test)


@pytest.mark.parametrize("harm", ["deleted", "emptied", "edited", "ended", "immutable", "binary"])
def test_a_record_of_the_servers_names_is_written_again(bundle: Path, harm: str) -> None:
    async def test(server: Server) -> None:
        await server.assembly.upkeep.trust_publisher.publish_serving_names()
        await settle()
        (record,) = await server_records(server)
        path = f"/api/v1/namespaces/kube-system/configmaps/{record['metadata']['name']}"
        if harm == "deleted":
            reply = await server.call("DELETE", path)
        else:
            patch = {
                "edited": {"data": {"names": "edited"}},
                "ended": {"data": {"notAfter": "2026-01-01T00:00:00Z"}},
                "emptied": {"data": None, "metadata": {"annotations": None}},
                "immutable": {"data": {"names": "edited"}, "immutable": True},
                "binary": {"data": None, "binaryData": {"names": "AAAA"}},
            }[harm]
            reply = await server.call("PATCH", path, body=patch, content_type="application/merge-patch+json")
        assert reply.status == 200
        await settle()
        (again,) = await server_records(server)
        assert again["data"].items() >= record["data"].items()
        assert again.get("binaryData") is again.get("immutable") is None

    with_root_ca_file(bundle, test)


def test_the_record_has_the_published_addresses_that_the_certificate_does_not_name(bundle: Path) -> None:
    async def test() -> None:
        published = ("api.example.com:6443", "192.0.2.80:6443")
        async with open_server(root_ca_file=str(bundle), control_plane_endpoint=published) as server:
            pair = server.ca.server("*.example.com")
            server.assembly.trust.serving.follow_ca(((pair.certificate,), pair.key))
            await server.assembly.upkeep.trust_publisher.publish_serving_names()
            (record,) = await server_records(server)
            assert set(record["data"]["names"].split()) >= {"*.example.com", "api.example.com", "192.0.2.80"}

    asyncio.run(test())


def test_a_machine_that_has_a_certificate_for_a_name_of_the_server_is_a_warning(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server gets the name after the machine did."""

    async def test(server: Server) -> None:
        publisher, serving = server.assembly.upkeep.trust_publisher, server.assembly.trust.serving
        names = [{"name": "api-9.example.com", "notAfter": "2026-12-01T00:00:00Z"}]
        await server.create("nodeidentities", {"metadata": {"name": "n9"}, "spec": {"certifiedNames": names}})
        await publisher.publish_serving_names()
        assert "n9" not in caplog.text
        pair = server.ca.server("api-9.example.com")
        serving.follow_ca(((pair.certificate,), pair.key))
        for _ in range(2):
            await publisher.publish_serving_names()
        (warning,) = [line for line in caplog.messages if "n9" in line]
        assert "until 2026-12-01T00:00:00Z, for api-9.example.com, where clients reach an API server" in warning
        assert warning.endswith("mooring certs list names the certificates")

    with_root_ca_file(bundle, test)


def test_names_of_a_replaced_certificate_stay_in_the_record_of_the_server(bundle: Path) -> None:
    async def test(server: Server) -> None:
        publisher, serving = server.assembly.upkeep.trust_publisher, server.assembly.trust.serving
        for name in ("api-9.example.com", "api-8.example.com"):
            pair = server.ca.server(name)
            serving.follow_ca(((pair.certificate,), pair.key))
            await publisher.publish_serving_names()
        (record,) = await server_records(server)
        assert "api-8.example.com" in record["data"]["names"].split()
        assert "api-9.example.com" in record["data"]["former"].split()

    with_root_ca_file(bundle, test)
