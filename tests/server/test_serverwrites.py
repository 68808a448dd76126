"""Test the audit records of what the server itself writes: controllers, first boot, background work.

Source: docs/operate.md#audit-log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import StorageError
from mooring.identity import API_SERVER_USER
from mooring.server.audit import auditor
from mooring.server.audit.auditevent import OMITTED
from tests.support.auditlog import records
from tests.support.loops import until
from tests.support.serverroom import Server, open_server

NAMESPACES = "/api/v1/namespaces"
SECRET_VALUE = "c2VydmVyLW1hZGU="


def records_of(folder: Path, calls: Callable[[Server], Awaitable[Any]], rules: list[Obj] | None = None) -> list[Obj]:
    """Return the audit records of a server that starts, answers some calls, and stops."""
    flags = {"audit_log_path": str(folder / "audit.log")}
    if rules is not None:
        policy = folder / "policy.json"
        policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        flags["audit_policy_file"] = str(policy)

    async def body() -> None:
        async with open_server(**flags) as server:
            await calls(server)

    asyncio.run(body())
    return records(folder / "audit.log")


def by_writer(found: list[Obj], writer: str) -> list[Obj]:
    return [record for record in found if record["userAgent"] == f"mooring/{writer}"]


async def nothing(server: Server) -> None:
    return None


@asynccontextmanager
async def controllers(server: Server) -> Any:
    """Run the controllers of the server, as the holder of their Lease."""
    assembly = server.assembly
    task = asyncio.ensure_future(assembly.controllers.elector.run(assembly.controllers.reconciler.run))
    await until(lambda: assembly.controllers.elector.leading)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def make_namespace(server: Server) -> None:
    """Create a namespace, wait for what controllers create in it, and delete it."""
    async with controllers(server):
        await server.create("namespaces", {"metadata": {"name": "team"}})
        accounts = server.registry.views["serviceaccounts"]
        await until(lambda: accounts.get("default", "team") is not None)
        await server.call("DELETE", f"{NAMESPACES}/team")
        await until(lambda: server.registry.views["namespaces"].get("team") is None)


def test_first_boot_leaves_a_record_of_each_object(tmp_path: Path) -> None:
    written = by_writer(records_of(tmp_path, nothing), "first-boot")
    made = {record["requestURI"] + "/" + record["objectRef"]["name"] for record in written}
    assert f"{NAMESPACES}/kube-system" in made
    assert "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin" in made
    record = next(record for record in written if record["objectRef"]["name"] == "kube-system")
    assert record["user"] == {"username": "system:apiserver", "groups": ["system:masters"]}
    assert (record["verb"], record["responseStatus"]["code"]) == ("create", 201)
    assert (record["level"], record["stage"]) == ("Metadata", "ResponseComplete")
    assert record["sourceIPs"] == []
    assert record["objectRef"] == {"resource": "namespaces", "name": "kube-system", "apiVersion": "v1"}


def test_a_second_start_that_writes_nothing_records_nothing(tmp_path: Path) -> None:
    async def again(server: Server) -> None:
        await server.assembly.upkeep.first_boot.run()

    once = records_of(tmp_path, nothing)
    (tmp_path / "audit.log").unlink()
    assert len(records_of(tmp_path, again)) == len(once)


def test_each_controller_is_named_in_the_records_of_its_writes(tmp_path: Path) -> None:
    found = records_of(tmp_path, make_namespace)
    (account,) = [
        record
        for record in by_writer(found, "serviceaccount-controller")
        if record["requestURI"] == f"{NAMESPACES}/team/serviceaccounts"
    ]
    assert (account["verb"], account["responseStatus"]["code"]) == ("create", 201)
    assert account["objectRef"]["name"] == "default"
    ends = [(record["verb"], record["requestURI"]) for record in by_writer(found, "namespace-controller")]
    assert ("delete", f"{NAMESPACES}/team/serviceaccounts/default") in ends
    assert ("update", f"{NAMESPACES}/team/finalize") in ends
    (lease,) = by_writer(found, "leader-election")[:1]
    assert (lease["verb"], lease["objectRef"]["name"]) == ("create", "mooring-controllers")


def test_a_request_of_a_client_has_one_record(tmp_path: Path) -> None:
    async def call(server: Server) -> None:
        await server.create("namespaces", {"metadata": {"name": "team"}})

    found = records_of(tmp_path, call)
    assert len([record for record in found if record["requestURI"].startswith(NAMESPACES + "/team")]) == 0
    assert len([record for record in found if (record["objectRef"] or {}).get("name") == "team"]) == 1


def test_the_end_of_a_node_records_the_end_of_its_identity(tmp_path: Path) -> None:
    async def call(server: Server) -> None:
        await server.create("nodes", {"metadata": {"name": "n1"}})
        await server.call("DELETE", "/api/v1/nodes/n1")

    written = by_writer(records_of(tmp_path, call), "apiserver")
    ends = [record["objectRef"] for record in written if record["objectRef"]["resource"] == "nodeidentities"]
    assert [(end["name"], end["apiGroup"]) for end in ends] == [("n1", "mooring.dev")]


@pytest.mark.parametrize(
    "rules", [[{"level": "None", "users": ["system:apiserver"]}], [{"level": "Metadata", "users": ["x"]}]]
)
def test_a_policy_leaves_them_out(tmp_path: Path, rules: list[Obj]) -> None:
    assert records_of(tmp_path, make_namespace, rules) == []


def test_a_policy_keeps_their_objects(tmp_path: Path) -> None:
    rules: list[Obj] = [
        {"level": "RequestResponse", "users": ["system:apiserver"], "verbs": ["create"]},
        {"level": "Request"},
    ]
    found = records_of(tmp_path, make_namespace, rules)
    account = next(
        record
        for record in by_writer(found, "serviceaccount-controller")
        if record["objectRef"]["namespace"] == "team" and record["objectRef"]["resource"] == "serviceaccounts"
    )
    assert account["requestObject"]["metadata"]["name"] == "default"
    assert "resourceVersion" not in account["requestObject"]["metadata"]
    assert int(account["responseObject"]["metadata"]["resourceVersion"]) > 0
    removed = next(record for record in by_writer(found, "namespace-controller") if record["verb"] == "delete")
    assert removed["level"] == "Request"
    assert "requestObject" not in removed


def test_no_policy_records_the_body_of_a_secret(tmp_path: Path) -> None:
    async def write(server: Server) -> None:
        secret = {"metadata": {"name": "a"}, "data": {"k": SECRET_VALUE}}
        change = Change(API_SERVER_USER, server.clock.now(), writer="test")
        await server.registry.writer.create(BY_PLURAL["secrets"], "default", secret, change, WriteOptions())

    (record,) = by_writer(records_of(tmp_path, write, [{"level": "RequestResponse"}]), "test")
    assert record["level"] == "Metadata"
    assert OMITTED in record["annotations"]
    assert SECRET_VALUE not in (tmp_path / "audit.log").read_text()


def test_an_object_that_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "MAX_OBJECT", 2000)

    async def write(server: Server) -> None:
        large = {"metadata": {"name": "a"}, "data": {"k": "x" * 2000}}
        change = Change(API_SERVER_USER, server.clock.now(), writer="test")
        await server.registry.writer.create(BY_PLURAL["configmaps"], "default", large, change, WriteOptions())

    (record,) = by_writer(records_of(tmp_path, write, [{"level": "RequestResponse"}]), "test")
    assert record["annotations"][OMITTED] == "the object is too large"
    assert "requestObject" not in record


@pytest.mark.parametrize(("rules", "renewals"), [(None, 0), ([{"level": "Metadata"}], 1)])
def test_renewals_of_leases_are_recorded_where_a_policy_wants_them(
    tmp_path: Path, rules: list[Obj] | None, renewals: int
) -> None:
    async def write(server: Server) -> None:
        kind, registry = BY_PLURAL["leases"], server.registry
        change = Change(API_SERVER_USER, server.clock.now(), writer="test")
        lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}}
        stored = await registry.writer.create(kind, "default", lease, change, WriteOptions())
        renewed = {
            **stored.obj,
            "spec": {"holderIdentity": "x", "renewTime": rfc3339(server.clock.now())[:-1] + ".000000Z"},
        }
        await registry.writer.update(kind, "default", "a", renewed, change, WriteOptions())

    written = by_writer(records_of(tmp_path, write, rules), "test")
    assert [record["verb"] for record in written] == ["create", "update"][: 1 + renewals]


async def stop_answering(*args: Any, **kwargs: Any) -> Any:
    raise StorageError("the store did not answer")


async def answer_never(*args: Any, **kwargs: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("create", [stop_answering, answer_never])
def test_a_write_whose_outcome_is_not_known_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Callable[..., Any]
) -> None:
    async def write(server: Server) -> None:
        monkeypatch.setattr(server.storage, "create", create)
        change = Change(API_SERVER_USER, server.clock.now(), writer="test")
        obj = {"metadata": {"name": "a"}}
        writing = asyncio.ensure_future(
            server.registry.writer.create(BY_PLURAL["configmaps"], "default", obj, change, WriteOptions())
        )
        await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        writing.cancel()
        assert isinstance(
            (await asyncio.gather(writing, return_exceptions=True))[0], (StorageError, asyncio.CancelledError)
        )

    (record,) = by_writer(records_of(tmp_path, write), "test")
    assert record["responseStatus"]["status"] == "Failure"
    assert record["responseStatus"]["code"] >= 500


def test_a_write_that_was_refused_is_not_recorded(tmp_path: Path) -> None:
    async def write(server: Server) -> None:
        change = Change(API_SERVER_USER, server.clock.now(), writer="test")
        for _ in range(2):
            writing = server.registry.writer.create(
                BY_PLURAL["configmaps"], "default", {"metadata": {"name": "a"}}, change, WriteOptions()
            )
            await asyncio.gather(writing, return_exceptions=True)

    assert len(by_writer(records_of(tmp_path, write), "test")) == 1
