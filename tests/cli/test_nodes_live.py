"""`mooring node list`, `show` and `delete`: machines without kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli.node.machines import KnownMachine
from tests.scenarios.test_renewal import joined
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]


def of(server: LiveServer) -> tuple[str, ...]:
    return ("--kubeconfig", str(server.kubeconfig))


def test_a_machine_is_listed_shown_and_deleted(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    joined(live_server, "listed", tmp_path / "root")
    (row,) = (one for one in mooring.done("node", "list", *of(live_server)).splitlines() if one.startswith("listed "))
    name, state, *_ = row.split()
    assert (name, state) == ("listed", "Ready")
    assert "in " in row
    shown = mooring.done("node", "show", "listed", *of(live_server))
    assert "State:        Ready" in shown
    assert "system:node:listed" in shown
    document = json.loads(mooring.done("node", "show", "listed", "-o", "json", *of(live_server)))
    assert (document["state"], document["certificates"][0]["state"]) == ("Ready", "valid")
    assert "node/listed\n" in mooring.done("node", "list", "-o", "name", *of(live_server))
    assert mooring.done("node", "delete", "listed", *of(live_server)) == "node/listed deleted\n"
    assert "node/listed\n" not in mooring.done("node", "list", "-o", "name", *of(live_server))
    (ended,) = (
        one for one in mooring.done("node", "list", "--all", *of(live_server)).splitlines() if one.startswith("listed ")
    )
    assert ended.split()[1:3] == ["Ended", "<none>"]
    items = json.loads(mooring.done("node", "list", "--state", "Ended", "-o", "json", *of(live_server)))["items"]
    assert {one["state"] for one in items} == {"Ended"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("show", "nowhere"), 'there is no machine "nowhere" in this cluster', id="show"),
        pytest.param(("delete", "nowhere"), "mooring certs revoke --node nowhere", id="delete"),
    ],
)
def test_a_machine_that_is_unknown_is_one_line(
    words: tuple[str, ...], said: str, live_server: LiveServer, mooring: CommandLine
) -> None:
    done = mooring("node", *words, *of(live_server))
    assert (done.code, len(done.err.splitlines()), said in done.err) == (1, 1, True)


def node(**changes: Any) -> Obj:
    return {"metadata": {"name": "one", "uid": "u1", **changes}}


def with_ready(status: str) -> Obj:
    return {**node(), "status": {"conditions": [{"type": "Ready", "status": status}]}}


@pytest.mark.parametrize(
    ("found", "identity", "state"),
    [
        pytest.param(with_ready("True"), None, "Ready", id="ready"),
        pytest.param(with_ready("False"), None, "NotReady", id="not ready"),
        pytest.param(with_ready("Unknown"), None, "Lost", id="silent"),
        pytest.param(node(), None, "Lost", id="without a condition"),
        pytest.param(node(deletionTimestamp="2026-01-01T00:00:00Z"), None, "Deleting", id="held by a finalizer"),
        pytest.param(None, {"metadata": {}, "spec": {}}, "NoNode", id="never registered"),
        pytest.param(None, {"metadata": {}, "spec": {"nodeUID": "u1"}}, "Ended", id="deleted"),
        pytest.param(None, {"metadata": {}, "spec": {"nodeUID": "u1", "reregisters": True}}, "NoNode", id="may return"),
    ],
)
def test_the_state_of_a_machine(found: Obj | None, identity: Obj | None, state: str) -> None:
    assert KnownMachine("one", found, identity).state == state
