"""Join: make this machine a member of a cluster, with a certificate of its own.

Steps (docs/protocol/discovery-and-join.md, docs/protocol/kubelet-certificates.md; the names are
those of `steps.STEPS`):
1. existing: a machine with a valid certificate of the pinned cluster is a member already. Its addresses, its CAs and its Node are
   refreshed. The token is not needed. When the server rejects the certificate, or the Node was deleted, the membership has ended:
   the machine joins again, with the token and a new key. Files that were copied from another machine are no membership: they are
   replaced when the certificate of this machine is there, and none of their keys is used.
2. discovery: find the cluster and establish trust in it (`mooring.trust.discovery`).
3. name: a Node with the name of this machine that is Ready or fresh belongs to another machine.
4. bootstrap, key: the token's kubeconfig is written. The key is that of an earlier run, or new, and is on disk before it is used.
5. request: send the certificate request with the token, or with the discovery document's credentials when they are allowed.
6. wait: until the request is approved and signed. 401 and 403 are final after a minute: an API server that restarts refuses valid
   credentials until its caches are filled.
7. certificate: it must be for this key, name and group, valid now, and issued by the CA that signs client certificates. When the
   cluster does not name that CA and its only CA did not issue the certificate, the server has to accept it.
8. files: write the certificate, ca.crt (the CA that signs clients) and kubelet.conf (the CA that verifies the server), then remove
   the token's kubeconfig and the pending key.
9. node: register the Node with the node's own certificate, as `mooring.agent.registration` decides.

Every step tries the other addresses of the cluster when one does not respond. A join that was denied or refused removes the token's
kubeconfig. Any other join continues where it stopped, when it runs again. A dry run performs discovery and reports the other steps.
Discovery alone ends after ca.crt and the token's kubeconfig, and leaves the rest to a kubelet.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from mooring.agent import certificaterequest, clusterfiles, disk, machineid, node, registration, steps
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.machineid import MachineIdentity
from mooring.agent.member import Member, NodeOptions, internal_addresses, register, retry_reported, silence
from mooring.agent.oneshot import ASKING_ADVICE, OneShotRequest
from mooring.agent.pairfiles import Pair
from mooring.agent.registration import check_membership
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Report, Steps, describe_skew, retry, server_date
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.files import MAX_READ, read_limited
from mooring.client.http.credentials import run as run_plugin
from mooring.client.http.requests import drive_notifying, fetch
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.errors import ConfigError, ForbiddenError, MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX
from mooring.pki.errors import PeerCertificateError, PkiError, TokenRefusedError
from mooring.pki.jwt.token import decode_unverified
from mooring.pki.x509 import bundles, names
from mooring.secret import Secret
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import AnotherClusterError, ClockSkewError, DiscoveryError
from mooring.trust.discovery.fetch import (
    SIGNATURE_ALONE,
    UNPROVED,
    DiscoveryExchange,
    Notice,
    Polling,
    led_by_proved,
)
from mooring.trust.discovery.file import discover_by_file, discover_by_url
from mooring.trust.discovery.pins import pins_of
from mooring.trust.discovery.refresh import merge_published
from mooring.trust.discovery.trustedcluster import TrustedCluster, check_same_cluster
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse
from mooring.trust.joinconfiguration import STDIN, ByAddress, ByFile, IdentityToken, JoinPlan, JoinSettings
from mooring.trust.joinrule import named_node, stated
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from mooring.trust.nodename import choose_node_name
from mooring.trust.requestfacts import fact_problem, parse_facts

NAME_REFUSED_SECONDS = 2.0
"""Seconds for which a 403 in the step `name` is retried. Discovery has just shown that the server responds."""
_NAME_TRANSIENT = tuple(error for error in steps.TRANSIENT if error is not ForbiddenError)
_ACCEPTED_TRANSIENT = tuple(error for error in steps.TRANSIENT if error not in steps.REFUSALS)

MAX_TOKEN = 64 << 10
"""Bytes of an identity token that is described; servers take half of it."""
REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW: Obj = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
"""Question who the holder of a credential is."""
T = TypeVar("T")


class RefusedError(PeerError):
    """The server has rejected the bootstrap credentials for as long as a restart may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """Settings of a join, and what one run of it is about. `read_stdin` returns the discovery document on standard input."""

    settings: JoinSettings = field(default_factory=JoinSettings)
    dry_run: bool = False
    discover_only: bool = False
    """End after the CA and bootstrap-kubelet.conf were written: a kubelet does the rest."""
    polling: Polling = field(default_factory=Polling)
    machine_code: Secret | None = None
    """One-time code of an authorized machine, which the request proves that it knows."""
    balancer: LoadBalancer | None = None
    """The load balancer that kubelet.conf is to name."""
    machine: MachineIdentity = field(default_factory=lambda: machineid.this_machine())
    """The machine that joins."""
    adopts: bool = False
    """Record this machine as the one of a membership that another machine had."""
    read_stdin: Callable[[], bytes] = lambda: sys.stdin.buffer.read(MAX_READ)

    @property
    def discovers_alone(self) -> bool:
        """True when the steps after discovery are left out."""
        return self.dry_run or self.discover_only

    @property
    def node(self) -> NodeOptions:
        """Return the settings that were chosen for the Node, now or by an earlier run."""
        first, *others = self.settings.node_ip or self.state.record.read().node_ip or ("",)
        return NodeOptions(
            register_node=self.settings.register_node,
            node_deletion=self.settings.node_deletion,
            address=first,
            more_addresses=internal_addresses(others),
        )

    @property
    def state(self) -> NodeState:
        """Files of the machine."""
        return NodeState(Path(self.settings.root), self.balancer)

    @property
    def certificate_timeout(self) -> float:
        """Seconds of the wait for the certificate."""
        return self.settings.tls_bootstrap_timeout.total_seconds()

    @property
    def expiration_seconds(self) -> int:
        """Lifetime of client certificates that is asked for; 0 for the one chosen before, else the signer's."""
        return int((self.settings.certificate_lifetime or timedelta()).total_seconds())


@dataclass(frozen=True, slots=True)
class Joined(Member):
    """A member that joined kubeadm's way, and what the join did.

    `pair` is None, and the machine is not a member yet, after a dry run and after discovery alone. `request_name` is empty when it
    was a member before. `planned` lists the changes that a dry run leaves out.
    """

    files: NodeState
    pair: Pair | None
    request_name: str = ""
    warnings: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

    @property
    def already_member(self) -> bool:
        return self.pair is not None and not self.request_name


async def join(
    plan: JoinPlan,
    options: JoinOptions = JoinOptions(),
    clock: Clock | None = None,
    report: Report = lambda progress: None,
) -> Joined:
    """Join the cluster of `plan`. Raises JoinError that names the step, the reason and the remedy."""
    return await _Join(plan, options, clock or SystemClock(), report).run()


class _Join:
    def __init__(self, plan: JoinPlan, options: JoinOptions, clock: Clock, report: Report) -> None:
        self.plan = plan
        self.options = options
        self.clock = clock
        self.steps = Steps(clock, report)
        self.state = options.state
        self._ended = False
        self._is_copy = not options.adopts and machineid.is_copy(self.state.record, options.machine)
        pair = self.state.client.read_pair()
        self._copied_from = (
            names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX) if pair else "another machine"
        )
        self._skew = ""

    @property
    def user(self) -> str:
        """The user that this machine will be."""
        return NODE_PREFIX + self.plan.node_name

    async def run(self) -> Joined:
        known = self._find_membership()
        if known is not None and not await self._has_ended(known.clusters):
            if self.options.discovers_alone:
                return known
            return await self._register(await self._refresh_files(known))
        trusted = await self._discover()
        member = self._member_of(trusted)
        if member is not None:
            with self.steps.within(steps.EXISTING):
                check_same_cluster(trusted.server, self.state.read_cluster_id(), trusted.cluster_id)
        if member is not None and not await self._has_ended(trusted.clusters):
            joined = self._joined(trusted.clusters, member, trusted)
            if self.options.discovers_alone:
                return joined
            clusters = await self._write_membership(trusted, member)
            return await self._register(replace(joined, clusters=clusters))
        if self.options.dry_run:
            return self._dry_run_result(trusted)
        if self.plan.asks and self.options.discover_only:
            raise JoinError(
                steps.BOOTSTRAP, "--ask and --discover-only exclude each other: a kubelet asks with a credential"
            )
        if self.options.discover_only:
            return await self._write_discovered(trusted)
        user = self._bootstrap_user(trusted)
        async with ClusterClient(trusted.cluster, user, self.clock, others=trusted.others) as client:
            with self._remove_bootstrap_on_refusal():
                # Before anything is written: a machine whose name another one has leaves no trace.
                await self._check_name(client)
                with self.steps.within(steps.BOOTSTRAP):
                    self.state.make_places()
                    self._drop_copied_key()
                # Before the request: with this file a kubelet continues a join that a crash has ended.
                self._write_bootstrap(client.clusters[0])
                pair, name = await self._certificate(client, trusted)
            clusters = client.clusters
        await self._write(clusters, trusted, pair)
        return await self._register(self._joined(clusters, pair, trusted, name))

    def _joined(
        self, clusters: tuple[Cluster, ...], pair: Pair | None, trusted: TrustedCluster, request_name: str = ""
    ) -> Joined:
        name, warnings = self.plan.node_name, trusted.warnings
        return Joined(name, clusters, self.state, self.options.node, pair, request_name, warnings)

    # ── 1, 2: membership and trust ───────────────────────────────────────────────────────────────────────────────

    def _find_membership(self) -> Joined | None:
        """Return the membership of the pinned cluster, for which no token is needed; None when there is none."""
        discovery = self.plan.discovery
        with self.steps.step(steps.EXISTING) as summary:
            clusters = self.state.read_clusters()
            pair = self._valid_pair()
            if not clusters or pair is None or not isinstance(discovery, ByAddress) or not discovery.is_pinned:
                if pair is None:
                    # Before the server is asked: no token is used where another user could replace the keys.
                    self.state.check_places()
                found = "no certificate yet" if pair is None else "a certificate exists; its cluster is checked"
                summary.append(
                    f"the files here were copied from {self._copied_from}: joining as a new machine"
                    if self._is_copy
                    else found
                )
                return None
            cluster = clusters[0]
            try:
                discovery.check_ca(cluster.ca_pem)
            except (DiscoveryError, ConfigError):
                summary.append("the certificate here is of a cluster whose CA is not pinned")
                return None
            self._check_issuer(pair, self.state.read_ca())
            summary.append(f"already a member of {cluster.server} until {rfc3339(pair.leaf.not_valid_after_utc)}")
            return Joined(self.plan.node_name, clusters, self.state, self.options.node, pair)

    async def _has_ended(self, clusters: tuple[Cluster, ...]) -> bool:
        """Return True when the membership on disk has ended, so that the token has to buy another one."""
        if not self._ended:
            pair = self.state.client.read_pair()
            assert pair is not None  # the caller found it
            uid = Member(self.plan.node_name, clusters, self.state, self.options.node).known_uid()
            with self.steps.within(steps.EXISTING):
                try:
                    known_id = self.state.read_cluster_id()
                    await check_membership(pair, self.plan.node_name, uid, clusters, self.clock, cluster_id=known_id)
                except registration.MembershipEndedError as error:
                    self._ended = True
                    again = (
                        "a kubelet may request another"
                        if self.options.discover_only
                        else "joining again, with a new key"
                    )
                    said = f"{error}{silence(self.state, self.clock.now())}; {again}"
                    self.steps.say(said, kept=True, step=steps.EXISTING)
        return self._ended

    def _valid_pair(self) -> Pair | None:
        """Return the valid certificate on disk; None when there is none. Raises ConfigError when it has another name."""
        pair = None if self._is_copy else self.state.client.read_pair()
        if pair is None or not pair.valid_at(self.clock.now()):
            return None
        user = names.common_name(pair.leaf.subject)
        if not self.plan.node_name:
            # A join rule named the node, when this machine joined.
            self.plan = replace(self.plan, node_name=user.removeprefix(NODE_PREFIX))
        if user != self.user:
            raise ConfigError(
                f'{self.state.client.current} is a valid certificate of "{user}", but this join is for "{self.user}"; '
                f"give --node-name {user.removeprefix(NODE_PREFIX)}"
                + ("" if self.options.adopts else ", or end that membership with mooring leave first")
            )
        return pair

    def _check_issuer(self, pair: Pair, client_ca_pem: bytes) -> None:
        """Raise ConfigError when the certificate is of another cluster. Empty CAs are unknown and decide nothing."""
        try:
            foreign = bool(client_ca_pem) and not clusterfiles.signed_by(pair, client_ca_pem, self.clock.now())
        except PkiError as error:
            raise ConfigError(f"{self.state.ca} cannot be used: {error}; move it away and join again") from None
        if foreign:
            raise ConfigError(
                f"{self.state.client.current} is a valid certificate of another cluster; if this machine shall leave that "
                f"cluster, remove {self.state.ca}, {self.state.kubeconfig} and {self.state.certificates}, then join again"
            )

    async def _refresh_files(self, known: Joined) -> Joined:
        """Update the files to what the cluster publishes now, and remove those that a crash left."""
        assert known.pair is not None  # a membership has a certificate
        assert isinstance(self.plan.discovery, ByAddress)  # membership is found for discovery by token only
        with self.steps.step(steps.FILES) as summary:
            record_choices(self.state, self.options)
            self.state.drop_bootstrap()
            self.state.drop_pending_key()
            try:
                found = await clusterfiles.refresh(
                    self.state, known.pair, self.clock, self.plan.discovery.endpoints, self._report
                )
            except AnotherClusterError:
                raise
            except DiscoveryError as error:
                summary.append(f"left as they are, as cluster-info could not be read again: {error}")
                return known
            summary.append(_written_message(found.written))
        return replace(known, clusters=found.clusters)

    def _report(self, notice: Notice) -> None:
        self.steps.say(notice.message, kept=notice.keep)

    async def _discover(self) -> TrustedCluster:
        with self.steps.step(steps.DISCOVERY) as summary:
            try:
                trusted = await drive_notifying(self._discovery(), self._fetch, self.clock.sleep, self._report)
            except ClockSkewError as error:
                if self._skew:
                    raise PeerError(f"{error}; {self._skew}: set the clocks by NTP") from error
                raise
            if self._skew:
                self.steps.say(f"warning: {self._skew}", kept=True)
            for warning in trusted.warnings:
                self.steps.say(f"warning: {warning}", kept=True)
            self.state.check_ca(trusted.client_ca_pem)
            is_unproved = trusted.via == UNPROVED
            summary.append(
                f"{trusted.server} answers; a person compares whether it is the right cluster"
                if is_unproved
                else f"{trusted.server} is trusted, by {trusted.via}"
            )
            return trusted

    async def _fetch(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send a request of discovery, and compare the Date of its response with this machine's clock."""
        reply = await fetch(request, self.clock)
        if isinstance(reply, HttpResponse):
            self._skew = describe_skew(server_date(reply.headers), self.clock.now()) or self._skew
        return reply

    def _discovery(self) -> DiscoveryExchange[TrustedCluster]:
        discovery, polling = self.plan.discovery, self.options.polling
        if isinstance(discovery, ByAddress):
            return discovery.discover(polling)
        allow = self.plan.allow_credentials
        if isinstance(discovery, ByFile):
            return discover_by_file(
                self._document(discovery.path),
                allow_credentials=allow,
                polling=polling,
                read=read_named_file,
                directory="" if discovery.path == STDIN else str(Path(discovery.path).absolute().parent),
            )
        return discover_by_url(discovery.url, allow_credentials=allow, polling=polling)

    def _document(self, path: str) -> bytes:
        return self.options.read_stdin() if path == STDIN else read_limited(Path(path))

    def _member_of(self, trusted: TrustedCluster) -> Pair | None:
        with self.steps.step(steps.EXISTING) as summary:
            pair = self._valid_pair()
            if pair is None:
                summary.append("not a member yet")
                return None
            known = self.state.read_cluster()
            same = known is not None and bundles.have_common(known.ca_pem, trusted.ca_pem)
            if trusted.client_ca_named or not same:
                self._check_issuer(pair, trusted.client_ca_pem)
            if known is not None and not same and trusted.via == SIGNATURE_ALONE:
                raise ConfigError(
                    f"the CA of the cluster is not the one in {self.state.kubeconfig}, and a token alone does not vouch for "
                    "another; join again with --discovery-token-ca-cert-hash"
                )
            summary.append(f"already a member until {rfc3339(pair.leaf.not_valid_after_utc)}")
            return pair

    # ── 3 to 7: the certificate ──────────────────────────────────────────────────────────────────────────────────

    def _bootstrap_user(self, trusted: TrustedCluster) -> KubeconfigUser:
        if (user := self._given_user() or trusted.client_credentials) is not None:
            return user
        raise JoinError(
            steps.DISCOVERY,
            "the discovery document carries no credentials to ask for a certificate with; "
            "give --tls-bootstrap-token or --token, or a document with credentials",
        )

    def _given_user(self) -> KubeconfigUser | None:
        """Return the user of the token that was given; None without one."""
        if (token := self.plan.tls_token) is not None:
            return KubeconfigUser("tls-bootstrap-token-user", token=Secret(token.reveal()))
        identity = self.plan.identity
        if identity is None:
            return KubeconfigUser("asking") if self.plan.asks else None
        # A kubelet reads the file from another directory.
        file = str(Path(identity.file).absolute()) if identity.file else ""
        return replace(identity, file=file).user()

    async def _check_name(self, client: ClusterClient) -> None:
        with self.steps.step(steps.NAME) as summary, _explain_refusal(self.plan):
            name = await self._choose_name(client)
            if self.plan.asks:
                summary.append(f"a person decides about the name {name}")
                return
            try:
                existing = await self._retry(client, lambda: self._get_node(client, name), _NAME_TRANSIENT)
            except NotFoundError:
                summary.append(f"the name {name} is free")
                return
            except ForbiddenError:
                summary.append("the server does not let this credential look up Nodes")
                return
            uid = self.state.record.read().node_uid
            is_own = (
                not self._is_copy
                and self.state.client.read_pair() is not None
                and uid in ("", existing["metadata"]["uid"])
            )
            if node.is_in_use(existing, self.clock.now()) and not is_own:
                ready = registration.ready_condition(existing).get("status") == "True"
                found = "Ready node" if ready else "node in use"
                raise PeerError(
                    f'the cluster has a {found} of the name "{name}"; choose another with --node-name, '
                    f"or if that machine is gone, delete it with `kubectl delete node {name}`"
                )
            summary.append(f"the node {name} is there and not in use")

    async def _choose_name(self, client: ClusterClient) -> str:
        """Return the name of the node: where none is given, that of the join rule, or of the machine. Raises ConfigError."""
        if not self.plan.node_name:
            answer = await self._retry(client, lambda: client.post_path(REVIEW_PATH, REVIEW), steps.TRANSIENT)
            named = named_node((answer.get("status") or {}).get("userInfo") or {})
            self._use_name(named)
        return self.plan.node_name

    def _use_name(self, named: str) -> None:
        name = choose_node_name(named, self.plan.host_name, self.options.settings.register_node)
        self.plan = replace(self.plan, node_name=name)

    async def _get_node(self, client: ClusterClient, name: str) -> Obj:
        """Return the Node. 403 is a common response: only kubeadm lets tokens read Nodes."""
        refused = (ForbiddenError,)
        return await retry(self.clock, lambda: client.get("nodes", name), NAME_REFUSED_SECONDS, transient=refused)

    async def _retry(
        self, client: ClusterClient, call: Callable[[], Awaitable[T]], transient: tuple[type[MooringError], ...]
    ) -> T:
        return await retry_reported(self.steps, client, call, transient)

    @contextmanager
    def _remove_bootstrap_on_refusal(self) -> Iterator[None]:
        """Remove the token's kubeconfig when the join is denied or refused, because another join needs another token or request."""
        try:
            yield
        except JoinError as error:
            if isinstance(error.__cause__, certificaterequest.RequestEndedError | RefusedError):
                self.state.drop_bootstrap()
            raise

    def _drop_copied_key(self) -> None:
        """Remove a pending key that another machine made, and record that the next one is of this machine."""
        here = self.options.machine.hashes()
        made_by = self.state.record.read().pending_key_of
        # A membership that was copied has the pending key of its machine, too, unless an earlier run of this join made it.
        if machineid.differs(made_by, here) or (self._is_copy and not made_by):
            self.state.drop_pending_key()
        # Before the key: after a crash the next run has to know whose it is.
        if made_by != here:
            self.state.record.write("pendingKeyOf", here)

    def _facts(self) -> Mapping[str, str]:
        """Return what the request says of this machine. A fact that cannot be read is left out, with a message."""
        settings, facts = self.options.settings, dict[str, str]()
        for name in settings.request_fact:
            value = self.options.machine.firmware_fact(name)
            problem = fact_problem(name, value) if value else "the firmware names none, or only root may read it"
            if problem:
                self.steps.say(
                    f"warning: the request does not say {name}, which cannot be read here: {problem}", kept=True
                )
            else:
                facts[name] = value
        return {**facts, **parse_facts(settings.request_annotation, "--request-annotation")}

    async def _certificate(self, client: ClusterClient, trusted: TrustedCluster) -> tuple[Pair, str]:
        request = OneShotRequest(
            self.state,
            self.steps,
            self.clock,
            self.plan.node_name,
            seconds=self.options.certificate_timeout,
            expiration_seconds=self.options.expiration_seconds or self._chosen_before(),
            machine_code=self.options.machine_code,
            facts=self._facts(),
            compared=pins_of(trusted.ca_pem) if self.plan.asks else (),
            requester="" if self.plan.tls_token is None else BOOTSTRAP_USER_PREFIX + self.plan.tls_token.id,
        )

        async def check(pair: Pair) -> None:
            await self._check_issued(pair, trusted, client.clusters)

        return await request.obtain(client, check, lambda: _explain_refusal(self.plan))

    def _chosen_before(self) -> int:
        return 0 if self._is_copy else self.state.record.read().expiration_seconds

    async def _check_issued(self, pair: Pair, trusted: TrustedCluster, clusters: tuple[Cluster, ...]) -> None:
        """Check that the CA of client certificates, where it is known, issued the certificate. Raises PeerError."""
        problem = "the cluster names no CA of client certificates"
        if trusted.client_ca_pem:
            try:
                clusterfiles.verify(pair, trusted.client_ca_pem, self.clock.now())
                return
            except PeerCertificateError as error:
                problem = f"the issued certificate does not verify under the CA of the cluster: {error}"
                if trusted.client_ca_named:
                    raise PeerError(problem) from None
        await self._check_accepted(pair, clusters, problem)

    async def _check_accepted(self, pair: Pair, clusters: tuple[Cluster, ...], problem: str) -> None:
        """Check that the server accepts a certificate of a CA that it does not publish. Raises PeerError."""
        user = KubeconfigUser("default-auth", certificate_pem=pair.certificate_pem, key=pair.key_pem)
        async with ClusterClient(clusters[0], user, self.clock, others=clusters[1:]) as client:
            try:
                await self._retry(client, lambda: client.get("nodes", self.plan.node_name), _ACCEPTED_TRANSIENT)
            except NotFoundError:
                # The node may read its own Node, which does not exist yet.
                pass
            except (UnauthorizedError, ForbiddenError) as error:
                raise PeerError(f"{problem}; the server does not accept it either: {steps.described(error)}") from None
        self.steps.say(
            f"warning: {problem}; the server accepts it, so the CA that signs client certificates is one that the cluster does "
            f"not publish. {self.state.ca} is not written: a kubelet needs it there",
            kept=True,
        )

    # ── 8, 9: files and the Node ─────────────────────────────────────────────────────────────────────────────────

    def _write_bootstrap(self, cluster: Cluster) -> None:
        user = self._given_user()
        if user is not None and user.exec is None and not self.plan.asks:
            with self.steps.step(steps.BOOTSTRAP) as summary:
                self.state.write_bootstrap(cluster, user)
                summary.append(f"{self.state.bootstrap}, until the certificate is there")

    async def _write_discovered(self, trusted: TrustedCluster) -> Joined:
        """Write what a kubelet needs to request its certificate itself."""
        user = self._bootstrap_user(trusted)
        if not self.plan.node_name:
            async with ClusterClient(trusted.cluster, user, self.clock, others=trusted.others) as client:
                with self.steps.step(steps.NAME) as summary, _explain_refusal(self.plan):
                    summary.append(f"the node is named {await self._choose_name(client)}")
        if user.exec is not None and user.exec.prints_token:
            # A kubelet runs no such command.
            with self.steps.within(steps.BOOTSTRAP):
                user = replace(user, exec=None, token=(await run_plugin(user.exec, trusted.cluster)).token)
        with self.steps.step(steps.FILES) as summary:
            trusted = await drive_notifying(led_by_proved(trusted), self._fetch, self.clock.sleep, self._report)
            self.state.make_places()
            written = [self.state.ca] if self.state.write_ca(trusted.client_ca_pem) else []
            self.state.write_bootstrap(trusted.cluster, user)
            if trusted.cluster.tls_server_name or trusted.cluster.proxy_url:
                self.steps.say(
                    f"warning: kubelet copies address and CA of {self.state.bootstrap} into {self.state.kubeconfig}, and no "
                    "tls-server-name or proxy-url: add them there once it is written, or join without --discover-only",
                    kept=True,
                )
            summary.append(_written_message((*written, self.state.bootstrap)))
            # A kubelet goes on with a rejected certificate, and requests none, until it expires
            # (docs/protocol/kubelet-certificates.md#kubeconfig).
            if (self._ended or self._is_copy) and (aside := self.state.client.set_aside()) is not None:
                self.state.drop_pending_key()
                did = f"was copied from {self._copied_from}, and was removed"
                if not self._is_copy:
                    did = f"is rejected by the server, and was moved to {aside}"
                self.steps.say(
                    f"{self.state.client.current} {did}: kubelet would go on with it; restart kubelet",
                    kept=True,
                )
            if self._is_copy:
                # No membership is left here, so that the next one is this machine's.
                self._forget_choices()
                self.state.record.write("nodeUID", "")
                self.state.drop_pending_key()
                for one in self._copied_files():
                    disk.remove(one)
                machineid.remember(self.state.record, self.options.machine)
        return self._joined(trusted.clusters, None, trusted)

    async def _write(self, clusters: tuple[Cluster, ...], trusted: TrustedCluster, pair: Pair) -> None:
        with self.steps.step(steps.FILES) as summary:
            copied = self._copied_files()
            if self._is_copy:
                self._forget_choices()
            record_choices(self.state, self.options)
            # A new membership has no Node yet. The Node of the old one would end it.
            self.state.record.write("nodeUID", "")
            # The certificate before the kubeconfig, which names its path.
            path = self.state.client.write_pair(pair, self.clock.now())
            for one in copied:
                if one != path:
                    disk.remove(one)
            # After the certificate, and before the pending key goes: a crash before leaves files that still count as copied, and
            # the next run continues with the same request.
            machineid.remember(self.state.record, self.options.machine)
            written = await clusterfiles.write(self.state, pair, clusters, trusted, self.clock, from_scratch=True)
            # Token and key go last: a crash before leaves both, and the next run continues with the same request.
            self.state.drop_bootstrap()
            self.state.drop_pending_key()
            if self.state.record.read().pending_key_of:
                self.state.record.write("pendingKeyOf", {})
            summary.append(_written_message((path, self.state.client.current, *written)))
        if self._is_copy:
            self.steps.say(f"the files copied from {self._copied_from} were replaced", kept=True, step=steps.FILES)

    def _copied_files(self) -> tuple[Path, ...]:
        """Return the certificates, with their keys, of the machine from which the files were copied."""
        if not self._is_copy:
            return ()
        pairs = self.state.client, self.state.serving
        return tuple(one for pair in pairs for one in pair.files() if one != self.state.client.current)

    def _forget_choices(self) -> None:
        """Reset the entries of the record that are about the machine from which the files were copied."""
        self.state.record.write("expirationSeconds", 0)
        self.state.record.write("nodeIP", [])
        self.state.record.write("hooksDone", {})
        self.state.record.write("lastHeartbeat", "")

    async def _write_membership(self, trusted: TrustedCluster, pair: Pair) -> tuple[Cluster, ...]:
        """Update the files of a member, and remove those that a crash left. Return the addresses that they name.

        A document that is given names the way itself. What a token finds is merged into kubelet.conf, as the agent does it. The CA
        that a pin vouches for replaces that of another cluster.
        """
        with self.steps.step(steps.FILES) as summary:
            record_choices(self.state, self.options)
            clusters, base, known = trusted.clusters, None, self.state.read_clusters()
            if known and isinstance(self.plan.discovery, ByAddress):
                if not bundles.have_common(known[0].ca_pem, trusted.ca_pem):
                    known = tuple(replace(one, ca_pem=trusted.ca_pem) for one in known)
                merge = merge_published(known, self.state.read_base(), trusted)
                merged = await drive_notifying(merge, self._fetch, self.clock.sleep, self._report)
                clusters, base = merged.clusters, merged.base
            written = await clusterfiles.write(self.state, pair, clusters, trusted, self.clock, merged=base)
            self.state.drop_bootstrap()
            self.state.drop_pending_key()
            summary.append(_written_message(written))
        return clusters

    async def _register(self, joined: Joined) -> Joined:
        await register(joined, self.steps, self.clock)
        return joined

    def _planned_node(self) -> tuple[tuple[str, str], ...]:
        if self.options.settings.register_node == registration.NONE:
            return ()
        return ((steps.NODE, f"register the node {self.plan.node_name}"),)

    def _dry_run_result(self, trusted: TrustedCluster) -> Joined:
        if not self.plan.node_name:
            self._use_name("")
        state, cluster = self.state, trusted.cluster
        if self.options.discover_only:
            reason = f"was copied from {self._copied_from}" if self._is_copy else "the server rejects"
            moved = (steps.FILES, f"move {state.client.current} aside, which {reason}")
            written = (steps.FILES, f"write {state.ca} and {state.bootstrap}")
            return self._planned(trusted, (written, moved) if self._ended or self._is_copy else (written,))
        planned = (
            (steps.REQUEST, f"ask {cluster.server} for a certificate of {self.user}"),
            *(() if state.ca.exists() or not trusted.client_ca_pem else ((steps.FILES, f"write {state.ca}"),)),
            (steps.FILES, f"write {state.certificates}/kubelet-client-<time>.pem"),
            (steps.FILES, f"link {state.client.current}"),
            (steps.FILES, f"write {state.kubeconfig}"),
            *self._planned_node(),
        )
        return self._planned(trusted, planned)

    def _planned(self, trusted: TrustedCluster, planned: tuple[tuple[str, str], ...]) -> Joined:
        for step, line in planned:
            self.steps.say(f"would {line}", kept=True, step=step)
        return replace(self._joined(trusted.clusters, None, trusted), planned=tuple(line for _, line in planned))


def record_choices(state: NodeState, options: JoinOptions) -> None:
    """Remember lifetime and addresses that were chosen, for the agent, and the machine. Without a choice those of before stay."""
    machineid.complete(state.record, options.machine)
    if options.expiration_seconds:
        state.record.write("expirationSeconds", options.expiration_seconds)
    if options.settings.node_ip:
        state.record.write("nodeIP", list(options.settings.node_ip))


def _written_message(paths: tuple[Path, ...]) -> str:
    return f"wrote {clusterfiles.listed(paths)}" if paths else "nothing to write: the files are up to date"


def read_named_file(path: str) -> bytes:
    """Return a file that a discovery document names. Raises OSError."""
    found = Path(path).absolute()
    try:
        return read_limited(found)
    except ConfigError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else str(error)
        raise OSError(0, reason if str(found) == path else f"{reason} ({found})") from None


RULES_ADVICE = "see the rules on the server with `mooring joinrule list`"


def identity_refusal(identity: IdentityToken) -> str:
    """Return why a server may reject an identity token, with what the token says of itself."""
    return (
        f"the server does not accept {identity}{_stated_in(identity)}: no join rule is for its issuer and audience, its claims do "
        "not fit, it has expired, or the rule has ended or is not for the network of this machine"
    )


def _stated_in(identity: IdentityToken) -> str:
    """Return what the token in a file says of itself, in brackets; "" for another one, and for none that can be read."""
    if not identity.file:
        return ""
    with suppress(ConfigError, TokenRefusedError):
        text = read_limited(Path(identity.file), MAX_TOKEN).decode("ascii", "replace").strip()
        return f" ({stated(decode_unverified(text, MAX_TOKEN, MAX_TOKEN)[1])})"
    return ""


@contextmanager
def _explain_refusal_of_asking() -> Iterator[None]:
    """Replace refusals of a request without a credential by errors that name the remedy."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError) as error:
        raise RefusedError(f"{steps.described(error)}; {ASKING_ADVICE}") from None


@contextmanager
def _explain_refusal(plan: JoinPlan) -> Iterator[None]:
    """Replace refusals of the bootstrap credentials by errors that name the remedy."""
    credential = f'token id "{plan.tls_token.id}"' if plan.tls_token else "the credentials of the discovery document"
    credential = str(plan.identity) if plan.identity is not None else credential
    try:
        with _explain_refusal_of_asking() if plan.asks else nullcontext():
            yield
    except UnauthorizedError as error:
        if plan.identity is not None:
            raise RefusedError(
                f"{identity_refusal(plan.identity)}; {RULES_ADVICE}{explained_by(error.audit_id)}"
            ) from None
        raise RefusedError(
            f"the server does not accept {credential}: it is unknown, was deleted or revoked, has expired, its secret is wrong, it "
            "lacks the usage authentication, it is not for the network of this machine, or a limit in its annotations cannot be "
            "read; list tokens on the server with `mooring token list`, make one with `mooring token create`"
            + explained_by(error.audit_id)
        ) from None
    except ForbiddenError as error:
        raise RefusedError(
            f"the server does not allow {credential} to ask for a certificate ({error}): its groups are not bound to the "
            "ClusterRole system:node-bootstrapper, or the token is not for this node name, or for no further machine"
            + explained_by(error.audit_id)
        ) from None
