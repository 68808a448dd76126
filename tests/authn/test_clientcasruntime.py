"""Bundles of CAs that change while the server runs, through the whole server.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.pki.x509.bundles import certificates_pem
from tests.support.manualclock import EPOCH, settle
from tests.support.serverroom import Server, connection, open_server
from tests.support.testca import ThrowawayCA

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PROXY = {
    "requestheader_username_headers": ("X-Remote-User",),
    "requestheader_group_headers": ("X-Remote-Group",),
    "requestheader_uid_headers": ("X-Remote-Uid",),
    "requestheader_extra_headers_prefix": ("X-Remote-Extra-",),
}
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}


@pytest.fixture
def ca() -> ThrowawayCA:
    return ThrowawayCA(now=EPOCH)


@pytest.fixture
def bundle(tmp_path: Path, ca: ThrowawayCA) -> Path:
    path = tmp_path / "ca.crt"
    path.write_bytes(ca.certificate_pem)
    return path


def in_server_with(test: Callable[[Server], Awaitable[None]], **flags: Any) -> None:
    async def run() -> None:
        async with open_server(**flags) as server:
            await test(server)

    asyncio.run(run())


async def changed(server: Server, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    await server.files_changed()
    await settle()


async def who(server: Server, *headers: tuple[str, str], chain: bytes) -> str:
    reply = await server.post(WHO, REVIEW, via=connection([chain]), headers=headers)
    return str(reply.obj["status"]["userInfo"]["username"]) if reply.status == 201 else str(reply.status)


def test_clients_of_another_bundle_are_believed_in_place_of_the_clusters_own(
    bundle: Path, ca: ThrowawayCA, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: Server) -> None:
        assert await who(server, chain=ca.client("jane").der) == "jane"
        assert (await server.get("/api", via=server.admin)).status == 401
        await changed(server, bundle, ca.certificate_pem + server.ca.certificate_pem)
        assert (await server.get("/api", via=server.admin)).status == 200
        data = (await server.get(CONFIG_MAP)).obj["data"]
        assert data == {
            "client-ca-file": certificates_pem([ca.authority.certificate, server.ca.authority.certificate]).decode()
        }

    with caplog.at_level(logging.WARNING):
        in_server_with(test, client_ca_file=str(bundle))
    assert "this cluster's own CA, pki/ca.crt of the data directory" in caplog.text


def test_a_ca_that_is_taken_away_is_not_believed_on_open_connections_either(bundle: Path, ca: ThrowawayCA) -> None:
    async def test(server: Server) -> None:
        open_connection = connection([ca.client("jane").der])
        assert (await server.get("/api", via=open_connection)).status == 200
        await changed(server, bundle, server.ca.certificate_pem)
        assert (await server.get("/api", via=open_connection)).status == 401

    in_server_with(test, client_ca_file=str(bundle))


def test_a_bundle_that_is_none_leaves_the_last_good_one_in_force(bundle: Path, ca: ThrowawayCA) -> None:
    async def test(server: Server) -> None:
        await changed(server, bundle, b"oops")
        assert await who(server, chain=ca.client("jane").der) == "jane"

    in_server_with(test, client_ca_file=str(bundle))


def test_a_proxy_speaks_for_users_and_nobody_else_does(bundle: Path, ca: ThrowawayCA) -> None:
    spoof = (("X-Remote-User", "root"), ("X-Remote-Group", "system:masters"))

    async def test(server: Server) -> None:
        proxy = ca.client("front-proxy").der
        assert await who(server, ("X-Remote-User", "jane"), chain=proxy) == "jane"
        assert await who(server, *spoof, chain=server.ca.client("joe").der) == "joe"
        assert (await server.post(WHO, REVIEW, via=connection(), headers=spoof)).status == 403, (
            "anonymous stays anonymous"
        )
        assert await who(server, *spoof, chain=ca.client("somebody").der) == "401"
        assert await who(server, chain=proxy) == "401", (
            "a proxy that names nobody is nobody, and its certificate no client's"
        )
        data = (await server.get(CONFIG_MAP)).obj["data"]
        assert {key: json.loads(value) for key, value in data.items() if not key.endswith("file")} == {
            "requestheader-allowed-names": ["front-proxy"],
            "requestheader-username-headers": ["X-Remote-User"],
            "requestheader-uid-headers": ["X-Remote-Uid"],
            "requestheader-group-headers": ["X-Remote-Group"],
            "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
        }
        assert data["requestheader-client-ca-file"] == ca.certificate_pem.decode()

    in_server_with(
        test, requestheader_client_ca_file=str(bundle), requestheader_allowed_names=("front-proxy",), **PROXY
    )


def test_without_allowed_names_the_bundles_may_not_overlap(bundle: Path, tmp_path: Path, ca: ThrowawayCA) -> None:
    flags = {"client_ca_file": str(bundle), "requestheader_client_ca_file": str(bundle), **PROXY}

    async def never(server: Server) -> None:
        raise AssertionError("it starts")

    with pytest.raises(ConfigError, match="requestheader-allowed-names: it is needed"):
        in_server_with(never, **flags)

    proxies, proxy_ca = tmp_path / "proxies.crt", ThrowawayCA(now=EPOCH)
    proxies.write_bytes(proxy_ca.certificate_pem)

    async def test(server: Server) -> None:
        await changed(server, proxies, ca.certificate_pem)
        assert await who(server, ("X-Remote-User", "root"), chain=ca.client("jane").der) == "jane", "not in force"
        assert await who(server, ("X-Remote-User", "root"), chain=proxy_ca.client("p").der) == "root"

    in_server_with(test, **{**flags, "requestheader_client_ca_file": str(proxies)})


def test_new_connections_are_told_the_names_of_both_bundles(bundle: Path, ca: ThrowawayCA) -> None:
    async def test(server: Server) -> None:
        assert server.assembly.trust.authentication.client_cas.every == (
            server.ca.authority.certificate,
            ca.authority.certificate,
        )
        before = server.assembly.trust.context.current
        await changed(server, bundle, ThrowawayCA(now=EPOCH).certificate_pem)
        assert server.assembly.trust.context.current is not before

    in_server_with(test, requestheader_client_ca_file=str(bundle), **PROXY)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("theirs", "kept", id="a key of others"),
        pytest.param("client-ca-file", ThrowawayCA("added", EPOCH).certificate_pem.decode(), id="an edited bundle"),
    ],
)
def test_the_config_map_keeps_what_others_wrote(key: str, value: str) -> None:
    async def test(server: Server) -> None:
        patch = {"data": {key: value}}
        await server.call("PATCH", CONFIG_MAP, body=patch, content_type="application/merge-patch+json")
        await server.assembly.upkeep.trust_publisher.publish_client_cas()
        data = (await server.get(CONFIG_MAP)).obj["data"]
        assert data == {"client-ca-file": server.ca.certificate_pem.decode(), key: value}

    in_server_with(test)
