"""Files of a member on another machine, with a real server: the agent stops, and what a person can do then."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mooring.agent import daemon, machineid
from mooring.agent.disk import RecordFile
from mooring.agent.join import Joined, JoinOptions, join
from mooring.agent.k3s import process
from mooring.agent.k3s.files import AgentFiles
from mooring.agent.k3s.membership import AgentPlan, SupervisedMember
from mooring.agent.machineid import CopiedFilesError, MachineIdentity
from mooring.agent.recovery import rejoin
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import NotFoundError
from mooring.pki.keys import generate_key, public_key_der
from mooring.pki.x509.names import common_name
from tests.agent.k3s.test_live import plan as k3s_plan
from tests.agent.k3s.test_live import server_token
from tests.agent.test_membership_live import options, plan_for
from tests.cli.test_leave_live import files
from tests.cli.test_service import join as join_words
from tests.support.auditlog import records
from tests.support.commandline import CommandLine, mooring
from tests.support.joinplans import join_options
from tests.support.liveserver import LiveServer, start_server
from tests.support.machines import FIRST, SECOND, machine
from tests.support.polling import eventually

__all__ = ["mooring"]

Switch = Callable[[str], MachineIdentity]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    place = tmp_path_factory.mktemp("copied")
    server = start_server(place / "server", "--k3s-supervisor", "--audit-log-path", str(place / "audit.log"))
    yield server
    server.stop()


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Return the function that makes commands of this process run on the machine with a machine-id."""

    def use(machine_id: str) -> MachineIdentity:
        found = machine(tmp_path / f"machine-{machine_id}", machine_id)
        monkeypatch.setattr(machineid, "this_machine", lambda: found)
        return found

    return use


def requests_of(server: LiveServer, user: str) -> int:
    """Return how many requests the server has had from a user."""
    marker = f"marker-{time.monotonic_ns()}"

    async def mark(client: ClusterClient) -> None:
        with suppress(NotFoundError):
            await client.get("nodes", marker)

    # The log is written later, in the order of the requests.
    server.run(mark)
    log = server.data_dir.parent / "audit.log"
    eventually(lambda: marker in log.read_text())
    return sum(one["user"].get("username") == user for one in records(log))


def key_of(state: NodeState) -> bytes:
    pair = state.client.read_pair()
    assert pair is not None
    return public_key_der(pair.key)


def copied(server: LiveServer, mooring: CommandLine, tmp_path: Path, name: str) -> tuple[Path, Path]:
    """Let a machine join. Return the root of its files, and that of their copy."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    mooring.done(*join_words(server, original, name))
    shutil.copytree(original, copy, symlinks=True)
    current = NodeState(copy).client.current
    current.unlink()
    current.symlink_to(next(current.parent.glob("kubelet-client-2*.pem")))
    return original, copy


M = TypeVar("M", Joined, SupervisedMember)


def until_member(run: Callable[[Callable[[M], None]], Coroutine[Any, Any, None]]) -> M:
    """Return the first membership of an agent, which is stopped then."""

    async def first() -> M:
        member: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run(member.set_result))
        ways: list[asyncio.Future[Any]] = [task, member]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return member.result()

    return asyncio.run(first())


def run_agent(settings: JoinOptions) -> Joined:
    return until_member(lambda on_member: daemon.run(None, settings, on_member=on_member))


def test_the_agent_of_a_copy_stops_before_it_uses_the_certificate(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    _, copy = copied(server, mooring, tmp_path, "stops")
    before = requests_of(server, "system:node:stops"), files(copy)
    assert before[0] > 0
    on(SECOND)
    for words in (("agent",), ("join",), ("join", server.endpoint)):
        done = mooring(*words, "--root", str(copy))
        assert done.code == (78 if words[0] == "agent" else 1), done.err
        assert done.err.count("\n") == 1
        assert done.err.startswith(
            "Error: these files were copied from stops: join as a new machine with `mooring join "
        )
        assert f"`mooring agent --adopt --root {copy}`" in done.err
    with pytest.raises(JoinError, match="these files were copied from stops"):
        asyncio.run(rejoin(options(copy), SystemClock()))
    assert (requests_of(server, "system:node:stops"), files(copy)) == before


def test_a_machine_that_adopts_the_files_goes_on(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    _, copy = copied(server, mooring, tmp_path, "adopts")
    here = on(SECOND)
    assert run_agent(join_options(copy, adopts=True)).node_name == "adopts"
    assert not machineid.is_copy(NodeState(copy).record, here)
    assert run_agent(join_options(copy)).node_name == "adopts"


def test_an_adoption_that_fails_adopts_nothing(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    _, copy = copied(server, mooring, tmp_path, "keeps")
    here = on(SECOND)
    token = server.create_token().reveal()
    unverified = ("--discovery-token-unsafe-skip-ca-verification", "--root", str(copy))
    failed = mooring(
        "agent", server.url.removeprefix("https://"), "--token", token, "--node-name", "other", "--adopt", *unverified
    )
    assert (failed.code, "give --node-name keeps" in failed.err, "mooring leave" in failed.err) == (1, True, False)
    assert machineid.is_copy(NodeState(copy).record, here)
    assert mooring("leave", "--root", str(copy), "--yes").code == 1


def test_a_member_of_an_earlier_version_goes_on_and_is_known_then(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on("")
    original, _ = copied(server, mooring, tmp_path, "earlier")
    here = on(FIRST)
    assert NodeState(original).record.read().machine_id == ""
    run_agent(join_options(original))
    assert NodeState(original).record.read().machine_id == here.hashes()["machineID"]


def test_a_join_on_the_copy_makes_a_new_machine(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    original, copy = copied(server, mooring, tmp_path, "joined-first")
    state = NodeState(copy)
    key = key_of(state)
    old = state.client.read_pair()
    assert old is not None
    old_key = old.key_pem.reveal().decode()
    state.write_pending_key(old.key)
    state.record.write("nodeIP", ["192.0.2.77"])
    here = on(SECOND)
    before = requests_of(server, "system:node:joined-first")
    refused = mooring(*join_words(server, copy, "joined-first"))
    assert (refused.code, 'in use of the name "joined-first"' in refused.err or "Ready node" in refused.err) == (
        1,
        True,
    )
    assert key_of(state) == key
    out = mooring.done(*join_words(server, copy, "joined-second"))
    assert "the files here were copied from joined-first: joining as a new machine" in out
    assert "the files copied from joined-first were replaced" in out
    assert "This machine is a member now: node joined-second" in out
    pair = state.client.read_pair()
    assert pair is not None
    assert common_name(pair.leaf.subject) == "system:node:joined-second"
    assert public_key_der(pair.key) != key == key_of(NodeState(original))
    assert [path for path in copy.rglob("*.pem") if old_key in path.read_text()] == []
    record = state.record.read()
    assert (record.machine_id, record.node_ip, record.pending_key_of) == (here.hashes()["machineID"], (), {})
    assert requests_of(server, "system:node:joined-first") == before
    node = server.run(lambda client: client.get("nodes", "joined-second"))
    assert "192.0.2.77" not in [one["address"] for one in node["status"]["addresses"]]
    assert "was a member already" in mooring.done(*join_words(server, copy, "joined-second"))


def test_a_pending_key_that_was_copied_is_not_used_and_one_of_this_machine_is(
    server: LiveServer, tmp_path: Path, on: Switch
) -> None:
    for name, machine_id, is_kept in (("pending-same", FIRST, True), ("pending-other", SECOND, False)):
        here = on(FIRST)
        state = NodeState(tmp_path / name)
        state.record.write("pendingKeyOf", here.hashes())
        state.write_pending_key(pending := generate_key())
        on(machine_id)
        asyncio.run(join(plan_for(server, name), options(tmp_path / name)))
        assert (key_of(state) == public_key_der(pending)) is is_kept


def test_discovery_alone_leaves_a_kubelet_nothing_of_the_other_machine(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    _, copy = copied(server, mooring, tmp_path, "discovered-first")
    here = on(SECOND)
    out = mooring.done(*join_words(server, copy, "discovered-second", "--discover-only"))
    state = NodeState(copy)
    assert f"{state.client.current} was copied from discovered-first, and was removed" in out
    assert list(state.certificates.iterdir()) == []
    assert state.bootstrap.exists()
    assert not machineid.is_copy(state.record, here)


def test_the_copy_does_not_end_the_membership(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    on(FIRST)
    _, copy = copied(server, mooring, tmp_path, "left")
    before = requests_of(server, "system:node:left")
    on(SECOND)
    done = mooring("leave", "--root", str(copy), "--yes")
    assert done.code == 1
    assert done.err.startswith(
        "Error: these files were copied from left: they would end the membership of that machine"
    )
    assert "mooring leave --files-only" in done.err
    mooring.done("leave", "--root", str(copy), "--yes", "--files-only")
    assert files(copy) == []
    assert requests_of(server, "system:node:left") == before
    assert server.run(lambda client: client.get("nodes", "left"))["metadata"]["name"] == "left"


def k3s_agent(plan: AgentPlan) -> SupervisedMember:
    async def run(on_member: Callable[[SupervisedMember], None]) -> None:
        await process.run(plan, on_member=on_member)

    return until_member(run)


def test_a_copy_of_a_machine_that_joined_the_k3s_way_stops_too(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, on: Switch
) -> None:
    def plan(root: Path, token: str = "", *, adopts: bool = False) -> AgentPlan:
        found = k3s_plan(server, root, "by-k3s", token)
        settings = replace(found.settings, disable_apiserver_lb=True)
        return replace(found, settings=settings, adopts=adopts)

    first = on(FIRST)
    original, copy = tmp_path / "original", tmp_path / "copy"
    k3s_agent(plan(original, server_token(server)))
    assert AgentFiles(original).record.read().machine_id == first.hashes()["machineID"]
    k3s_agent(plan(original))
    shutil.copytree(original, copy)
    before = requests_of(server, "system:node:by-k3s")
    second = on(SECOND)
    for token in ("", server_token(server)):
        with pytest.raises(
            CopiedFilesError, match=r"these files were copied from by-k3s: .*leave --files-only.*--adopt"
        ):
            k3s_agent(plan(copy, token))
    done = mooring("agent", "--server", server.url, "--root", str(copy), "--node-name", "by-k3s")
    assert (done.code, done.err.count("\n")) == (78, 1)
    assert mooring("leave", "--root", str(copy), "--yes").code == 1
    assert requests_of(server, "system:node:by-k3s") == before
    renamed = plan(copy, server_token(server), adopts=True)
    with pytest.raises(
        JoinError, match='--adopt: this machine joined as "by-k3s", not "other": give --node-name by-k3s'
    ):
        k3s_agent(replace(renamed, settings=replace(renamed.settings, node_name="other")))
    assert machineid.is_copy(RecordFile(AgentFiles(copy).record.path), second)
    k3s_agent(plan(copy, adopts=True))
    assert not machineid.is_copy(RecordFile(AgentFiles(copy).record.path), second)
    k3s_agent(plan(copy))
