"""Agent process of a machine that joins the k3s way: joins unless it is a member, then keeps the membership fresh until stopped.

Rules kept here:
* SIGTERM and SIGINT end it cleanly, even during a join, which the next run continues.
* Files that were copied from another machine end the process before their certificate is used.
* The load balancer listens before the join, so that a kubelet that is there reaches a server as soon as one answers.
* The tasks of a member run beside each other: heartbeat, renewals of each certificate, hooks, and `_follow`, which brings the
  addresses of the API servers and the CAs of the cluster up to date.
* A renewal goes through the supervisor (docs/protocol/k3s.md#renewals-of-an-agent) with a new key, which is on disk before it is
  used, and is authenticated by the certificate of the node. The pair in use stays until the next one is whole. After 401 the API
  server is asked whether the membership has ended. (k3s renews at a restart only.)
* Node and serving certificate follow the address of the machine, unless it was given. (k3s reads it at a restart only.)
* A certificate that expired obtains another, as for any member (`mooring.agent.recovery`).
* A machine whose certificate request is denied, or waits for a person, stays: it logs each reason once, and asks again for the
  same key after growing pauses. A node password that is wrong ends the process.
* After the end of a membership the machine sends nothing more. With a token file it waits until the file holds a token, and joins
  again; otherwise the process ends with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

from mooring.agent import clusterfiles
from mooring.agent.daemon import NO_MEMBER, report_trust, run_all, until_stopped
from mooring.agent.hooks import Hooks
from mooring.agent.k3s.membership import (
    AgentPlan,
    SupervisedMember,
    TokenNeededError,
    check_machine,
    converse,
    join,
    obtain,
)
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.member import check_expired, check_files, heartbeat, silence, watch_files
from mooring.agent.pairfiles import Pair
from mooring.agent.recovery import REFUSED_SECONDS, Attempts
from mooring.agent.registration import MembershipEndedError, check_issued, check_membership
from mooring.agent.renewal import DECISIONS, ClientCertificateExpiredError, Renewal, random_draw
from mooring.agent.steps import CERTIFICATE, EXISTING, JoinError, Report, described, reason_of
from mooring.client.cluster import ClusterClient
from mooring.client.http.connection import k3s_proxies
from mooring.client.http.requests import drive_fetching, ignore
from mooring.clock import Clock, SystemClock
from mooring.errors import MooringError
from mooring.reminders import LastingProblem
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.discovery.errors import AnotherClusterError, RefusedAnswerError
from mooring.trust.discovery.fetch import Polling
from mooring.trust.discovery.refresh import first_published
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpsurl import url_of
from mooring.trust.k3s.exchanges import KUBELET, WANTED, Wanted, has_addresses, is_usable
from mooring.trust.k3s.refusals import CredentialRefusedError, NodePasswordRefusedError
from mooring.trust.k3s.token import K3sToken

log = logging.getLogger("mooring.agent")

FOLLOW_SECONDS = 60.0
"""Seconds between two readings of the API servers: a server that was added serves this machine a minute later."""
CA_ROUNDS = 5
"""Readings of the API servers for each reading of the CAs, so that a CA is followed within 5 minutes."""
FIRST_SECONDS = 1.0
"""Seconds before the first reading, so that the heartbeat starts first."""
LOOK_SECONDS = 2.0
"""Seconds between two looks at the token file, after a membership has ended."""


class SupervisedAgent:
    """The agent of one machine. `report` gets the progress of a join, `on_member` each membership."""

    def __init__(
        self,
        plan: AgentPlan,
        clock: Clock,
        report: Report,
        *,
        on_member: Callable[[SupervisedMember], None] = lambda member: None,
        on_renew: Sequence[str] = (),
        balancer: LoadBalancer | None = None,
        draw: Callable[[], float] = random_draw,
        notifier: ServiceNotifier = ServiceNotifier(),
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._report = report
        self._on_member = on_member
        self._on_renew = tuple(on_renew)
        self._balancer = balancer
        self._draw = draw
        self._notifier = notifier

    async def run(self) -> NoReturn:
        """Run until cancelled. Raises JoinError, ConfigError."""
        member = await self._join_or_come_back()
        while True:
            self._on_member(member)
            log.info("member %s of %s", member.node_name, member.server)
            self._notifier.ready(f"member {member.node_name} of {member.server}")
            if self._balancer is not None:
                self._balancer.update(member.apiservers)
            for found in member.files.exposures():
                log.warning("%s", found)
            try:
                await self._keep(member)
            except ClientCertificateExpiredError as error:
                log.warning("%s", error)
                self._notifier.status(str(error))
                member = await self._join_or_come_back()
            except MembershipEndedError as error:
                try:
                    await member.check_cluster(self._clock)
                except AnotherClusterError as other:
                    raise JoinError(EXISTING, str(other)) from other
                self._notifier.status(f"{NO_MEMBER}: {error}")
                member = await self._join_again(error)

    # ── becoming a member ────────────────────────────────────────────────────────────────────────────────────────

    async def _join(self) -> SupervisedMember:
        balancer = self._balancer
        if balancer is None:
            return await join(self._plan, self._clock, self._report)
        learned = tuple(url_of(address) for address in balancer.servers.known)
        return await join(self._plan, self._clock, self._report, learned, balancer.url)

    async def _join_or_come_back(self) -> SupervisedMember:
        """Return the membership, however long a request waits, or the way back takes. Raises JoinError for other failures."""
        attempts = Attempts()
        while True:
            token = self._token()
            try:
                return await self._join()
            except JoinError as error:
                was_member = self._has_expired_pair()
                if isinstance(error.__cause__, TokenNeededError) or not (was_member or _is_undecided_or_denied(error)):
                    raise
                pause = attempts.pause_after(error)
                self._notifier.status(str(error))
            await self._await_credential(pause, token, was_member=was_member)

    def _has_expired_pair(self) -> bool:
        """Return True when this machine has a certificate that expired, with which it may come back."""
        pair = self._plan.files().client.read_pair()
        return pair is not None and pair.leaf.not_valid_after_utc <= self._clock.now()

    def _token(self) -> K3sToken | None:
        """Return the token that is given now; None for none, and for one that cannot be read."""
        try:
            return self._plan.token.read()
        except MooringError:
            return None

    async def _await_credential(self, seconds: float, token: K3sToken | None, *, was_member: bool) -> None:
        """Return after so many seconds, or as soon as another token than `token` is given. A member that lost its files ends."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            if was_member:
                check_files(self._plan.files())
            if self._token() not in (None, token):
                return
            await self._clock.sleep(min(LOOK_SECONDS, left))

    async def _join_again(self, ended: MooringError) -> SupervisedMember:
        """Return the membership after a token was found in the token file. Raises JoinError without such a file."""
        said = silence(self._plan.files(), self._clock.now())
        if self._plan.token.file is None:
            reason = f"{ended}{said}; the files stay; start the agent with a valid token to join again"
            raise JoinError(EXISTING, reason) from ended
        file = self._plan.token.file
        log.error(
            "%s%s. The heartbeat has ended, the files stay. Write a valid token to %s to join again", ended, said, file
        )
        attempts = Attempts()
        while True:
            await self._await_token()
            token = self._token()
            try:
                return await self._join()
            except JoinError as error:
                pause = max(REFUSED_SECONDS, attempts.pause_after(error))
            await self._await_credential(pause, token, was_member=True)

    async def _await_token(self) -> None:
        problem = LastingProblem(log.error)
        while True:
            check_files(self._plan.files())
            try:
                if self._plan.token.read() is not None:
                    return
            except MooringError as error:
                problem.note(str(error))
            await self._clock.sleep(LOOK_SECONDS)

    # ── being a member ───────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, member: SupervisedMember) -> None:
        """Keep the membership fresh. Raises MembershipEndedError, ClientCertificateExpiredError, FilesGoneError."""
        try:
            async with member.client(self._clock) as client:
                servers = self._plan.settings.server
                await _Membership(
                    member, client, self._clock, self._on_renew, servers, self._balancer, self._draw
                ).run()
        except ClientCertificateExpiredError:
            check_files(member.files)
            raise
        except MembershipEndedError as error:
            check_files(member.files)
            check_expired(member.files, error, self._clock)
            raise


def _is_undecided_or_denied(error: JoinError) -> bool:
    """Return True when the supervisor refused a certificate request, or has not decided about it."""
    cause = error.__cause__
    is_refused = isinstance(cause, DECISIONS) and not isinstance(cause, NodePasswordRefusedError)
    return error.step == CERTIFICATE and (is_refused or isinstance(cause, RefusedAnswerError))


ONCE = Polling(attempts=1)
"""One round of requests: the loop around them has pauses of its own."""


class SupervisorRenewal(Renewal):
    """Keeps one certificate fresh. `member` returns the membership with its present addresses."""

    def __init__(
        self,
        wanted: Wanted,
        member: Callable[[], SupervisedMember],
        clock: Clock,
        on_renewed: Callable[[], Awaitable[None]],
        draw: Callable[[], float] = random_draw,
    ) -> None:
        self._wanted = wanted
        self._member = member
        self._pairs = member().files.pair(wanted)
        self._requested_for: tuple[str, ...] | None = None
        """Addresses that the last request named, of which a server may leave some out."""
        super().__init__(wanted.name, self._pairs, clock, on_renewed, draw)

    def satisfies(self, pair: Pair) -> bool:
        if not is_usable(pair.leaf, self._wanted, self._member().node_name, self._clock.now()):
            return False
        addresses = self._member().identity.all_addresses
        return not self._wanted.serves or addresses == self._requested_for or has_addresses(pair.leaf, addresses)

    def check_usable(self) -> None:
        current = self._member().files.client.read_pair()
        if current is None or not current.valid_at(self._clock.now()):
            raise ClientCertificateExpiredError(
                "the certificate client-kubelet of this machine is missing or has expired"
            )

    def place(self, pair: Pair) -> Path:
        self._pairs.replace(pair)
        return self._pairs.current

    async def obtain(self) -> Pair:
        member = self._member()
        supervisor = member.supervisor(polling=ONCE)
        self._requested_for = member.identity.all_addresses
        await member.check_cluster(self._clock)
        try:
            pair = await obtain(supervisor, member.files, self._wanted, member.identity, self._clock, ignore)
        except CredentialRefusedError:
            current = member.files.client.read_pair()
            if current is not None:
                uid = member.known_uid()
                cluster_id = member.files.read_cluster_id()
                await check_membership(
                    current, member.node_name, uid, member.clusters, self._clock, cluster_id=cluster_id
                )
            raise
        if self._wanted is KUBELET:
            # Before it is placed: a certificate that the server does not accept must not replace one that it does.
            await check_issued(pair, member.node_name, member.clusters, self._clock)
        return pair


class _Membership:
    """One membership, its addresses, and the tasks that keep it."""

    def __init__(
        self,
        member: SupervisedMember,
        client: ClusterClient,
        clock: Clock,
        on_renew: Sequence[str],
        servers: Sequence[str],
        balancer: LoadBalancer | None,
        draw: Callable[[], float],
    ) -> None:
        """`servers` are the URLs that the agent was given."""
        self._servers = tuple(servers)
        self._member = member
        self._client = client
        self._clock = clock
        self._balancer = balancer
        self._draw = draw
        self._hooks = Hooks(on_renew, member.files, member.node_name, clock)
        self._renewals = [
            SupervisorRenewal(
                wanted,
                lambda: self._member,
                clock,
                self._on_node_renewed if wanted is KUBELET else self._on_renewed,
                draw,
            )
            for wanted in WANTED
        ]

    async def run(self) -> None:
        files = watch_files(self._member.files, self._clock)
        tasks: list[Coroutine[Any, Any, Any]] = [files, self._hooks.run(), self._follow()]
        tasks += [one.run() for one in self._renewals]
        beating = heartbeat(self._member, self._client, lambda: self._member.address())
        if beating is not None:
            tasks.append(beating.run())
        await run_all(*tasks)

    async def _on_renewed(self) -> None:
        self._hooks.wake()

    async def _on_node_renewed(self) -> None:
        await self._client.use_new_credentials()
        self._hooks.wake()

    async def _follow(self) -> NoReturn:
        """Bring addresses and CAs up to date until cancelled. A server that does not answer changes nothing."""
        problem = LastingProblem(log.warning, "addresses and CAs could not be read again, they stay as they are: %s")
        rounds = 0
        await self._clock.sleep(FIRST_SECONDS)
        while True:
            try:
                self._member = await self._member.relocated()
                await self._follow_addresses()
                if rounds % CA_ROUNDS == 0:
                    await self._follow_cas()
                problem.note("")
                rounds += 1
            except MembershipEndedError:
                raise
            except MooringError as error:
                problem.note(reason_of(error), described(error))
            # Spread, so that machines that started together do not ask at the same moment.
            await self._clock.sleep(FOLLOW_SECONDS * (0.9 + 0.2 * self._draw()))

    async def _follow_addresses(self) -> None:
        supervisor = self._member.supervisor(polling=ONCE)
        found = await converse(supervisor.fetch_apiservers(), self._clock, ignore)
        if self._balancer is not None:
            self._balancer.update(found)
        port = self._member.api_port
        # Where the API server has a port of its own, its addresses are not those of supervisors.
        learned = () if port else tuple(url_of(address) for address in found)
        urls = tuple(dict.fromkeys((supervisor.urls[0], *learned, *self._servers)))
        if urls != self._member.urls:
            self._member = self._member.at(urls)
            await self._client.use(self._member.clusters)

    async def _follow_cas(self) -> None:
        member = self._member
        published = await self._published()
        supervisor = member.supervisor(polling=ONCE)
        client_ca = await converse(supervisor.fetch_client_ca(), self._clock, ignore)
        server_ca = await converse(supervisor.fetch_server_ca(), self._clock, ignore)
        written = member.files.write_cas(client_ca, server_ca)
        if written:
            log.info("the cluster published other CAs; wrote %s", clusterfiles.listed(written))
            self._member = member = member.at(member.urls)
            await self._client.use(member.clusters)
            self._hooks.wake()
        if self._is_ca_superseded(client_ca, published):
            for one in self._renewals:
                one.renew_early()
        await report_trust(self._client, member.node_name, member.clusters)

    def _is_ca_superseded(self, client_ca: bytes, published: TrustedCluster | None) -> bool:
        """Return True when the CA of the certificate was replaced, or a Mooring server says that it will be."""
        pair = self._member.files.client.read_pair()
        if pair is None:
            return False
        if not clusterfiles.signed_by(pair, client_ca, self._clock.now()):
            return True
        return published is not None and clusterfiles.is_superseded(pair, published)

    async def _published(self) -> TrustedCluster | None:
        """Return what the cluster of this machine publishes, and remember its id; None where it cannot be read, as k3s's.

        Raises AnotherClusterError.
        """
        known_id = self._member.files.read_cluster_id()
        try:
            _, found = await drive_fetching(first_published(self._member.clusters, known_id), self._clock)
        except AnotherClusterError:
            raise
        except MooringError:
            return None
        if found.cluster_id and not known_id:
            self._member.files.record.write("clusterID", found.cluster_id)
        return found


async def run(
    plan: AgentPlan,
    *,
    clock: Clock | None = None,
    report: Report = lambda progress: None,
    on_member: Callable[[SupervisedMember], None] = lambda member: None,
    on_renew: Sequence[str] = (),
    notifier: ServiceNotifier = ServiceNotifier(),
) -> None:
    """Run until SIGTERM or SIGINT. Raises JoinError, ConfigError."""
    clock = clock or SystemClock()
    check_machine(plan)
    async with AsyncExitStack() as stack:
        balancer = None
        settings = plan.settings
        if not settings.disable_apiserver_lb:
            files = plan.files()
            files.make()
            balancer = LoadBalancer(
                settings.lb_server_port,
                settings.server,
                clock,
                files.load_balancer,
                port_flag="--lb-server-port",
                proxies=k3s_proxies,
            )
            await stack.enter_async_context(balancer)
        agent = SupervisedAgent(
            plan, clock, report, on_member=on_member, on_renew=on_renew, balancer=balancer, notifier=notifier
        )
        await until_stopped(agent.run(), clock, notifier)
