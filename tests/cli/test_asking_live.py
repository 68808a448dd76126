"""A machine without a credential asks to join, and a person decides by the code that both see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import NotFoundError
from tests.support.commandline import CommandLine, Outcome, mooring, process
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually

__all__ = ["live_server", "mooring"]
_CODE = re.compile(r"the code of this machine is ([A-Z2-7]{4}-[A-Z2-7]{4})")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    found = start_server(tmp_path_factory.mktemp("asking") / "data", "--join-requests")
    yield found
    found.kill()


@pytest.fixture
def machine(server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    return mooring


def ask(server: LiveServer, name: str, root: Path, *more: str) -> Outcome:
    return process("join", server.endpoint, "--ask", "--node-name", name, "--root", str(root), *more)


def asking(machine: CommandLine, name: str, count: int = 1) -> list[dict[str, Any]]:
    """Return what `machine list --pending` has of the machines that ask under a name, once there are so many."""

    def found() -> list[dict[str, Any]]:
        items = json.loads(machine.done("machine", "list", "--pending", "-o", "json"))["items"]
        named = [one for one in items if one["node"] == name]
        return named if len(named) == count else []

    return eventually(found)


def test_a_machine_asks_and_is_let_in_by_its_code(server: LiveServer, machine: CommandLine, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(ask, server, "rack-1", tmp_path, "--request-annotation", "rack=7")
        (found,) = asking(machine, "rack-1")
        assert (found["says"], found["source"]) == ({"rack": "7"}, "127.0.0.1")
        row = machine.done("machine", "list", "--pending").splitlines()[1]
        assert row.split()[:4] == ["rack-1", found["code"], "127.0.0.1", "rack=7"]
        wrong = machine("machine", "approve", "rack-1", "--code", "AAAA-AAAA")
        assert (wrong.code, "has the code AAAA-AAAA: it sees another cluster" in wrong.err) == (1, True)
        assert "give --code with the code that the machine rack-1 shows" in machine("machine", "approve", "rack-1").err
        assert "approved" in machine.done("machine", "approve", "rack-1", "--code", found["code"].lower())
        outcome = joining.result()
    assert outcome.code == 0, outcome.err
    shown = _CODE.search(outcome.out)
    assert shown is not None
    assert shown[1] == found["code"]
    assert "This machine is a member now: node rack-1" in outcome.out
    request = server.run(lambda client: client.get("certificatesigningrequests", found["request"]))
    approved = [one for one in request["status"]["conditions"] if one["type"] == "Approved"]
    assert approved[0]["reason"] == "JoinRequestApproved"
    assert machine("machine", "list", "--pending").err == "No machine asks to join.\n"


def test_a_pin_is_compared_before_a_machine_asks(server: LiveServer, machine: CommandLine, tmp_path: Path) -> None:
    outcome = ask(server, "pinned", tmp_path, "--discovery-token-ca-cert-hash", "sha256:" + "0" * 64)
    assert "no CA of the cluster has a pinned public key" in outcome.err
    with ThreadPoolExecutor() as pool:
        pinned = ("--discovery-token-ca-cert-hash", server.pin, "-o", "json")
        joining = pool.submit(ask, server, "pinned", tmp_path, *pinned)
        (found,) = asking(machine, "pinned")
        machine.done("machine", "approve", found["request"], "--code", found["code"])
        outcome = joining.result()
    assert json.loads(outcome.out)["joined"]
    assert f"the code of this machine is {found['code']}" in outcome.err, "where it is seen while the machine waits"
    assert "mooring csr approve" not in outcome.all, "which compares no code"


def test_of_two_machines_of_one_name_the_code_says_which(
    server: LiveServer, machine: CommandLine, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:
        joining = [pool.submit(ask, server, "twice", tmp_path / str(number)) for number in (1, 2)]
        first, second = asking(machine, "twice", 2)
        for verb in ("approve", "deny"):
            refused = machine("machine", verb, "twice")
            assert f'2 machines ask as "twice" ({first["code"]}, {second["code"]})' in refused.err
        machine.done("machine", "deny", "twice", "--code", second["code"], "--reason", "a stranger")
        machine.done("machine", "approve", "twice", "--code", first["code"])
        outcomes = [one.result() for one in joining]
    assert sorted(one.code for one in outcomes) == [0, 1]
    assert any("was denied (JoinRequestDenied: a stranger)" in one.err for one in outcomes)


def test_the_name_of_a_member_is_given_to_a_machine_that_asks_with_a_word_of_its_own(
    server: LiveServer, machine: CommandLine, tmp_path: Path
) -> None:
    token = ("--token", server.create_token().reveal(), "--discovery-token-ca-cert-hash", server.pin)
    machine.done("join", server.endpoint, *token, "--root", str(tmp_path / "first"), "--node-name", "kept")
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(ask, server, "kept", tmp_path / "second")
        (found,) = asking(machine, "kept")
        assert found["nameOwner"].startswith("sha256:")
        assert "kept (taken)" in machine.done("machine", "list", "--pending")
        refused = machine("machine", "approve", "kept", "--code", found["code"])
        assert (refused.code, "belongs to a member with another key" in refused.err) == (1, True)
        machine.done("machine", "approve", "kept", "--code", found["code"], "--replace")
        assert joining.result().code == 0


def test_a_denied_machine_that_goes_on_asking(server: LiveServer, machine: CommandLine, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        joining: Future[Outcome] = pool.submit(ask, server, "denied", tmp_path)
        asking(machine, "denied")
        machine.done("machine", "deny", "denied", "--reason", "not ours")
        assert "was denied (JoinRequestDenied: not ours)" in joining.result().err
    again = ask(server, "denied", tmp_path)
    assert again.code == 1
    assert "an administrator has denied this machine: not ours" in again.err
    assert machine("machine", "approve", "denied").err.startswith('Error: no machine asks to join as "denied"')


def test_a_request_waits_through_a_restart_of_the_server_and_of_the_machine(
    server: LiveServer, machine: CommandLine, tmp_path: Path
) -> None:
    brief = ask(server, "restarted", tmp_path, "--tls-bootstrap-timeout", "1s")
    assert "was not approved within 1 s (JoinRequested: the machine asks without a credential" in brief.err
    (found,) = asking(machine, "restarted")
    server.kill()
    server.restart()
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(ask, server, "restarted", tmp_path)
        machine.done("machine", "approve", "restarted", "--code", found["code"])
        outcome = joining.result()
    assert outcome.code == 0, outcome.err
    assert f"taken up {found['request']}" in outcome.out


def test_a_server_that_takes_no_such_requests_says_so(live_server: LiveServer, tmp_path: Path) -> None:
    outcome = ask(live_server, "off", tmp_path)
    assert outcome.code == 1
    assert "a server takes requests without a credential with --join-requests" in outcome.err


def test_the_right_goes_when_the_setting_does(tmp_path: Path) -> None:
    found = start_server(tmp_path / "data", "--join-requests")

    def binding() -> Obj | None:
        async def read(client: Any) -> Obj | None:
            try:
                return dict(await client.get("clusterrolebindings", "mooring:join-requests"))
            except NotFoundError:
                return None

        return found.run(read)

    assert binding() is not None
    found.kill()
    found = start_server(tmp_path / "data", port=found.port)
    assert binding() is None
    found.kill()
