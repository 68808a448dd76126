"""Servers that carry a rollover out, and servers that follow it with data directories of their own."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificateauthorityrollover import SINGLETON
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.controlplane.carollover import GATE_SECONDS, PLURAL, CaFile, CaRollover
from mooring.controlplane.carolloverfiles import CaRenewal, RolloverFiles
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.keystore import make_shared_keys, prepare
from mooring.controlplane.servingcertificate import ServingPair
from mooring.controlplane.sharedkeys.files import SharedKeyFiles
from mooring.controlplane.sharedkeys.share import SharedKeys
from mooring.identity import MASTERS, UserInfo
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.settings.serving import ServingSettings
from mooring.trust.discovery.pins import pin_of
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.servertoken import SharedKeysSettings
from tests.support.registryroom import Room, open_room

ADMIN = UserInfo("admin", groups=(MASTERS,))
Sharing = Callable[[Callable[[Room, "Server", "Server"], Awaitable[None]]], None]


def config_of(root: Path) -> ServerConfig:
    return server_config(data_dir=str(root), detected_addresses=("192.0.2.1",))


class Server:
    """The rollovers of one server with its own data directory, over a shared store."""

    def __init__(
        self,
        room: Room,
        root: Path,
        *,
        leads: bool,
        shared: SharedKeys | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        files: tuple[CaFile, ...] = (),
    ) -> None:
        self.root, self.leads = root, leads
        config = config_of(root)
        self.store = prepare(config, room.clock.now(), secrets.token_bytes).key_store
        self.clients: tuple[Certificate, ...] | None = None
        self.obstacle = ""
        self.judged: list[tuple[str, str, str]] = []
        pair = (self.store.serving_chain, self.store.serving_key)
        serving = ServingPair(
            config[ServingSettings], pair, self.store.ca, Reloading(), room.clock.now, changed=lambda: None
        )
        self.rollover = CaRollover(
            room.registry,
            RolloverFiles(root),
            CaRenewal(config, self.store, serving, room.clock, secrets.token_bytes),
            serving.root_ca,
            lambda: self.store.ca.trusted if self.clients is None else self.clients,
            self.join_obstacles,
            lambda: self.leads,
            room.clock,
            secrets.token_bytes,
            root.name,
            shared,
            claim,
            files,
        )

    async def join_obstacles(self, leaving: str, staying: str, name: str) -> tuple[str, ...]:
        self.judged.append((leaving, staying, name))
        return (self.obstacle,) if self.obstacle else ()

    @property
    def trusted(self) -> int:
        return len(self.store.ca.trusted)

    def has_folder(self) -> bool:
        return (self.root / "pki/rollover").exists()


async def settle(room: Room, *servers: Server) -> None:
    """Let every server look until nothing changes any more."""
    for _ in range(12):
        for server in servers:
            await server.rollover.look()
        await room.registry.reader.fresh()


async def ask(room: Room, phase: str, **more: object) -> None:
    kind, change = BY_PLURAL[PLURAL], Change(ADMIN, room.clock.now())
    spec = {"phase": phase, **more}
    found = room.registry.views[PLURAL].get(SINGLETON)
    if found is None:
        obj = {"apiVersion": "mooring.dev/v1alpha1", "kind": "CertificateAuthorityRollover"}
        await room.registry.writer.create(
            kind, "", {**obj, "metadata": {"name": SINGLETON}, "spec": spec}, change, WriteOptions()
        )
    else:
        await room.registry.writer.update(kind, "", SINGLETON, {**found, "spec": spec}, change, WriteOptions())
    await room.registry.reader.fresh()


def status(room: Room) -> Obj:
    found = room.registry.views[PLURAL].get(SINGLETON)
    assert found is not None
    reached: Obj = found["status"]
    return reached


def in_room(tmp_path: Path, test: Callable[[Room, Server, Server], Awaitable[None]]) -> None:
    """Run a test with a leader, and a follower whose data directory began as a copy."""

    async def body() -> None:
        async with open_room() as room:
            leader = Server(room, tmp_path / "leader", leads=True)
            shutil.copytree(tmp_path / "leader", tmp_path / "follower")
            await test(room, leader, Server(room, tmp_path / "follower", leads=False))

    asyncio.run(body())


def test_without_a_rollover_nothing_happens(tmp_path: Path) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        assert not await leader.rollover.look()
        assert not await follower.rollover.look()

    in_room(tmp_path, test)


def test_a_server_without_the_new_key_says_so_and_follows_when_it_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        await ask(room, "TrustBoth")
        await settle(room, leader, follower)
        assert (status(room)["phase"], leader.trusted, follower.trusted) == ("TrustBoth", 2, 1)
        assert caplog.text.count("copy pki/rollover/ from the server that made it") == 1, "it is said once"
        shutil.copytree(leader.root / "pki/rollover", follower.root / "pki/rollover")
        await settle(room, follower)
        assert follower.store.ca.trusted == leader.store.ca.trusted
        await ask(room, "Retired")
        await settle(room, leader, follower)
        assert status(room)["phase"] == "Done"
        assert status(room)["server"] == "leader"
        for server in (leader, follower):
            assert server.store.ca.trusted == leader.store.ca.trusted
            assert (server.trusted, len(server.store.ca.retired), server.has_folder()) == (1, 1, False)

    in_room(tmp_path, test)


def test_a_leader_without_the_new_key_reports_it(tmp_path: Path) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        await ask(room, "TrustBoth")
        await settle(room, leader)
        leader.leads, follower.leads = False, True
        await ask(room, "IssueNew")
        await settle(room, follower, leader)
        assert status(room)["phase"] == "TrustBoth"
        assert "the data directory of this server has no key of the new CA" in status(room)["message"]
        shutil.copytree(leader.root / "pki/rollover", follower.root / "pki/rollover")
        await settle(room, follower, leader)
        assert status(room)["phase"] == "IssueNew"
        assert follower.store.ca.trusted == leader.store.ca.trusted

    in_room(tmp_path, test)


def test_a_failed_look_is_logged_once_and_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        await ask(room, "TrustBoth")
        kept = (leader.root / "pki/ca.key").read_bytes()
        (leader.root / "pki/ca.key").write_bytes(b"oops")
        running = asyncio.ensure_future(leader.rollover.run())
        try:
            await advance_until(room, lambda: "the rollover of the CA does not go on" in caplog.text)
            (leader.root / "pki/ca.key").write_bytes(kept)
            await advance_until(room, lambda: status(room).get("phase") == "TrustBoth")
            assert caplog.text.count("the rollover of the CA does not go on") == 1
        finally:
            running.cancel()

    in_room(tmp_path, test)


async def advance_until(room: Room, reached: Callable[[], bool]) -> None:
    """Let seconds of the manual clock pass until `reached`. Files are read in threads, which take real time."""
    for _ in range(2000):
        if reached():
            return
        await room.clock.advance(1)
        await asyncio.sleep(0.002)
    raise AssertionError("it was not reached in 2000 seconds of the manual clock")


FORCED: dict[str, dict[str, object]] = {
    "waits": {},
    "forced": {"force": "TrustBoth"},
    "stolen": {"force": "TrustBoth", "compromised": True},
}


@pytest.mark.parametrize("more", FORCED.values(), ids=FORCED.keys())
@pytest.mark.parametrize("end", ["Retired", "Aborted"])
def test_client_ca_file_has_to_hold_the_ca_that_stays(tmp_path: Path, more: dict[str, object], end: str) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        async def wanted(phase: str, reached: str, name: str = "") -> None:
            await ask(room, phase, **{**more, **({"force": phase} if more else {})})
            await room.clock.advance(GATE_SECONDS)
            await settle(room, leader)
            assert status(room)["phase"] == reached
            sentence = f"client-ca-file does not hold the {name} CA: append pki/rollover/{name}.crt"
            assert (sentence in status(room)["message"]) == bool(name)

        leader.clients = old = leader.store.ca.trusted
        await wanted("IssueNew", "TrustBoth", "new")
        both = leader.clients = certificates((leader.root / "pki/ca.crt").read_bytes())
        await wanted("IssueNew", "IssueNew")
        leader.clients = old
        await wanted("Drain", "IssueNew", "new")
        leader.clients = both
        await wanted("Drain", "Drain")
        if end == "Aborted":
            leader.clients = both[1:]
            await wanted("Aborted", "Aborting", "old")
            leader.clients = both
        else:
            leader.clients = old
            await wanted("Retired", "Drain", "new")
            leader.clients = both
        await wanted(end, "Done" if end == "Retired" else end)

    in_room(tmp_path, test)


@pytest.mark.parametrize("flag", ["client-ca-file", "root-ca-file"])
@pytest.mark.parametrize("more", FORCED.values(), ids=FORCED.keys())
def test_no_step_is_taken_that_the_next_start_could_not_read(
    tmp_path: Path, more: dict[str, object], flag: str
) -> None:
    async def body() -> None:
        path = tmp_path / "cas.crt"
        async with open_room() as room:
            leader = Server(
                room, tmp_path / "leader", leads=True, files=(CaFile(flag, path, lambda: leader.store.ca.trusted),)
            )

            async def wanted(phase: str, reached: str) -> str:
                await ask(room, phase, **{**more, **({"force": phase} if more else {})})
                await room.clock.advance(GATE_SECONDS)
                await settle(room, leader)
                assert status(room)["phase"] == reached
                return str(status(room)["message"])

            await wanted("TrustBoth", "TrustBoth")
            both = (leader.root / "pki/ca.crt").read_bytes()
            for phase, before in (("IssueNew", "TrustBoth"), ("Drain", "IssueNew"), ("Retired", "Drain")):
                path.unlink(missing_ok=True)
                message = await wanted(phase, before)
                assert f"{flag} is not usable now: {path} cannot be read: no such file" in message
                assert "restore the file with both CAs" in message
                assert "append pki/rollover" not in message
                path.write_bytes(b"junk")
                assert f"{flag} is not usable now: {path}: " in await wanted(phase, before)
                path.write_bytes(leader.store.ca.authority.certificate_pem)
                assert f"{flag} was changed, and what {path} holds now is not in force yet" in await wanted(
                    phase, before
                )
                path.write_bytes(both)
                await wanted(phase, "Done" if phase == "Retired" else phase)

    asyncio.run(body())


@pytest.mark.parametrize("more", FORCED.values(), ids=FORCED.keys())
@pytest.mark.parametrize("end", ["Retired", "Aborted"])
def test_no_step_is_taken_that_joining_machines_could_not_follow(
    tmp_path: Path, more: dict[str, object], end: str
) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        for phase, before, name in (
            ("IssueNew", "TrustBoth", "new"),
            ("Drain", "IssueNew", "new"),
            (end, "Drain", "new") if end == "Retired" else (end, "Aborting", "old"),
        ):
            leader.obstacle = "cluster-info does not hold it"
            if phase == "IssueNew":
                await ask(room, "TrustBoth", **more)
                await settle(room, leader)
                assert (status(room)["phase"], status(room)["message"]) == ("TrustBoth", leader.obstacle), (
                    "before it is wanted"
                )
            await ask(room, phase, **{**more, **({"force": phase} if more else {})})
            await settle(room, leader)
            assert (status(room)["phase"], status(room)["message"]) == (before, leader.obstacle)
            leaving, staying, called = leader.judged[-1]
            assert called == name
            known = (status(room)["oldCA"]["publicKey"], status(room)["newCA"]["publicKey"])
            assert (leaving, staying) == (known if name == "new" else known[::-1])
            leader.obstacle = ""
            await room.clock.advance(GATE_SECONDS)
            await settle(room, leader)
            assert status(room)["phase"] == ("Done" if phase == "Retired" else phase)

    in_room(tmp_path, test)


def test_an_abort_removes_the_new_ca_from_every_server(tmp_path: Path) -> None:
    async def test(room: Room, leader: Server, follower: Server) -> None:
        await ask(room, "Drain")
        await settle(room, leader)
        shutil.copytree(leader.root / "pki/rollover", follower.root / "pki/rollover")
        await settle(room, follower)
        assert follower.store.ca.state.authority.certificate == leader.store.ca.authority.certificate
        await ask(room, "Aborted")
        await settle(room, leader, follower)
        assert status(room)["phase"] == "Aborted"
        for server in (leader, follower):
            assert (server.trusted, server.has_folder()) == (1, False)
        change = Change(ADMIN, room.clock.now())
        await room.registry.writer.delete(BY_PLURAL[PLURAL], "", SINGLETON, DeleteOptions(), change)

    in_room(tmp_path, test)


# ── keys in the store ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sharing:
    """Run a test with two servers that share their keys through the store, and have data directories of their own."""
    monkeypatch.setattr(envelope, "N", 16)

    def run(test: Callable[[Room, Server, Server], Awaitable[None]]) -> None:
        async def body() -> None:
            async with open_room() as room:
                await test(
                    room, await joined(room, tmp_path / "one", True), await joined(room, tmp_path / "two", False)
                )

        asyncio.run(body())

    return run


async def joined(room: Room, root: Path, leads: bool) -> Server:
    """Start a server with the token of the cluster."""
    config = config_of(root)
    token = Secret("0123456789abcdef0123456789abcdef")
    settings = replace(config[SharedKeysSettings], server_token=token)
    shared = SharedKeys(config.with_settings(settings), room.storage, secrets.token_bytes, room.clock)
    await shared.settle(lambda copy: make_shared_keys(config, copy, room.clock.now(), secrets.token_bytes))
    return Server(room, root, leads=leads, shared=shared)


def test_every_server_follows_a_rollover_through_the_store(sharing: Sharing) -> None:
    async def test(room: Room, one: Server, two: Server) -> None:
        before = one.store.ca.authority.certificate
        for phase, trusted in (("TrustBoth", 2), ("IssueNew", 2), ("Drain", 2), ("Retired", 1)):
            await ask(room, phase)
            await settle(room, one, two)
            assert status(room)["phase"] == ("Done" if phase == "Retired" else phase)
            assert (one.trusted, two.trusted) == (trusted, trusted)
            assert two.store.ca.authority.certificate == one.store.ca.authority.certificate
        assert one.store.ca.authority.certificate != before
        assert [server.has_folder() for server in (one, two)] == [False, False]

    sharing(test)


def test_another_server_goes_on_with_a_rollover(sharing: Sharing) -> None:
    async def test(room: Room, one: Server, two: Server) -> None:
        await ask(room, "IssueNew")
        for _ in range(3):
            await one.rollover.look()
            await room.registry.reader.fresh()
        one.leads, two.leads = False, True  # the first one is killed: nobody copies a file
        await settle(room, two)
        assert status(room)["phase"] == "IssueNew"
        await ask(room, "Aborted")
        await settle(room, two, one)
        assert status(room)["phase"] == "Aborted"
        assert one.store.ca.trusted == two.store.ca.trusted
        assert (one.trusted, one.has_folder(), two.has_folder()) == (1, False, False)

    sharing(test)


def test_two_servers_that_both_believe_to_lead_make_one_ca(sharing: Sharing) -> None:
    async def test(room: Room, one: Server, two: Server) -> None:
        two.leads = True
        await ask(room, "TrustBoth")
        for _ in range(8):
            await asyncio.gather(one.rollover.look(), two.rollover.look(), return_exceptions=True)
            await room.registry.reader.fresh()
        await settle(room, one, two)
        assert status(room)["phase"] == "TrustBoth"
        assert set(one.store.ca.trusted) == set(two.store.ca.trusted)
        assert one.trusted == 2

    sharing(test)


@pytest.mark.parametrize("compromised", [False, True], ids=["of a CA in use", "of a stolen CA"])
def test_the_record_of_a_server_that_keeps_its_keys_follows_the_phases(tmp_path: Path, compromised: bool) -> None:
    async def body() -> None:
        async with open_room() as room:
            config, root = config_of(tmp_path), tmp_path
            keys = SharedKeys(config, room.storage, secrets.token_bytes, room.clock)
            await keys.keep(lambda copy: make_shared_keys(config, copy, room.clock.now(), secrets.token_bytes))
            server = Server(room, root, leads=True, claim=keys.claim)
            old = str(pin_of(server.store.ca.authority.certificate))
            for phase in ("TrustBoth", "IssueNew", "Drain", "Retired"):
                await ask(room, phase, **({"compromised": True} if compromised else {}))
                await settle(room, server)
                entry = await room.storage.get(envelope.KEY)
                assert entry is not None
                row = envelope.decode(entry.value)
                assert row.fingerprint == SharedKeyFiles(root).key_set().fingerprint, phase
                (root / "server/shared-keys.json").unlink()  # nothing but the record says that they belong together
                await keys.keep(lambda copy: None)
            assert (old in row.authorities) != compromised
            assert row.authorities[0] == str(pin_of(server.store.ca.authority.certificate)) != old

    asyncio.run(body())
