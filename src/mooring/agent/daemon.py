"""Agent process: joins unless this machine is a member, then sends heartbeats until it is stopped.

Rules kept here: SIGTERM and SIGINT end it cleanly, even during a join, which the next run continues. With a certificate on disk no
token is needed. The files follow the addresses and CAs that the cluster publishes (`mooring.agent.clusterfiles`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from mooring.agent import registration
from mooring.agent.clusterfiles import follow
from mooring.agent.heartbeat import Heartbeat, beat_until
from mooring.agent.join import Joined, JoinOptions, join, machine_of, node_client
from mooring.agent.state import NodeState
from mooring.agent.steps import Report
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509 import names
from mooring.trust.joinconfiguration import ByToken, JoinPlan

log = logging.getLogger("mooring.agent")


def member(options: JoinOptions, clock: Clock) -> Joined | None:
    """Return the membership on disk; None when there is none, or its certificate has expired."""
    state = NodeState(options.root)
    clusters, pair = state.read_clusters(), state.read_pair()
    if not clusters or pair is None or not pair.valid_at(clock.now()):
        return None
    name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX)
    return Joined(name, clusters[0], state, pair, others=clusters[1:])


async def run(
    plan: JoinPlan | None,
    options: JoinOptions = JoinOptions(),
    clock: Clock | None = None,
    report: Report = lambda progress: None,
    on_member: Callable[[Joined], None] = lambda joined: None,
) -> None:
    """Run until SIGTERM or SIGINT. Raises JoinError, or ConfigError when there is neither a certificate nor a plan."""
    clock = clock or SystemClock()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        joined = await _join_if_needed(plan, options, clock, report, stopping)
        if joined is None:
            return
        on_member(joined)
        log.info("member %s of %s", joined.node_name, joined.cluster.server)
        for found in joined.state.exposures():
            log.warning("%s", found)
        endpoints = plan.discovery.endpoints if plan and isinstance(plan.discovery, ByToken) else ()
        async with node_client(joined, clock) as client:
            following = asyncio.create_task(follow(joined.state, clock, client, endpoints))
            try:
                if options.register_node == registration.NONE:
                    log.info("no heartbeat: --register-node=none leaves Node and Lease to another program")
                    await stopping.wait()
                else:
                    await beat_until(stopping, Heartbeat(client, machine_of(joined), options.register_node))
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _join_if_needed(
    plan: JoinPlan | None, options: JoinOptions, clock: Clock, report: Report, stopping: asyncio.Event
) -> Joined | None:
    """Return the membership, after a join if needed; None when stopped before."""
    known = member(options, clock)
    if known is not None and (plan is None or plan.node_name == known.node_name):
        return known
    if plan is None:
        raise ConfigError("this machine is no member of a cluster: give the flags of `mooring join` as well")
    joining = asyncio.create_task(join(plan, options, clock, report))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((joining, stopped), return_when=asyncio.FIRST_COMPLETED)
        return joining.result() if joining.done() else None
    finally:
        for task in (joining, stopped):
            task.cancel()
        await asyncio.gather(joining, stopped, return_exceptions=True)
