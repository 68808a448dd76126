"""Site of a fault test: servers and etcd members, each on a host of its own network, and the faults that break them.

A fault is a sentence and what it does: it breaks something for a while and mends it. Faults come one after another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import etcd, forkserver
from tests.support.etcd import Etcd, Member, Place
from tests.support.killable import KillableServer, controllers_lease
from tests.support.network import ENTER, Network, network
from tests.support.ports import free_port

CLIENT = "client"
"""Host of everything that is no server and no member."""


@dataclass
class Site:
    """Running servers and members. `killed` are the identities of processes that were killed."""

    network: Network
    servers: list[KillableServer]
    cluster: Etcd
    killed: set[str] = field(default_factory=set)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(server.endpoint for server in self.servers)

    async def start(self) -> None:
        """Start all servers at the same time, with one server token."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            await server.ready()

    async def ready(self) -> None:
        for server in self.servers:
            await server.ready()
        await asyncio.to_thread(self.cluster.await_healthy)

    async def leader(self) -> KillableServer:
        """Return the server whose controllers run."""
        for server in self.servers:
            async with server.client() as client:
                holder = (await controllers_lease(client)).get("holderIdentity")
            for one in self.servers:
                if one.process is not None and one.identity == holder:
                    return one
        raise AssertionError("no server that runs holds the Lease")

    def kill_server(self, server: KillableServer) -> None:
        self.killed.add(server.identity)
        server.kill()

    def end(self) -> None:
        """Kill everything."""
        for server in self.servers:
            server.kill()
        self.cluster.kill()

    def host_of(self, one: KillableServer | Member) -> str:
        return one.name if isinstance(one, Member) else one.data_dir.name


@contextmanager
def site(
    directory: Path, servers: int, members: int, flags: Sequence[str] = ()
) -> Iterator[tuple[Network, Callable[[], Site]]]:
    """Make the network. Yield it with the function that starts the members, to be called on the host CLIENT.

    Without members, all servers share one SQLite file.
    """
    forkserver.run(["-c", ""])  # the fork server stays outside
    hosts = [f"s{number}" for number in range(servers)]
    places = [f"m{number}" for number in range(members)]
    with network([*hosts, *places, CLIENT]) as net:
        port = free_port()
        published = tuple(f"{net.address(host)}:{port}" for host in hosts)
        made: list[Site] = []

        def start() -> Site:
            cluster = etcd.start(
                directory, members, places=[Place(net.address(one), tuple(net.command(one))) for one in places]
            )
            token = directory / "server-token"
            token.touch(0o600)
            token.write_text(secrets.token_hex(16))
            store = (
                ("--etcd-servers", cluster.endpoints) if members else ("--storage", f"sqlite:{directory}/mooring.db")
            )
            made.append(
                Site(
                    net,
                    [
                        KillableServer(
                            directory / host,
                            port,
                            address=net.address(host),
                            published=published,
                            flags=(*store, "--server-token-file", str(token), *flags),
                            program=("-c", ENTER, net.file(host)),
                        )
                        for host in hosts
                    ],
                    cluster,
                )
            )
            return made[0]

        try:
            yield net, start
        finally:
            for one in made:
                one.end()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its sentence, and what breaks and mends."""

    sentence: str
    happen: Callable[[], Awaitable[None]]


def faults(site: Site, seconds: float) -> Iterator[Fault]:
    """Yield every fault, each lasting about `seconds`."""
    net, members = site.network, site.cluster.members

    def on_server(server: KillableServer) -> Iterator[Fault]:
        name = site.host_of(server)

        async def kill() -> None:
            site.kill_server(server)
            await asyncio.sleep(seconds / 2)
            server.launch()

        async def pause() -> None:
            server.pause()
            await asyncio.sleep(seconds)
            server.resume()

        async def isolate() -> None:
            net.isolate(name)
            await asyncio.sleep(seconds)
            net.connect(name)

        yield Fault(f"server {name} is killed and started again", kill)
        yield Fault(f"server {name} is stopped for {seconds:g} s", pause)
        yield Fault(f"server {name} is cut off from everything for {seconds:g} s", isolate)

    def on_member(which: str, choose: Callable[[], Member]) -> Iterator[Fault]:
        async def kill() -> None:
            member = await asyncio.to_thread(choose)
            member.kill()
            await asyncio.sleep(seconds)
            member.start()

        async def pause() -> None:
            member = await asyncio.to_thread(choose)
            member.stop()
            await asyncio.sleep(seconds)
            member.resume()

        async def isolate() -> None:
            member = await asyncio.to_thread(choose)
            net.isolate(member.name)
            await asyncio.sleep(seconds)
            net.connect(member.name)

        yield Fault(f"{which} of etcd is killed and started again after {seconds:g} s", kill)
        yield Fault(f"{which} of etcd is stopped for {seconds:g} s", pause)
        yield Fault(f"{which} of etcd is cut off from everything for {seconds:g} s", isolate)

    def follower() -> Member:
        leader = site.cluster.leader
        return next(member for member in members if member is not leader)

    async def cut_links() -> None:
        leader = await asyncio.to_thread(lambda: site.cluster.leader)
        for server in site.servers[:2]:
            net.cut(site.host_of(server), leader.name)
        await asyncio.sleep(seconds)
        for server in site.servers[:2]:
            net.mend(site.host_of(server), leader.name)

    async def cut_members() -> None:
        leader = await asyncio.to_thread(lambda: site.cluster.leader)
        other = next(member for member in members if member is not leader)
        net.cut(leader.name, other.name)
        await asyncio.sleep(seconds)
        net.mend(leader.name, other.name)

    async def lose_quorum() -> None:
        for member in members[1:]:
            net.isolate(member.name)
        await asyncio.sleep(seconds)
        for member in members[1:]:
            net.connect(member.name)

    async def kill_all_members() -> None:
        for member in members:
            member.kill()
        await asyncio.sleep(seconds / 2)
        for member in members:
            member.start()

    async def kill_all_servers() -> None:
        for server in site.servers:
            site.kill_server(server)
        for server in site.servers:
            server.launch()

    for server in site.servers:
        yield from on_server(server)
    yield from on_member("the leader", lambda: site.cluster.leader)
    yield from on_member("a follower", follower)
    yield Fault(f"two servers are cut off from the leader of etcd for {seconds:g} s", cut_links)
    yield Fault(f"the leader of etcd is cut off from a follower for {seconds:g} s", cut_members)
    yield Fault(f"etcd has no quorum for {seconds:g} s", lose_quorum)
    yield Fault("all members of etcd are killed and started again", kill_all_members)
    yield Fault("all servers are killed and started again", kill_all_servers)


def leader_stops(site: Site, seconds: float) -> Iterator[Fault]:
    """Yield the faults of the server whose controllers run, which last longer than its Lease."""

    async def pause() -> None:
        server = await site.leader()
        server.pause()
        await asyncio.sleep(seconds)
        server.resume()

    async def isolate() -> None:
        server = await site.leader()
        site.network.isolate(site.host_of(server))
        await asyncio.sleep(seconds)
        site.network.connect(site.host_of(server))

    yield Fault(f"the server whose controllers run is stopped for {seconds:g} s, longer than its Lease", pause)
    yield Fault(f"the server whose controllers run is cut off for {seconds:g} s, longer than its Lease", isolate)
