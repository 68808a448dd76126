"""Agent process: joins unless this machine is a member, then keeps the membership fresh, and reports the CAs that it trusts."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from mooring.agent import machineid
from mooring.agent.certificaterequest import (
    CertificateTemplate,
    NotAnsweredError,
    RequestEndedError,
    serving_template,
)
from mooring.agent.clusterfiles import follow, refresh
from mooring.agent.hooks import Hooks
from mooring.agent.join import Joined, JoinOptions, join, record_choices
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.member import check_expired, check_files, heartbeat, silence, watch_files
from mooring.agent.pairfiles import Pair
from mooring.agent.recovery import Attempts, check_machine, not_a_member, read_member, rejoin
from mooring.agent.registration import CertificateRefusedError, MembershipEndedError, check_issued, check_membership
from mooring.agent.renewal import ClientCertificateExpiredError, RequestedRenewal
from mooring.agent.settings import AgentSettings
from mooring.agent.steps import JoinError, Report, described
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.errors import MooringError, NotFoundError, UnauthorizedError
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.bootstraptoken.restrictions import TOKEN_USED_UP
from mooring.trust.discovery.errors import AnotherClusterError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.httpsurl import url_of
from mooring.trust.joinconfiguration import ByAddress, JoinPlan
from mooring.trust.kubeconfig import Cluster, address_of

# Report of the CAs that this machine trusts, in an annotation of its Node.
#
# Rules kept here: the annotation names the public key of every CA in kubelet.conf, sorted, so that a rollover of the CA knows which
# machines are still behind. It is written only when it differs, on a Node of another program too. A Node that does not exist is not
# made.

TRUSTED_CAS = "mooring.dev/trusted-cas"
"""Annotation: `sha256:<hex of the public key>` of each CA, separated by commas."""


def trusted_cas(clusters: Sequence[Cluster]) -> str:
    """Return the value of the annotation. Empty where the system's roots verify the server."""
    return ",".join(sorted({str(pin) for one in clusters if one.ca_pem for pin in pins_of(one.ca_pem)}))


async def report_trust(client: ClusterClient, node_name: str, clusters: Sequence[Cluster]) -> None:
    """Write the annotation if it differs. Raises ApiError, PeerError."""
    value = trusted_cas(clusters)
    try:
        node = await client.get("nodes", node_name)
    except NotFoundError:
        return
    if (node["metadata"].get("annotations") or {}).get(TRUSTED_CAS) != value:
        await client.patch("nodes", node_name, {"metadata": {"annotations": {TRUSTED_CAS: value}}})


# Agent process: joins unless this machine is a member, then keeps the membership fresh until it is stopped.
#
# Rules kept here:
# * SIGTERM and SIGINT end it cleanly, even during a join, which the next run continues.
# * With a certificate on disk no token is needed. Files that were copied from another machine end the process before their
#   certificate is used.
# * The tasks of a member run beside each other (`_tasks`). An error that one of them raises ends the process, except these two:
#   a membership that ended, and a certificate that expired.
# * Files that were removed end the process: the machine has left (`mooring.agent.member`).
# * After the end of a membership the agent sends nothing but a question every minute whether its certificate is accepted again.
#   It keeps its files and continues when `mooring join` has placed another certificate.
# * A machine whose certificate expired takes the way back (`mooring.agent.recovery`), after a join with the token at hand failed.
# * A machine whose request was denied or deleted logs the reason once, and sends the next request after an hour. One whose request
#   nobody decides waits on, with the same request. One whose token is used up ends: only another token helps.
# * The service manager that started the process hears of each membership and its end, and gets signs of life from the event loop.
# * The agent's own requests go to the servers directly, and not by the load balancer.
# * The names of a serving certificate follow the addresses of the Node (docs/protocol/kubelet-certificates.md), which is read
#   every minute, no matter which program maintains it. Without an IP address no certificate is requested. A Node that cannot be
#   read leaves the names as they are.

log = logging.getLogger("mooring.agent")

LOOK_SECONDS = 2.0
"""Seconds between two looks for another certificate, after a membership has ended. A look reads one link."""
NO_MEMBER = "no member of a cluster any more"
ASK_SECONDS = 60.0
"""Seconds between two questions whether a rejected certificate is accepted again: a revocation may have been withdrawn."""


class Agent:
    """The agent of one machine. `report` gets the progress of a join, `on_member` each membership."""

    def __init__(
        self,
        plan: JoinPlan | None,
        options: JoinOptions,
        more: AgentSettings,
        clock: Clock,
        report: Report,
        on_member: Callable[[Joined], None],
        notifier: ServiceNotifier = ServiceNotifier(),
    ) -> None:
        self._plan = plan
        self._options = options
        self._more = more
        self._clock = clock
        self._report = report
        self._on_member = on_member
        self._notifier = notifier

    async def run(self) -> None:
        """Run until cancelled. Raises JoinError, ConfigError."""
        while True:
            joined = await self._member()
            if self._options.adopts:
                machineid.remember(joined.files.record, self._options.machine)
            self._on_member(joined)
            log.info("member %s of %s", joined.node_name, joined.server)
            self._notifier.ready(f"member {joined.node_name} of {joined.server}")
            if joined.files.settle_address():
                log.warning(
                    "wrote %s: it named a load balancer that does not run any more; restart a kubelet that uses it",
                    joined.files.kubeconfig,
                )
            for found in joined.files.exposures():
                log.warning("%s", found)
            try:
                await self._keep(joined)
            except ClientCertificateExpiredError as error:
                log.warning("%s", error)
                self._notifier.status(str(error))
            except MembershipEndedError as error:
                is_refused = isinstance(error, CertificateRefusedError)
                try:
                    if await joined.is_accepted(self._clock):
                        await self._leave_out_other_clusters(joined)
                        continue
                except AnotherClusterError as other:
                    self._notifier.status(str(other))
                    log.error("%s. The heartbeat waits until the cluster of this machine answers again", other)
                    await self._await_membership(joined, asks=True)
                    continue
                self._notifier.status(f"{NO_MEMBER}: {error}")
                # The server refuses a certificate of a retired CA as it refuses a revoked one. The CAs that the
                # cluster publishes tell them apart.
                if is_refused and await self._is_ca_retired(joined):
                    log.warning(
                        "the CA of the certificate was replaced while this machine was off: it asks for another one"
                    )
                    await self._come_back(joined.files.client.version(), is_retired=True)
                    continue
                log.error(
                    "%s%s. The heartbeat has ended, the files stay. Join again with a token, or have an administrator approve it: "
                    "`mooring join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH`. This agent then goes on",
                    error,
                    silence(joined.files, self._clock.now()),
                )
                await self._await_membership(joined, asks=is_refused)

    # ── becoming a member ────────────────────────────────────────────────────────────────────────────────────────

    async def _member(self) -> Joined:
        """Return the membership, after a join or the way back if needed. Raises JoinError, ConfigError."""
        plan = self._plan
        found = read_member(self._options)
        if found is not None and plan is not None and plan.node_name not in ("", found.node_name):
            found = None
        if found is not None and is_valid(found, self._clock):
            record_choices(found.files, self._options)
            return found
        if plan is None and found is None:
            raise not_a_member(self._options, "give the flags of `mooring join` as well")
        attempts = Attempts()
        while plan is not None:
            try:
                return await join(plan, self._options, self._clock, self._report)
            except JoinError as error:
                if found is not None:
                    log.warning("%s", error)
                    break
                cause = error.__cause__
                is_denied = isinstance(cause, RequestEndedError) and cause.reason != TOKEN_USED_UP
                if is_denied or isinstance(cause, NotAnsweredError):
                    # An exit would let the service manager start the agent again, with another request every few seconds
                    pause = attempts.pause_after(error)
                    self._notifier.status(str(error))
                    if joined := await self._await_certificate(pause, was_member=False):
                        return joined
                    continue
                raise
        return await self._come_back()

    async def _is_ca_retired(self, joined: Joined) -> bool:
        """Return whether the cluster names CAs that did not sign the certificate. False when it cannot be asked."""
        pair = joined.files.client.read_pair()
        try:
            return pair is not None and (await refresh(joined.files, pair, self._clock)).retired
        except MooringError:
            return False

    async def _come_back(self, refused: tuple[int, int] | None = None, *, is_retired: bool = False) -> Joined:
        """Return the membership after the way back, however often it has to be tried.

        `refused` is the version of a valid certificate that the server does not accept.
        """

        attempts = Attempts()
        while True:
            try:
                return await rejoin(self._options, self._clock, self._report, is_retired=is_retired)
            except JoinError as error:
                if isinstance(error.__cause__, MembershipEndedError) and (found := read_member(self._options)):
                    # It has a certificate again; the heartbeat ends for the same reason.
                    return found
                pause = attempts.pause_after(error)
                self._notifier.status(f"{self._expiry()}{error}")
            if found := await self._await_certificate(pause, refused):
                return found

    def _expiry(self) -> str:
        """Return that the certificate expired, as the beginning of a status; "" for a valid one, and for none."""
        found = read_member(self._options)
        if found is None or found.pair is None or is_valid(found, self._clock):
            return ""
        return f"the client certificate expired at {rfc3339(found.pair.leaf.not_valid_after_utc)}; "

    async def _await_certificate(
        self, seconds: float, unlike: tuple[int, int] | None = None, *, was_member: bool = True
    ) -> Joined | None:
        """Return the membership when another program places a valid certificate within `seconds`; else None.

        `unlike` is the version of the files that does not count. Files that a member lost end the process.
        """
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(LOOK_SECONDS, left))
            if was_member:
                check_files(self._options.state)
            found = read_member(self._options)
            if found is not None and is_valid(found, self._clock) and found.files.client.version() != unlike:
                return found
        return None

    async def _leave_out_other_clusters(self, joined: Joined) -> None:
        """Write kubelet.conf without the addresses at which another cluster answers, or pause."""
        pair = joined.files.client.read_pair()
        try:
            if pair is not None:
                found = await refresh(joined.files, pair, self._clock)
                log.warning(
                    "another cluster answers at an address of this machine; it goes on with %s",
                    found.clusters[0].server,
                )
                return
        except MooringError as error:
            log.warning("another cluster answers at an address of this machine, which stays: %s", error)
        await self._await_certificate(ASK_SECONDS)

    async def _await_membership(self, joined: Joined, *, asks: bool) -> None:
        """Return when another certificate is on disk, or, when it `asks`, the cluster accepts the one that it rejected.

        Return also when that one has expired, as on a machine whose clock was behind that of the server.
        """
        before = joined.files.client.version()
        while await self._await_certificate(ASK_SECONDS, before) is None:
            pair = joined.files.client.read_pair()
            if asks and pair is not None:
                if not pair.valid_at(self._clock.now()):
                    return
                try:
                    uid = joined.known_uid()
                    clusters = joined.files.read_clusters() or joined.clusters
                    cluster_id = joined.files.read_cluster_id()
                    await check_membership(
                        pair, joined.node_name, uid, clusters, self._clock, cluster_id=cluster_id, answer_needed=True
                    )
                    break
                except MooringError:
                    continue
        log.info("this machine is a member again")

    # ── being a member ───────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, joined: Joined) -> None:
        """Keep the membership fresh. Raises MembershipEndedError, ClientCertificateExpiredError, FilesGoneError."""
        try:
            async with joined.client(self._clock) as client:
                await run_all(*self._tasks(joined, client))
        except ClientCertificateExpiredError:
            # Files that were removed come first: the machine has left, and must not get another certificate by
            # itself.
            check_files(joined.files)
            raise
        except MembershipEndedError as error:
            check_files(joined.files)
            check_expired(joined.files, error, self._clock)
            raise

    def _tasks(self, joined: Joined, client: ClusterClient) -> list[Coroutine[Any, Any, None]]:
        state = joined.files
        hooks = Hooks(self._more.on_renew, state, joined.node_name, self._clock)
        balancer = self._options.balancer
        endpoints = _given_endpoints(self._plan) or (() if balancer is None else balancer.servers.seeds)

        async def on_renewed() -> None:
            await client.use_new_credentials()
            hooks.wake()

        async def on_refreshed(clusters: tuple[Cluster, ...]) -> None:
            hooks.wake()
            try:
                await report_trust(client, joined.node_name, clusters)
            except UnauthorizedError:
                pair = state.client.read_pair()
                if pair is not None:
                    await check_membership(pair, joined.node_name, "", clusters, self._clock)
            except MooringError as error:
                log.warning("the CAs that are trusted here could not be reported on the Node: %s", described(error))

        renewals: list[RequestedRenewal] = []
        beating = heartbeat(joined, client, on_alone=lambda: renewals[0].look())

        def defers() -> bool:
            """Return True where another program has the Node: it may be a kubelet, which renews the same files."""
            return beating is None or beating.may_be_kept

        renewals.append(client_renewal(joined, client, on_renewed, defers))

        def on_superseded() -> None:
            for one in renewals:
                one.renew_early()

        tasks: list[Coroutine[Any, Any, None]] = [
            watch_files(state, self._clock),
            hooks.run(),
            follow(state, self._clock, client, endpoints, on_refreshed, on_superseded),
            renewals[0].run(),
        ]
        if self._more.serving_certificates:
            serving = serving_renewal(joined, client, hooks)
            renewals.append(serving)
            tasks += [serving.run(), follow_addresses(client, joined.node_name, serving)]
        if beating is not None:
            tasks.append(beating.run())
        return tasks


async def run(
    plan: JoinPlan | None,
    options: JoinOptions = JoinOptions(),
    clock: Clock | None = None,
    report: Report = lambda progress: None,
    on_member: Callable[[Joined], None] = lambda joined: None,
    more: AgentSettings = AgentSettings(),
    notifier: ServiceNotifier = ServiceNotifier(),
) -> None:
    """Run until SIGTERM or SIGINT. Raises JoinError, or ConfigError when there is neither a certificate nor a plan."""
    clock = clock or SystemClock()
    check_machine(options)
    async with AsyncExitStack() as stack:
        if more.load_balancer_port is not None:
            state = options.state
            seeds = _given_endpoints(plan) or state.read_seeds()
            balancer = LoadBalancer(more.load_balancer_port, [url_of(one) for one in seeds], clock)
            # It listens before the join, so that a kubelet that is there reaches a server as soon as one answers.
            await stack.enter_async_context(balancer)
            balancer.update([address_of(one.server) for one in state.read_clusters()])
            options = replace(options, balancer=balancer)
        await until_stopped(Agent(plan, options, more, clock, report, on_member, notifier).run(), clock, notifier)


def _given_endpoints(plan: JoinPlan | None) -> tuple[str, ...]:
    """Return the addresses that were given for a join; none without a join by token."""
    return plan.discovery.endpoints if plan is not None and isinstance(plan.discovery, ByAddress) else ()


async def until_stopped(work: Coroutine[Any, Any, Any], clock: Clock, notifier: ServiceNotifier) -> None:
    """Run `work` until SIGTERM or SIGINT cancels it, with signs of life to the service manager. Raises its error."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the work begins: a signal during a join ends it cleanly, and the next run continues it.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await run_all(work, stopping.wait(), notifier.keep_alive(clock))
    finally:
        notifier.stopping()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run_all(*work: Coroutine[Any, Any, Any]) -> None:
    """Run `work` until one of them ends, and cancel the others. Raises the error that ended it."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_valid(joined: Joined, clock: Clock) -> bool:
    """Return True when the certificate on disk is valid now."""
    return joined.pair is not None and joined.pair.valid_at(clock.now())


def client_renewal(
    joined: Joined,
    client: ClusterClient,
    on_renewed: Callable[[], Coroutine[Any, Any, None]],
    defers: Callable[[], bool] = lambda: False,
) -> RequestedRenewal:
    """Return the renewal of the client certificate with which `client` authenticates."""
    state = joined.files

    async def check(pair: Pair) -> None:
        await check_issued(pair, joined.node_name, client.clusters, client.clock)

    return RequestedRenewal(
        "client",
        state.client,
        client,
        CertificateTemplate(joined.node_name),
        expiration_seconds=lambda: state.record.read().expiration_seconds,
        before=partial(joined.check_cluster, client.clock),
        check=check,
        on_renewed=on_renewed,
        needs_own_certificate=True,
        defers=defers,
    )


def serving_renewal(joined: Joined, client: ClusterClient, hooks: Hooks) -> RequestedRenewal:
    """Return the renewal of the serving certificate, which `follow_addresses` gives its names."""

    async def on_renewed() -> None:
        hooks.wake()

    before = partial(joined.check_cluster, client.clock)
    return RequestedRenewal("serving", joined.files.serving, client, None, before=before, on_renewed=on_renewed)


ADDRESSES_SECONDS = 60.0
"""Seconds between two reads of the Node. Addresses of a machine change rarely, and kubelet looks as often."""
MISSING_SECONDS = 2.0
"""Seconds before the next read of a Node that is not registered yet."""


async def follow_addresses(client: ClusterClient, node_name: str, renewal: RequestedRenewal) -> NoReturn:
    """Give the names of the serving certificate to `renewal` until cancelled."""
    warned = False
    while True:
        pause = ADDRESSES_SECONDS
        try:
            node = await client.get("nodes", node_name)
        except NotFoundError:
            pause = MISSING_SECONDS
        except MooringError:
            pass  # the heartbeat and the renewals report that the server does not answer
        else:
            template = serving_template(node_name, (node.get("status") or {}).get("addresses") or ())
            if template is None and not warned:
                log.warning(
                    "no serving certificate is requested: the Node %s has no IP address among its addresses", node_name
                )
            warned = template is None
            renewal.use_template(template)
        await client.clock.sleep(pause)
