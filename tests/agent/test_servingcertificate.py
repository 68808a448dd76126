"""Names of the serving certificate: they follow the addresses of the Node."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mooring.agent.certificaterequest import CertificateTemplate
from mooring.agent.daemon import ADDRESSES_SECONDS, MISSING_SECONDS, follow_addresses
from mooring.agent.renewal import RequestedRenewal
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import MooringError, NotFoundError, PeerError
from tests.support.manualclock import ManualClock, settle


class Cluster:
    """Cluster with one Node, or the error that its server answers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.answer: Obj | MooringError = NotFoundError("not found")

    async def get(self, plural: str, name: str) -> Obj:
        assert (plural, name) == ("nodes", "m1")
        if isinstance(self.answer, MooringError):
            raise self.answer
        return self.answer

    def has(self, *addresses: str) -> None:
        self.answer = {"status": {"addresses": [{"type": "InternalIP", "address": one} for one in addresses]}}


class Templates:
    """Receiver of the templates, in place of a renewal."""

    def __init__(self) -> None:
        self.seen: list[list[str] | None] = []

    def use_template(self, template: CertificateTemplate | None) -> None:
        found = None if template is None else [str(one) for one in template.ips]
        if self.seen[-1:] != [found]:
            self.seen.append(found)


def test_the_names_follow_the_node_that_appears_moves_and_is_unreachable_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        cluster, templates = Cluster(), Templates()
        task = asyncio.create_task(
            follow_addresses(cast(ClusterClient, cluster), "m1", cast(RequestedRenewal, templates))
        )
        await settle()
        assert templates.seen == []
        cluster.has("192.0.2.7")
        await cluster.clock.advance(MISSING_SECONDS)
        cluster.has("192.0.2.7", "192.0.2.8")
        await cluster.clock.advance(ADDRESSES_SECONDS)
        cluster.answer = PeerError("nothing answers there")
        await cluster.clock.advance(ADDRESSES_SECONDS)
        assert templates.seen == [["192.0.2.7"], ["192.0.2.7", "192.0.2.8"]]
        cluster.has()
        await cluster.clock.advance(ADDRESSES_SECONDS)
        await cluster.clock.advance(ADDRESSES_SECONDS)
        assert templates.seen[2:] == [None]
        assert caplog.messages == [
            "no serving certificate is requested: the Node m1 has no IP address among its addresses"
        ]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
