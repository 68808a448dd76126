"""A join by an identity token, with a real server: the rule names the node, one key joins, and what a machine is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import daemon
from mooring.agent.join import Joined, JoinOptions, join
from mooring.agent.steps import JoinError
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.errors import ConfigError
from mooring.trust.joinconfiguration import JoinPlan, JoinSettings
from tests.support.joinplans import join_options
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.liveserver import LiveServer, start_server
from tests.support.manualclock import HurriedClock
from tests.support.polling import eventually

ONE_SECOND = timedelta(seconds=1)
ISSUER = "https://issuer.test"
KEY = key_for("ES256")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    found = start_server(tmp_path_factory.mktemp("identity") / "data")
    for name, more in RULES.items():
        spec = {
            "issuer": {"url": ISSUER, "jwks": key_set(public(KEY)).decode()},
            "claims": [{"claim": "repository", "value": f"acme/{name}"}],
            **more,
        }
        rule = {"apiVersion": "mooring.dev/v1alpha1", "kind": "JoinRule", "metadata": {"name": name}, "spec": spec}
        found.run(partial(create, rule))
    yield found
    found.stop()


async def create(rule: Obj, client: ClusterClient) -> Obj:
    return await client.create("joinrules", rule)


RULES: dict[str, dict[str, Any]] = {
    "named": {"nodeName": "ci-{run_id}"},
    "free": {"nodeName": "free-*"},
    "waits": {"nodeName": "waits", "requireApproval": True},
}


def cluster_id(server: LiveServer) -> str:
    found = server.run(lambda client: client.get("namespaces", "kube-system"))
    return str(found["metadata"]["uid"])


def token(server: LiveServer, repository: str, jti: str, *, life: int = 600, **claims: Any) -> str:
    stated = {
        "iss": ISSUER,
        "aud": cluster_id(server),
        "sub": f"repo:acme/{repository}",
        "repository": f"acme/{repository}",
        "jti": jti,
        "exp": int(time.time()) + life,
        **claims,
    }
    return signed(stated, KEY, "ES256")


def plan(server: LiveServer, file: Path | str = "", node_name: str = "", command: str = "") -> JoinPlan:
    values = {
        "address": (server.endpoint,),
        "discovery_token_ca_cert_hash": (server.pin,),
        "identity_token_file": str(file),
        "identity_token_command": command,
        "node_name": node_name,
    }
    return JoinSettings.read(values).plan("this-host")


def options(root: Path, **more: Any) -> JoinOptions:
    return join_options(root=root, certificate_timeout=30.0, **more)


def joined(wanted: JoinPlan, root: Path) -> Joined:
    return asyncio.run(join(wanted, options(root)))


def refused(wanted: JoinPlan, root: Path) -> str:
    with pytest.raises(JoinError) as caught:
        asyncio.run(join(wanted, options(root), HurriedClock()))
    return str(caught.value)


def requests_of(server: LiveServer, node_name: str) -> list[Obj]:
    found = server.run(lambda client: client.list("certificatesigningrequests")).items
    stated = [one for one in found if node_name in one["spec"].get("extra", {}).get("join.mooring.dev/node-name", ())]
    return sorted(stated, key=lambda one: str(one["metadata"]["name"]))


def test_the_rule_names_the_node_and_the_next_run_needs_no_token(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(server, "named", "first", run_id="17") + "\n")
    member = joined(plan(server, file), tmp_path)
    assert member.node_name == "ci-17"
    assert not member.files.bootstrap.exists()
    file.unlink()
    again = joined(plan(server, file), tmp_path)
    assert (again.node_name, again.already_member) == ("ci-17", True)
    (request,) = requests_of(server, "ci-17")
    assert request["spec"]["username"] == "system:joinrule:named"
    identity = server.run(lambda client: client.get("nodeidentities", "ci-17"))
    assert identity["spec"]["joinRule"] == "named"
    records = server.run(lambda client: client.list("lineagerecords")).items
    (entry,) = [one for record in records for one in record["spec"]["entries"] if one.get("node") == "ci-17"]
    assert (entry["joinRule"], entry["identityIssuer"], entry["identitySubject"]) == (
        "named",
        ISSUER,
        "repo:acme/named",
    )
    assert entry["identityUse"].startswith("sha256:")
    assert "first" not in json.dumps(records)


def test_the_same_token_lets_in_no_second_machine(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(server, "free", "shared"))
    joined(plan(server, file, "free-1"), tmp_path / "1")
    message = refused(plan(server, file, "free-2"), tmp_path / "2")
    assert "IdentityTokenUsed" in message
    assert "has let in another key" in message
    file.write_text(token(server, "free", "own"))
    assert joined(plan(server, file, "free-2"), tmp_path / "2").node_name == "free-2"


def test_a_command_prints_the_token_and_a_long_one_is_taken(server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token(server, "free", "long", groups=["g" * 30] * 380))
    assert (tmp_path / "token").stat().st_size > 16_000
    command = plan(server, command=f"cat {tmp_path}/token", node_name="free-long")
    assert joined(command, tmp_path / "long").node_name == "free-long"
    assert "printed no token" in refused(plan(server, command="true", node_name="free-3"), tmp_path / "none")
    assert "failed with exit status 3" in refused(plan(server, command="exit 3", node_name="free-3"), tmp_path / "none")


def test_a_refusal_says_what_the_token_states_and_repeats_none_of_it(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    issuer = 'issuer "https://issuer.test", audience '
    for text, shown in (
        (token(server, "free", "refused", aud="sts"), f'{issuer}"sts", until '),
        (token(server, "fork", "refused"), issuer),
        (token(server, "free", "refused", iss="https://other.test"), 'issuer "https://other.test"'),
        (token(server, "free", "refused", life=-5), issuer),
        (signed({}, KEY, "ES256"), "it names no issuer"),
    ):
        file.write_text(text)
        message = refused(plan(server, file, "free-4"), tmp_path)
        assert f"the server does not accept the identity token in {file} ({shown}" in message
        assert not any(part in message for part in text.split("."))
    file.write_text("no token at all\n")
    assert "does not hold a token" in refused(plan(server, file, "free-4"), tmp_path)
    file.unlink()
    assert f"{file} cannot be read" in refused(plan(server, file, "free-4"), tmp_path)


def test_a_kubelet_does_the_rest_with_the_bootstrap_kubeconfig(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(server, "named", "kubelet", run_id="18"))

    async def user_of(kubeconfig: Path) -> str:
        async with connect(load(str(kubeconfig))) as client:
            review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
            answer = await client.post_path("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        return str(answer["status"]["userInfo"]["username"])

    for wanted in (plan(server, file), plan(server, command=f"cat {file}")):
        root = tmp_path / ("command" if wanted.identity and wanted.identity.command else "file")
        found = asyncio.run(join(wanted, options(root, discover_only=True)))
        assert (found.node_name, found.pair) == ("ci-18", None)
        text = found.files.bootstrap.read_text()
        assert (f"tokenFile: {file}" in text) == (root.name == "file")
        assert asyncio.run(user_of(found.files.bootstrap)) == "system:joinrule:named"


def test_a_dry_run_sends_no_token(server: LiveServer, tmp_path: Path) -> None:
    found = asyncio.run(join(plan(server, tmp_path / "missing"), options(tmp_path, dry_run=True)))
    assert found.node_name == "this-host"


def test_a_token_that_expires_while_a_person_decides(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(server, "waits", "short"))
    brief = replace(options(tmp_path), settings=replace(options(tmp_path).settings, tls_bootstrap_timeout=ONE_SECOND))
    with pytest.raises(JoinError, match=r"was not approved within 1 s .JoinRuleRequiresApproval"):
        asyncio.run(join(plan(server, file), brief))
    (request,) = requests_of(server, "waits")
    file.write_text(token(server, "waits", "short", life=-5))
    assert "does not accept the identity token in" in refused(plan(server, file), tmp_path)
    file.write_text(token(server, "waits", "another"))
    name = request["metadata"]["name"]
    approve(server, name)
    assert joined(plan(server, file), tmp_path).request_name == name, "the request of before, with its key"


def approve(server: LiveServer, name: str) -> None:
    csr = server.run(lambda client: client.get("certificatesigningrequests", name))
    condition = {"type": "Approved", "status": "True", "reason": "Tested", "message": ""}
    status = {**csr["status"], "conditions": [*csr["status"].get("conditions", ()), condition]}
    server.run(
        lambda client: client.update("certificatesigningrequests", {**csr, "status": status}, subresource="approval")
    )


def test_an_agent_joins_and_starts_again_without_its_token(server: LiveServer, tmp_path: Path) -> None:
    file, members = tmp_path / "token", list[Joined]()
    file.write_text(token(server, "named", "agent", run_id="19"))

    async def run(count: int) -> None:
        task = asyncio.create_task(daemon.run(plan(server, file), options(tmp_path), on_member=members.append))
        await asyncio.to_thread(eventually, lambda: len(members) == count or task.done())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run(1))
    file.unlink()
    asyncio.run(run(2))
    assert [one.node_name for one in members] == ["ci-19", "ci-19"]


def test_another_name_than_that_of_the_membership(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(server, "free", "renamed"))
    joined(plan(server, file, "free-5"), tmp_path)
    with pytest.raises((ConfigError, JoinError), match="give --node-name free-5"):
        asyncio.run(join(replace(plan(server, file), node_name="free-6"), options(tmp_path)))
