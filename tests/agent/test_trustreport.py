"""Report of the trusted CAs on the Node."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from mooring.agent.daemon import TRUSTED_CAS, report_trust, trusted_cas
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.kubeconfig import Cluster
from tests.support.testca import ThrowawayCA

ONE, TWO = ThrowawayCA("one").certificate_pem, ThrowawayCA("two").certificate_pem
BOTH = [Cluster("a", "https://a.test", ONE + TWO), Cluster("b", "https://b.test", ONE)]


class Api:
    """API server with one Node, or none."""

    def __init__(self, node: Obj | None) -> None:
        self.node = node
        self.patches: list[Obj] = []

    async def get(self, plural: str, name: str) -> Obj:
        if self.node is None:
            raise NotFoundError("not found")
        return self.node

    async def patch(self, plural: str, name: str, patch: Obj, **options: Any) -> Obj:
        self.patches.append(patch)
        self.node = patch
        return patch


def reported(api: Api) -> list[Obj]:
    for _ in range(2):
        asyncio.run(report_trust(cast(ClusterClient, api), "m1", BOTH))
    return api.patches


def test_the_public_key_of_every_ca_is_named_once_and_sorted() -> None:
    assert trusted_cas(BOTH) == ",".join(sorted([str(pins_of(ONE)[0]), str(pins_of(TWO)[0])]))
    assert trusted_cas([Cluster("a", "https://a.test")]) == ""


def test_the_annotation_is_written_when_it_differs_and_never_makes_a_node() -> None:
    wanted = {"metadata": {"annotations": {TRUSTED_CAS: trusted_cas(BOTH)}}}
    assert reported(Api({"metadata": {}})) == [wanted]
    assert reported(Api(wanted)) == []
    assert reported(Api(None)) == []
