"""Agents that join with limited tokens and renew their certificates while the control plane breaks.

Rules kept here:
* Each agent is `mooring.agent.daemon.Agent`, the whole of it, as a task of this process. Its clock is ahead, so that a certificate
  of ten minutes, the shortest that Kubernetes allows, is due for renewal about as soon as it is issued.
* There are as many places as machines. One more machine than a token allows asks with it; the one that is denied takes the next.
* An agent that ends with another error is started again, as systemd does.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from mooring.agent import certificaterequest
from mooring.agent.certificaterequest import RequestEndedError
from mooring.agent.daemon import Agent
from mooring.agent.join import Joined
from mooring.agent.settings import AgentSettings
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock, parse_rfc3339
from mooring.errors import MooringError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.restrictions import Restrictions, joined_keys
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, new_record, secret_name, to_secret
from mooring.trust.discovery.fetch import Polling
from tests.support.joinplans import join_options, join_plan

LIFETIME_SECONDS = 600
AHEAD = timedelta(seconds=400)
"""Renewals come 330 s to 510 s after the issue by the agent's clock, so from at once to 110 s after by the server's."""
POLLING = Polling(interval=0.5, total=600.0)
PATIENCE = 600.0
RESTART_SECONDS = 1.0
BEAT = timedelta(seconds=40)
"""Time within which a member renews its Lease."""


class AheadClock(SystemClock):
    def now(self) -> datetime:
        return super().now() + AHEAD


@dataclass
class Fleet:
    """Machines in `root`, of which `joins` use each token."""

    endpoints: tuple[str, ...]
    pins: tuple[str, ...]
    root: Path
    moments: random.Random
    joins: int
    members: dict[str, Joined] = field(default_factory=dict)
    denied: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    tokens: list[BootstrapToken] = field(default_factory=list)

    async def prepare(self, admin: ClusterClient, machines: int) -> None:
        """Create as many tokens as the machines need, and no more."""
        self.names = [f"n{number}" for number in range(machines)]
        for first in range(0, machines, self.joins):
            token = generate_token(self.moments.randbytes)
            restrictions = Restrictions(min(self.joins, machines - first))
            record = new_record(token, SystemClock().now(), ttl=timedelta(hours=1), restrictions=restrictions)
            await admin.create("secrets", to_secret(record))
            self.tokens.append(token)

    async def run(self, spread: float) -> None:
        """Start all agents within `spread` seconds and keep them running, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(self.names):
                group.create_task(self._machine(name, number, spread * self.moments.random()))

    async def _machine(self, name: str, number: int, delay: float) -> None:
        await asyncio.sleep(delay)
        first = number // (self.joins + 1)
        tokens = [self.tokens[(first + turn) % len(self.tokens)] for turn in range(len(self.tokens))]
        while True:
            try:
                await self._agent(name, tokens[0]).run()
            except MooringError as error:
                if isinstance(error.__cause__, RequestEndedError) and len(tokens) > 1:
                    self.denied[tokens.pop(0).id] += 1
                    continue
                self.ends[f"{type(error).__name__}: {error}"[:200]] += 1
            await asyncio.sleep(RESTART_SECONDS)

    def _agent(self, name: str, token: BootstrapToken) -> Agent:
        given = join_plan(name, self.endpoints, Secret(token.reveal()), pins=self.pins)
        options = join_options(
            root=self.root / name, polling=POLLING, certificate_timeout=PATIENCE, expiration_seconds=LIFETIME_SECONDS
        )

        def on_member(joined: Joined) -> None:
            self.members[name] = joined

        return Agent(given, options, AgentSettings(), AheadClock(), lambda progress: None, on_member)

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────

    async def everyone_joined(self) -> None:
        while len(self.members) < len(self.names):
            await asyncio.sleep(0.1)

    async def findings(self, admin: ClusterClient, since: datetime) -> list[str]:
        """Return what is wrong: machines that are out, tokens spent twice, certificates issued twice."""
        found = [f"{name} did not join" for name in self.names if name not in self.members]
        leases = {lease["metadata"]["name"]: lease for lease in (await admin.list("leases", "kube-node-lease")).items}
        for name in self.members:
            renewed = (leases.get(name, {}).get("spec") or {}).get("renewTime")
            if renewed is None or parse_rfc3339(renewed) - AHEAD < since:
                found.append(f"{name} does not renew its Lease: {renewed}")
            if (problem := await self._problem(name)) is not None:
                found.append(f"{name} is out: {problem}")
        requests = (await admin.list(certificaterequest.PLURAL)).items
        for token in self.tokens:
            found += await self._token_findings(admin, token, requests)
        return found

    async def _problem(self, name: str) -> str | None:
        """Return why a request with the files on disk fails."""
        try:
            async with connect(load(str(NodeState(self.root / name).kubeconfig))) as client:
                await client.get("nodes", name)
        except (MooringError, ssl.SSLError) as error:
            return str(error)
        return None

    async def _token_findings(self, admin: ClusterClient, token: BootstrapToken, requests: Sequence[Obj]) -> list[str]:
        secret = await admin.get("secrets", secret_name(token.id), NAMESPACE)
        allowed = int(secret["metadata"]["annotations"]["mooring.dev/max-joins"])
        counted = set(joined_keys(secret))
        by = f"system:bootstrap:{token.id}"
        issued = {
            one["metadata"]["name"]
            for one in requests
            if one["spec"]["username"] == by and certificaterequest.certificate_of(one)
        }
        found = []
        if len(counted) > allowed or len(issued) > allowed:
            found.append(f"token {token.id} let in {len(issued)} machines and counted {len(counted)} of {allowed}")
        return found
