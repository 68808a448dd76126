"""Short form of `python -m tests.faults`: three servers on three members of etcd, agents, clients, and one fault of each kind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.faults.scenario import Scenario
from tests.faults.site import CLIENT, Site, faults, site
from tests.support import etcd
from tests.support.killable import seeded
from tests.support.network import missing

FAULTS = (
    "server s0 is killed",
    "server s1 is stopped",
    "server s2 is cut off from everything",
    "the leader of etcd is killed",
    "the leader of etcd is stopped",
    "two servers are cut off from the leader of etcd",
    "etcd has no quorum",
)
SECONDS = 1.0


@pytest.mark.crash
@pytest.mark.skipif(bool(missing()), reason=missing() or "network namespaces can be made")
@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is there")
def test_no_fault_loses_a_write_an_agent_or_a_token(tmp_path: Path) -> None:
    moments = seeded()

    def run(place: Site) -> Scenario:
        scenario = Scenario(
            place, moments, tmp_path, machines=10, clients=6, operations=400, joins_of_a_token=4, beats_before=8
        )
        chosen = [fault for fault in faults(place, SECONDS) if fault.sentence.startswith(FAULTS)]
        assert len(chosen) == len(FAULTS)
        try:
            asyncio.run(scenario.run(chosen))
        except BaseException:
            sys.stdout.write("\n----\n".join(server.log[-2000:] for server in place.servers))
            raise
        return scenario

    with site(tmp_path, 3, 3) as (net, start):
        scenario = net.run(CLIENT, lambda: run(start()))
    sys.stdout.write("\n".join([*map(str, scenario.happened), *scenario.summary()]))
    assert scenario.findings == []
