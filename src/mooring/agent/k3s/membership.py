"""Join through a supervisor, as a k3s agent does it, or take up the membership that is on disk.

Steps (docs/protocol/k3s.md#join-of-an-agent; the names are those of `mooring.agent.steps`):
1. existing: a client certificate of this node on disk makes a member, for which no token is needed. One that has expired obtains
   another, where there is no token or it was refused, and the server is Mooring (`mooring.agent.recovery`).
2. discovery: establish trust in the CA of the cluster, unless this machine keeps it; read the configuration. The server accepts the
   certificate or the token here. A member whose certificate is refused, or whose Node was deleted, joins again with the token and
   new keys.
3. files: the CAs of the cluster.
4. certificate: one request for each certificate that is missing or expired, in k3s's order, and for a serving certificate without
   an address of the node. Each key is on disk before its request is sent, and each certificate before the next request.
5. files: the kubeconfigs, and the addresses of the API servers. The token is removed from the files that this program was told of.
6. node: register the Node with the node's own certificate, as `mooring.agent.registration` decides.

A run that ends at any moment is continued by the next one: what is on disk is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from mooring.agent import clusterfiles, machineid, node, steps
from mooring.agent.k3s.files import AgentFiles, GivenToken
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.machineid import MachineIdentity
from mooring.agent.member import Member, NodeOptions, internal_addresses, register, silence
from mooring.agent.pairfiles import Pair
from mooring.agent.recovery import recover
from mooring.agent.registration import MembershipEndedError, check_membership
from mooring.agent.renewal import random_draw
from mooring.agent.steps import JoinError, Report, Steps
from mooring.client.http.requests import drive, fetch
from mooring.clock import Clock, rfc3339
from mooring.errors import ConfigError, PeerError
from mooring.identity import NODE_PREFIX
from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.pki.x509 import names
from mooring.pki.x509.requests import build_request
from mooring.settings.nodes import ENDS_MEMBERSHIP
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import Notice, Polling
from mooring.trust.httpexchange import HttpRequest, Reply, Trust, Wait
from mooring.trust.k3s.cahash import CaHashError, check_ca_hash
from mooring.trust.k3s.exchanges import (
    JOIN_POLLING,
    KUBELET,
    WANTED,
    NodeIdentity,
    SupervisorClient,
    TrustedCa,
    Wanted,
    establish_trust,
    has_addresses,
    is_usable,
    prove_ca,
    read_certificate,
)
from mooring.trust.k3s.nodepassword import MAX_NODE_NAME
from mooring.trust.k3s.refusals import CaNotProvenError, CredentialRefusedError, UnusableResponseError
from mooring.trust.k3s.token import K3sToken
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from mooring.trust.nodename import choose_node_name

R = TypeVar("R")

APPROVAL_SECONDS = 300.0
"""Seconds for which one attempt of the way back waits for its approval."""


class TokenNeededError(PeerError):
    """This machine is not a member, or no longer, and has no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """Join that the agent was told of. `settings` have the name of the node, and one server or more."""

    settings: K3sJoinSettings
    token: GivenToken = field(default_factory=GivenToken)
    polling: Polling = JOIN_POLLING
    machine: MachineIdentity = field(default_factory=lambda: machineid.this_machine())
    """The machine that joins."""
    adopts: bool = False
    """Record this machine as the one of a membership that another machine had."""

    def files(self) -> AgentFiles:
        return AgentFiles(Path(self.settings.root), self.settings.data_dir)


@dataclass(frozen=True, slots=True)
class SupervisedMember(Member):
    """A member that joined k3s's way. `urls` are those of supervisors, first the one that answered last."""

    files: AgentFiles
    identity: NodeIdentity
    urls: tuple[str, ...]
    uses_system_roots: bool
    api_port: int
    """Port of the API server, as the configuration says."""
    apiservers: tuple[str, ...] = ()
    """Addresses that the server named at the join; none when it did not."""

    @property
    def trust(self) -> Trust:
        """Verification of the servers. Raises ConfigError when the CA that this machine kept is gone."""
        if self.uses_system_roots:
            return Trust(is_k3s=True)
        ca_pem = self.files.read_server_ca()
        if not ca_pem:
            raise ConfigError(f"{self.files.server_ca} cannot be read: restore it, or join again with a whole token")
        return Trust(ca_pem, is_k3s=True)

    def at(self, urls: tuple[str, ...]) -> SupervisedMember:
        """Return the member with these supervisors, verified by the CA that this machine keeps now. Raises ConfigError."""
        ca_pem = self.trust.ca_pem
        clusters = tuple(Cluster("local", api_url(url, self.api_port), ca_pem, is_k3s=True) for url in urls)
        return replace(self, urls=urls, clusters=clusters)

    async def relocated(self) -> SupervisedMember:
        """Return the member with the address that this machine has now, unless its address was given."""
        address = "" if self.options.address else await self.address()
        if not address or address in self.identity.addresses:
            return self
        return replace(self, identity=replace(self.identity, addresses=(address,)))

    def supervisor(self, *, polling: Polling) -> SupervisorClient:
        """Return requests to the supervisors with the node's certificate."""
        pair = self.files.client.read_pair()
        return SupervisorClient(
            self.urls, self.trust, certificate=certificate_user(pair), is_kept=True, polling=polling
        )


def certificate_user(pair: Pair | None) -> KubeconfigUser | None:
    """Return a client certificate as a credential; None when there is none."""
    return None if pair is None else KubeconfigUser("node", certificate_pem=pair.certificate_pem, key=pair.key_pem)


def api_url(url: str, port: int) -> str:
    """Return the URL of the API server beside a supervisor. `port` is 0 when both share one."""
    parts = urlsplit(url)
    if not port:
        return url
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return urlunsplit((parts.scheme, f"{host}:{port}", parts.path, "", ""))


def check_machine(plan: AgentPlan) -> None:
    """Raise CopiedFilesError when the files are those of another machine, unless `plan.adopts` them.

    The join records this machine once it is a member: a run that fails adopts nothing.
    """
    files = plan.files()
    pair = files.client.read_pair()
    if plan.adopts:
        return
    node_name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX) if pair is not None else ""
    machineid.check(
        files.record,
        plan.machine,
        node_name,
        "join as a new machine: remove them with `mooring leave --files-only`, then start the agent with a token; or, after a "
        "replaced board or a restored disk, let this machine have the membership: start the agent once with --adopt",
    )
    if pair is not None:
        machineid.complete(files.record, plan.machine)


async def join(
    plan: AgentPlan, clock: Clock, report: Report, learned: Sequence[str] = (), local_url: str = ""
) -> SupervisedMember:
    """Return the membership, after a join if it is needed. Raises JoinError that names the step, the reason and the remedy.

    `learned` are further URLs of the cluster, from an earlier run. `local_url` is the URL of the load balancer; empty without one.
    """
    return await _Join(plan, clock, report, learned, local_url).run()


async def converse(
    exchange: Generator[HttpRequest | Wait | Notice, Reply, R],
    clock: Clock,
    notify: Callable[[Notice], None],
    draw: Callable[[], float] = random_draw,
) -> R:
    """Run an exchange with a supervisor, each request over a connection of its own as k3s does, with its jitter."""

    async def perform(step: HttpRequest | Wait | Notice) -> Reply:
        if isinstance(step, HttpRequest):
            return await fetch(step, clock)
        if isinstance(step, Wait):
            await clock.sleep(step.seconds * (1 + step.jitter * (2 * draw() - 1)))
        else:
            notify(step)
        return None

    return await drive(exchange, perform)


async def obtain(
    supervisor: SupervisorClient,
    files: AgentFiles,
    wanted: Wanted,
    identity: NodeIdentity,
    clock: Clock,
    notify: Callable[[Notice], None],
) -> Pair:
    """Return a certificate for the pending key, which is on disk before it is used. Raises DiscoveryError, ConfigError."""
    key = files.pair(wanted).ensure_pending_key()
    request = next(pem.blocks(build_request(key, wanted.common_name(identity.name)))).der
    body = await converse(supervisor.request_certificate(wanted, request, identity), clock, notify)
    step = f"reading the certificate {wanted.name}"
    pair = Pair(read_certificate(step, body, wanted, identity.name, key, clock.now()), key)
    if not wanted.serves:
        try:
            # Before it is placed: a certificate that no server accepts would end the membership.
            clusterfiles.verify(pair, files.read_ca(), clock.now())
        except PkiError as error:
            raise UnusableResponseError(
                step, f"the certificate does not verify under {files.client_ca}: {error}"
            ) from None
    return pair


class _Join:
    def __init__(self, plan: AgentPlan, clock: Clock, report: Report, learned: Sequence[str], local_url: str) -> None:
        self.plan = plan
        self.clock = clock
        self.steps = Steps(clock, report)
        self.files = plan.files()
        self._learned = tuple(learned)
        self._local_url = local_url

    def _notify(self, notice: Notice) -> None:
        self.steps.say(notice.message, kept=notice.keep)

    async def run(self) -> SupervisedMember:
        try:
            return await self._run()
        except JoinError as error:
            if not isinstance(error.__cause__, CredentialRefusedError) or self._expired_pair(self._name()) is None:
                raise
            self.steps.say(f"{error.reason}; the expired certificate is used in place of the token", kept=True)
            return await self._run(uses_token=False)

    def _name(self) -> str:
        settings = self.plan.settings
        if not settings.with_node_id:
            return settings.node_name
        name = f"{settings.node_name}-{self.files.ensure_node_id()}"
        try:
            is_valid = choose_node_name(name, "", settings.register_node, longest=MAX_NODE_NAME) == name
        except ConfigError:
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f'{self.files.node_id} does not hold an id of 8 digits, and the node name "{name}" is invalid: remove the file, '
                "for another id"
            )
        return name

    async def _run(self, *, uses_token: bool = True) -> SupervisedMember:
        with self.steps.step(steps.EXISTING) as summary:
            self.files.make()
            name, token = self._name(), self.plan.token.read() if uses_token else None
            # The files, among them the node password, are those of one name.
            if self.plan.adopts and (problem := self._other_name(name)):
                raise ConfigError(f"--adopt: {problem}")
            pair = self._kept_pair(name)
            expired = self._expired_pair(name) if pair is None and token is None else None
            if pair is not None:
                summary.append(
                    f"the certificate of {NODE_PREFIX}{name} is valid until {rfc3339(pair.leaf.not_valid_after_utc)}"
                )
            elif token is not None:
                summary.append("no valid certificate yet")
            elif expired is not None:
                summary.append(
                    f"the certificate of {NODE_PREFIX}{name}, valid until {rfc3339(expired.leaf.not_valid_after_utc)}, is used "
                    "to ask for another"
                )
            else:
                problem = self._other_name(name) or self.files.client.problem()
                raise TokenNeededError(
                    f"--token is required: {problem or 'this machine has no valid client-kubelet certificate'}; give --token-file, "
                    "--token or K3S_TOKEN"
                )
        if expired is not None:
            pair = await self._come_back(name)
        with self.steps.step(steps.DISCOVERY) as summary:
            trusted = await self._trusted(token)
            urls = (trusted.url, *self.plan.settings.server, *self._learned)
            is_member = pair is not None
            polling = replace(self.plan.polling, total=inf) if is_member else self.plan.polling
            if pair is not None and await self._has_ended(urls, trusted, name, pair, token):
                pair = None
            supervisor = SupervisorClient(
                urls,
                trusted.trust,
                certificate=certificate_user(pair),
                token=token,
                is_kept=bool(trusted.ca_pem) and trusted.ca_pem == self.files.read_server_ca(),
                polling=polling,
            )
            configuration = await self._converse(supervisor.fetch_configuration())
            # Only after the server has accepted the token: without it the old certificates are all that the machine
            # has.
            if supervisor.certificate is None:
                self.files.record.write("clusterID", "")
                if is_member:
                    self._forget_membership()
            summary.append(
                f"{supervisor.urls[0]} accepts {'the token' if supervisor.certificate is None else 'the certificate'}"
            )
        with self.steps.step(steps.FILES) as summary:
            client_ca = await self._converse(supervisor.fetch_client_ca())
            server_ca = await self._converse(supervisor.fetch_server_ca())
            self.files.record.write("systemRoots", not trusted.ca_pem)
            # Before the first key, so that the files of a join that was cut off are known by their machine, too.
            machineid.complete(self.files.record, self.plan.machine)
            summary.append(_written(self.files.write_cas(client_ca, server_ca)))
        if supervisor.certificate is None:
            # A membership by token has no Node yet.
            self.files.record.write("nodeUID", "")
            if self.files.client.read_pair() is not None:
                # Bound to the expired certificate, which stays until there is another.
                self._forget_others()
        identity = self._identity(name, supervisor.urls[0])
        member = SupervisedMember(
            name, (), self.files, self._options(), identity, (), not trusted.ca_pem, configuration.api_port
        ).at(supervisor.urls)
        await self._certificates(supervisor, identity)
        with self.steps.step(steps.FILES) as summary:
            by_server_ca = bool(trusted.ca_pem) or await self._proves(
                server_ca, member.server, "verified by the roots of this machine"
            )
            is_balanced = by_server_ca and self._local_url and await self._proves(server_ca, self._local_url)
            server = self._local_url if is_balanced else member.server
            summary.append(_written(self.files.write_kubeconfigs(server, by_server_ca=by_server_ca)))
            # After the certificates are on disk: a crash before leaves the token, with which the next run continues.
            emptied, problems = self.plan.token.forget()
            if emptied:
                summary.append(f"removed the token from {', '.join(map(str, emptied))}")
            for problem in problems:
                self.steps.say(f"warning: {problem}", kept=True)
        member = replace(member, apiservers=await self._apiservers(member))
        if self.plan.adopts:
            machineid.remember(self.files.record, self.plan.machine)
        await self._register(member)
        return member

    # ── 1, 2: membership and trust ───────────────────────────────────────────────────────────────────────────────

    def _kept_pair(self, name: str) -> Pair | None:
        """Return the client certificate on disk when it is that of this node and valid."""
        pair = self.files.client.read_pair()
        return pair if pair is not None and is_usable(pair.leaf, KUBELET, name, self.clock.now()) else None

    def _other_name(self, name: str) -> str:
        """Return the problem of a valid client certificate on disk that has another name than `name`; "" without one."""
        pair = self.files.client.read_pair()
        user = names.common_name(pair.leaf.subject) if pair is not None else ""
        joined = user.removeprefix(NODE_PREFIX)
        if pair is None or joined in (name, user) or not is_usable(pair.leaf, KUBELET, joined, self.clock.now()):
            return ""
        way = "" if self.plan.adopts else ", or run mooring leave first"
        return f'this machine joined as "{joined}", not "{name}": give --node-name {joined}{way}'

    def _expired_pair(self, name: str) -> Pair | None:
        """Return the client certificate on disk when it is that of this node and has expired."""
        pair = self.files.client.read_pair()
        if pair is None or pair.leaf.not_valid_after_utc > self.clock.now():
            return None
        return (
            pair if is_usable(pair.leaf, KUBELET, name, pair.leaf.not_valid_after_utc - timedelta(seconds=1)) else None
        )

    async def _come_back(self, name: str) -> Pair:
        """Return another client certificate, which the expired one obtained. Raises JoinError, ConfigError."""
        self.files.check_server_ca()
        ca_pem = b"" if self.files.record.read().system_roots else self.files.read_server_ca()
        urls = dict.fromkeys(
            url for url in (self.files.read_api_server(), *self.plan.settings.server, *self._learned) if url
        )
        clusters = tuple(Cluster("local", url, ca_pem, is_k3s=True) for url in urls)
        member = Member(name, clusters, self.files, NodeOptions())
        pair, _ = await recover(
            member,
            self.files.client,
            self.steps,
            self.clock,
            with_token="join again with a token (--token-file, --token or K3S_TOKEN)",  # noqa: S106 - advice
            seconds=APPROVAL_SECONDS,
        )
        with self.steps.step(steps.FILES) as summary:
            self.files.client.replace(pair)
            summary.append(f"wrote {self.files.client.current}")
        return pair

    async def _trusted(self, token: K3sToken | None) -> TrustedCa:
        """Return the CAs that this machine keeps, unless the token names another one; else establish trust."""
        kept, ca_hash = self.files.read_server_ca(), token.ca_hash if token is not None else ""
        uses_system_roots = self.files.record.read().system_roots
        # A machine that has joined trusts nothing on first use: without the CA that it kept, the token must name one.
        if not ca_hash and self.files.has_joined():
            if uses_system_roots:
                return TrustedCa(self.plan.settings.server[0], b"")
            self.files.check_server_ca()
        if kept and not uses_system_roots:
            try:
                if ca_hash:
                    check_ca_hash(kept, ca_hash)
            except CaHashError:
                self.steps.say("the token names another CA than the one that this machine keeps", kept=True)
            else:
                return TrustedCa(self.plan.settings.server[0], kept)
        return await self._converse(establish_trust(self.plan.settings.server, ca_hash, self.plan.polling))

    async def _has_ended(
        self, urls: Sequence[str], trusted: TrustedCa, name: str, pair: Pair, token: K3sToken | None
    ) -> bool:
        """Return True when the membership has ended and the token is to be used instead. Raises TokenNeededError without one."""
        uid = self.files.record.read().node_uid if self.plan.settings.node_deletion == ENDS_MEMBERSHIP else ""
        clusters = tuple(Cluster("local", url, trusted.ca_pem, is_k3s=True) for url in dict.fromkeys(urls))
        try:
            await check_membership(pair, name, uid, clusters, self.clock, cluster_id=self.files.read_cluster_id())
        except MembershipEndedError as error:
            if token is None:
                raise TokenNeededError(
                    f"{error}{silence(self.files, self.clock.now())}; give a valid token to join again (--token-file, --token or "
                    "K3S_TOKEN)"
                ) from error
            self.steps.say(f"{error}; joining again with the token", kept=True)
            return True
        return False

    def _forget_membership(self) -> None:
        """Remove the certificates of a membership that has ended."""
        self._forget_others()
        # Last, so that the run after a crash finds a membership that has ended, and removes the rest.
        self.files.client.remove()

    def _forget_others(self) -> None:
        """Remove every certificate but that of the node."""
        for pair in self.files.pairs.values():
            if pair is not self.files.client:
                pair.remove()

    # ── 4: certificates ──────────────────────────────────────────────────────────────────────────────────────────

    def _identity(self, name: str, url: str) -> NodeIdentity:
        addresses = self.plan.settings.node_ip
        if not addresses:
            found = node.address_towards(Cluster("", url, is_k3s=True))
            addresses = (found,) if found else ()
        password, file = self.files.ensure_node_password(), str(self.files.node_password)
        return NodeIdentity(name, password, addresses, file, self.plan.settings.node_external_ip)

    def _options(self) -> NodeOptions:
        settings = self.plan.settings
        first, *others = settings.node_ip or ("",)
        more = (
            *internal_addresses(others),
            *(("ExternalIP", address) for address in settings.node_external_ip),
            *(("InternalDNS", name) for name in settings.node_internal_dns),
            *(("ExternalDNS", name) for name in settings.node_external_dns),
        )
        return NodeOptions(
            register_node=settings.register_node,
            node_deletion=settings.node_deletion,
            address=first,
            more_addresses=more,
            labels=dict(settings.node_label),
            taints=settings.node_taint,
        )

    async def _certificates(self, supervisor: SupervisorClient, identity: NodeIdentity) -> None:
        for wanted in WANTED:
            place = self.files.pair(wanted)
            pair, now = place.read_pair(), self.clock.now()
            if (
                pair is not None
                and is_usable(pair.leaf, wanted, identity.name, now)
                and (not wanted.serves or has_addresses(pair.leaf, identity.all_addresses))
            ):
                continue
            with self.steps.step(steps.CERTIFICATE) as summary:
                pair = await obtain(supervisor, self.files, wanted, identity, self.clock, self._notify)
                place.replace(pair)
                if wanted is KUBELET:
                    # The next certificates are bound to this machine, and need it.
                    supervisor.certificate = certificate_user(pair)
                summary.append(f"{place.current}, valid until {rfc3339(pair.leaf.not_valid_after_utc)}")

    async def _apiservers(self, member: SupervisedMember) -> tuple[str, ...]:
        """Return the addresses of the API servers. The join does not need them: they are read again later."""
        try:
            return await self._converse(member.supervisor(polling=Polling(attempts=1)).fetch_apiservers())
        except DiscoveryError as error:
            self.steps.say(f"the addresses of the API servers are read later: {error}", kept=True)
            return ()

    async def _proves(self, server_ca: bytes, server: str, by: str = "not the load balancer") -> bool:
        """Return False when the CAs of the cluster do not verify a server by a way that kubeconfigs could name.

        `server` is one that the roots of the machine verify, or the load balancer, whose name is 127.0.0.1. `by` is what they have
        in place of the way.
        """
        step = f"proving the CA of the cluster for {server}"
        try:
            await self._converse(prove_ca(step, server, server_ca))
        except CaNotProvenError as error:
            self.steps.say(f"warning: {error}. The kubeconfigs name the server itself, {by}", kept=True)
            return False
        except DiscoveryError:
            # The join does not need the answer.
            return True
        return True

    # ── 6: the Node ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _register(self, member: SupervisedMember) -> None:
        supervisor = member.supervisor(polling=self.plan.polling)
        await register(member, self.steps, self.clock, until_ready=lambda: self._converse(supervisor.check_ready()))

    async def _converse(self, exchange: Generator[HttpRequest | Wait | Notice, Reply, R]) -> R:
        return await converse(exchange, self.clock, self._notify)


def _written(paths: Sequence[Path]) -> str:
    return f"wrote {', '.join(map(str, paths))}" if paths else "the files are up to date"
