"""An etcd that is restored under a running server: what had ended ends again, and the server goes on remembering."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import PLURAL, entry_name
from mooring.controlplane.storewatermark.watermarkfile import read_watermark
from mooring.errors import ApiError, MooringError, UnauthorizedError
from mooring.identity import NODES
from mooring.trust.kubeconfig import KubeconfigUser
from tests.scenarios.test_revocation import jane, user_of
from tests.scenarios.test_tombstones import until
from tests.support import etcd
from tests.support.killable import KillableServer, client_of

pytestmark = pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is installed")


async def answer(server: KillableServer, user: KubeconfigUser) -> str:
    """Return "accepted" or "refused"; "" while the server does not say."""
    async with client_of(server, (server.data_dir / "pki" / "ca.crt").read_bytes(), user) as client:
        try:
            await client.get("namespaces", "default")
        except UnauthorizedError:
            return "refused"
        except ApiError as error:
            return "accepted" if error.reason in ("Forbidden", "NotFound") else ""
        except MooringError:
            return ""
        return "accepted"


@pytest.mark.crash
def test_what_had_ended_stays_ended_under_a_server_whose_etcd_is_restored(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    with etcd.running(tmp_path / "etcd") as cluster:
        (member,) = cluster.members
        server = KillableServer(tmp_path / "data", flags=("--etcd-servers", cluster.endpoints))
        snapshot = tmp_path / "snapshot"

        async def scenario() -> None:
            server.launch()
            await server.ready()
            user, leaf = jane(server.data_dir)
            machine, _ = user_of(server.data_dir, "system:node:n1", NODES)
            revoked = {"serialNumber": f"{leaf.serial_number:x}"}
            async with server.client() as client:
                await client.create("nodes", {"metadata": {"name": "n1"}})
                await asyncio.to_thread(cluster.control, "snapshot", "save", str(snapshot))
                assert [await answer(server, one) for one in (user, machine)] == ["accepted"] * 2
                await client.create(PLURAL, {"metadata": {"name": entry_name(revoked)}, "spec": revoked})
                await client.delete("nodes", "n1")

                async def is_remembered() -> bool:
                    return {"revocation", "node"} <= set(read_watermark(server.data_dir).tombstones)

                await until(is_remembered, "the watermark is written")
            member.kill()
            shutil.rmtree(member.data)
            cluster.restore(member, snapshot)
            member.start()

            async def is_noticed() -> bool:
                return (
                    "made again" in server.log
                    and [await answer(server, one) for one in (user, machine)] == ["refused"] * 2
                )

            await until(is_noticed, "the server notices the restore, and ends again what had ended")
            async with server.client() as client:
                assert (await client.get(PLURAL, entry_name(revoked)))["spec"]["serialNumber"] == revoked[
                    "serialNumber"
                ]
                assert b"[!]restore-check warning" in await client.read("/readyz?verbose")
                config_map = await client.get("configmaps", tombstones.NAME, tombstones.NAMESPACE)
                accepted = {tombstones.ACCEPTED + key: text for key, text in tombstones.pending(config_map).items()}
                assert "waived.node.n1" in accepted
                await client.update("configmaps", {**config_map, "data": accepted})
                later = {"serialNumber": "1f"}
                await client.create(PLURAL, {"metadata": {"name": entry_name(later)}, "spec": later})

                async def is_remembered_again() -> bool:
                    return "serial-1f" in read_watermark(server.data_dir).tombstones["revocation"]

                await until(is_remembered_again, "the watermark is written again")
            await server.stop()

        try:
            asyncio.run(scenario())
        finally:
            server.kill()
