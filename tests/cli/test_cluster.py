"""Commands with a client: what their work returns."""

from __future__ import annotations

from mooring.cli.cluster import run
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from tests.support.manualclock import EPOCH
from tests.support.testca import ThrowawayCA


class Listed:
    """A result, such as a list of 5 000 Nodes."""

    written = 0

    def __repr__(self) -> str:
        self.written += 1
        return "Listed()"


def test_a_large_result_is_returned_and_not_written_out() -> None:
    selected = Selected(
        Cluster("kubernetes", "https://127.0.0.1:1", ThrowawayCA(now=EPOCH).certificate_pem),
        KubeconfigUser("admin"),
        "",
    )
    listed = Listed()

    async def work(client: ClusterClient) -> Listed:
        return listed

    assert run(selected, SystemClock(), work) is listed
    assert listed.written == 0
