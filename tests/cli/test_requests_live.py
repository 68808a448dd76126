"""csr and kubeconfig commands against a real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn, cast

import pytest
import yaml

from mooring.agent.certificaterequest import node_request
from mooring.apimachinery.schema import Obj
from mooring.cli.csr.decision import _only
from mooring.cli.csr.show import beginnings, reason_of, resolve
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ConfigError, ForbiddenError, NotFoundError
from mooring.pki.keys import PrivateKey, generate_key, public_key_fingerprint
from mooring.pki.x509 import bundles
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT, KUBELET_SERVING
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually

__all__ = ["live_server", "mooring"]
QUALIFIED = "certificatesigningrequest.certificates.k8s.io"


@pytest.fixture
def csr(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def asked(
    server: LiveServer, signer: str = KUBE_APISERVER_CLIENT, groups: tuple[str, ...] = ("dev",), prefix: str = "test-"
) -> tuple[str, str]:
    """Create a request. Return its name and the fingerprint of its key."""
    key = generate_key()
    name = f"{prefix}{secrets.token_hex(4)}"
    obj: Obj = {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(build_request(key, "jane", groups, dns=("jane.example",))).decode(),
            "signerName": signer,
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 3600,
        },
    }
    server.run(lambda client: client.create("certificatesigningrequests", obj))
    return name, f"sha256:{public_key_fingerprint(key)}"


def stored(server: LiveServer, name: str) -> Obj:
    return server.run(lambda client: client.get("certificatesigningrequests", name))


OLD_KEY = "sha256:" + "0123456789abcdef" * 4


def serving_request(server: LiveServer, *, known: bool = True) -> tuple[str, str]:
    """Create a request for the serving certificate of a node. Return its name and the node's."""
    node = f"n{secrets.token_hex(4)}"
    obj: Obj = {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": f"csr-{node}", "labels": {"rack": node}},
        "spec": {
            "request": base64.b64encode(
                build_request(generate_key(), f"system:node:{node}", ("system:nodes",), dns=(node,))
            ).decode(),
            "signerName": KUBELET_SERVING,
            "usages": ["digital signature", "server auth"],
        },
    }
    identity: Obj = {
        "apiVersion": "mooring.dev/v1alpha1",
        "kind": "NodeIdentity",
        "metadata": {"name": node},
        "spec": {
            "keys": [{"publicKey": OLD_KEY, "serialNumber": "ab", "notAfter": "2035-01-02T00:00:00Z"}],
            "sourceAddress": "192.0.2.1",
            "token": "abcdef",
        },
    }

    async def create(client: ClusterClient) -> None:
        if known:
            await client.create("nodeidentities", identity)
            await client.create("nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": node}})
        await client.create("certificatesigningrequests", obj)

    server.run(create)
    return f"csr-{node}", node


def test_show_tells_the_derived_facts(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    facts = json.loads(csr.done("csr", "show", name, "-o", "json"))
    assert facts["name"] == name
    assert facts["requester"]["username"] == "kubernetes-admin"
    assert facts["requester"]["groups"] == ["kubeadm:cluster-admins", "system:authenticated"]
    assert facts["signerName"] == KUBE_APISERVER_CLIENT
    assert facts["usages"] == ["digital signature", "client auth"]
    assert facts["expirationSeconds"] == 3600
    assert facts["request"] == {
        "subject": {"commonName": "jane", "organizations": ["dev"], "text": "CN=jane,O=dev"},
        "dnsNames": ["jane.example"],
        "key": {"algorithm": "ECDSA-P256", "fingerprint": fingerprint},
    }
    assert facts["condition"] == "Pending"
    assert "certificate" not in facts
    assert yaml.safe_load(csr.done("csr", "show", name, "-o", "yaml")) == facts
    assert csr.done("csr", "show", name, "-o", "name") == f"{QUALIFIED}/{name}\n"
    text = csr.done("csr", "show", name)
    assert f"Key fingerprint:      {fingerprint}\n" in text
    assert "Requested duration:   60m\n" in text
    assert "BEGIN CERTIFICATE REQUEST" in csr.done("csr", "show", name, "-o", "wide")


def test_show_tells_what_the_signer_would_refuse(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server, KUBELET_SERVING)
    assert "Signer would refuse:  subject organization is not system:nodes; " in csr.done("csr", "show", name)


def test_several_are_shown_as_one_document(live_server: LiveServer, csr: CommandLine) -> None:
    names = [asked(live_server)[0], asked(live_server)[0]]
    shown = json.loads(csr.done("csr", "show", *names, "-o", "json"))
    assert [item["name"] for item in shown["items"]] == names


def test_a_wide_list_has_kubectls_columns(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    header, *rows = csr.done("csr", "list").splitlines()
    assert header.split() == ["NAME", "AGE", "NODE", "CONDITION", "SOURCE"]
    assert next(row for row in rows if row.startswith(name)).split()[2:] == ["<none>", "Pending", "127.0.0.1"]
    header, *rows = csr.done("csr", "list", "-o", "wide").splitlines()
    assert header.split()[:6] == ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"]
    wide = next(row for row in rows if row.startswith(name))
    assert wide.split()[2:6] == [KUBE_APISERVER_CLIENT, "kubernetes-admin", "60m", "Pending"]
    assert wide.split()[-2:] == ["CN=jane,O=dev", fingerprint]
    assert f"{QUALIFIED}/{name}" in csr.done("csr", "list", "-o", "name").split()
    items = json.loads(csr.done("csr", "list", "-o", "json"))["items"]
    assert {item["kind"] for item in items} == {"CertificateSigningRequest"}
    assert name in {item["metadata"]["name"] for item in items}
    assert name not in csr.done("csr", "list", "--signer", KUBELET_SERVING, "-o", "name")
    csr.done("csr", "approve", name)
    assert name not in csr.done("csr", "list", "--pending", "-o", "name")


def test_approving_is_final_and_repeating_it_is_no_write(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    assert csr.done("csr", "approve", name, "--fingerprint", fingerprint.upper().replace("SHA256", "sha256")) == (
        f"{QUALIFIED}/{name} approved\n"
    )
    condition = stored(live_server, name)["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Approved", "True", "MooringApprove")
    assert condition["message"] == "Approved with mooring csr approve."
    csr.done("csr", "approve", name)
    assert len(stored(live_server, name)["status"]["conditions"]) == 1
    assert csr.done("csr", "approve", name, "--force", "-o", "name") == f"{QUALIFIED}/{name}\n"
    outcome = csr("csr", "deny", name)
    assert outcome.code == 1
    assert outcome.err == f'Error: the certificate signing request "{name}" is already approved; that is final\n'


def test_denying_several_with_a_message(live_server: LiveServer, csr: CommandLine) -> None:
    names = [asked(live_server)[0], asked(live_server)[0]]
    output = csr.done("csr", "deny", *names, "--message", "who are you?")
    assert output == "".join(f"{QUALIFIED}/{name} denied\n" for name in names)
    for name in names:
        condition = stored(live_server, name)["status"]["conditions"][0]
        assert (condition["type"], condition["reason"], condition["message"]) == (
            "Denied", "MooringDeny", "who are you?"
        )  # fmt: skip
    assert csr("csr", "approve", names[0]).err.endswith("is already denied; that is final\n")


def test_another_key_is_not_approved(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    outcome = csr("csr", "approve", name, "--fingerprint", "sha256:" + "0" * 64)
    assert outcome.code == 1
    assert outcome.err == (
        f'Error: the certificate signing request "{name}" is for another key, {fingerprint}: it was not approved\n'
    )
    assert not stored(live_server, name).get("status", {}).get("conditions")


def test_of_several_requests_for_a_node_the_one_with_the_key_is_decided(
    live_server: LiveServer, csr: CommandLine
) -> None:
    """A stranger may wait under the name of a machine."""
    keys = [generate_key(), generate_key()]
    requests = waiting(live_server, "twin", keys)
    assert requests[0] != requests[1]
    for words in (("approve", "twin"), ("approve", "system:node:twin", "--yes"), ("deny", "node/twin", "-y")):
        outcome = csr("csr", *words)
        assert outcome.code != 0
        if "node/twin" not in words:
            assert f'"{words[1]}" stands for 2 requests: ' in outcome.err
            assert all(f"{name} (example.com/by-hand, key sha256:" in outcome.err for name in requests)
    assert csr("csr", "approve", "--all-pending").code == 1, "requests that are not named are confirmed first"
    for name in requests:
        assert not stored(live_server, name).get("status", {}).get("conditions")
    fingerprint = f"sha256:{public_key_fingerprint(keys[1])}"
    outcome = csr("csr", "approve", requests[0], "--fingerprint", fingerprint)
    assert "is for another key" in outcome.err
    assert csr.done("csr", "approve", "twin", "--fingerprint", fingerprint) == f"{QUALIFIED}/{requests[1]} approved\n"
    assert csr.done("csr", "show", "twin").count("Key fingerprint:") == 2, "decided requests are shown, too"
    other = f"sha256:{public_key_fingerprint(keys[0])}"
    assert csr.done("csr", "deny", "twin", "--fingerprint", other) == f"{QUALIFIED}/{requests[0]} denied\n"
    assert csr("csr", "approve", "twin").err == f'Error: certificatesigningrequests.{GROUP} "twin" not found\n'


def test_a_request_that_cannot_be_read_is_not_decided_where_no_key_is_given() -> None:
    readable = node_request(generate_key(), "n1").obj()
    unreadable = {"metadata": {"name": "b"}, "spec": {"request": "junk"}}
    with pytest.raises(ConfigError, match=r'"n1" stands for 2 requests: .*; b \(None, key unreadable, from unknown\)'):
        _only([readable, unreadable], "n1", "")


GROUP = "certificates.k8s.io"


def waiting(server: LiveServer, node: str, keys: Sequence[PrivateKey]) -> list[str]:
    """Create a request for the node by each key, which no controller decides, and return their names."""
    requests = [node_request(key, node) for key in keys]

    async def create(client: ClusterClient) -> None:
        for request in requests:
            obj = request.obj()
            obj["spec"] |= {"signerName": "example.com/by-hand"}
            await client.create("certificatesigningrequests", obj)

    server.run(create)
    return [request.name for request in requests]


def test_the_only_request_of_a_node_is_shown_and_confirmed(
    live_server: LiveServer, csr: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = waiting(live_server, "alone", [generate_key()])
    outcome = csr("csr", "approve", "alone")
    assert outcome.code == 1
    assert name in outcome.err, "it is listed"
    assert "nothing was decided: give --yes" in outcome.err
    monkeypatch.setattr("sys.stdin", io.StringIO("s\n"))
    review = csr("csr", "review", "alone")
    assert f"[1/1] {name}: approve" in review.err
    assert csr.done("csr", "approve", "alone", "--yes") == f"{QUALIFIED}/{name} approved\n"


class _ClientThatMayNotList:
    async def get(self, plural: str, name: str) -> Obj:
        if name != "mine":
            raise NotFoundError.of(GROUP, plural, name)
        return {"metadata": {"name": name}}

    async def list(self, plural: str) -> NoReturn:
        raise ForbiddenError.of(GROUP, plural, "", "no")


def test_a_user_who_may_not_list_requests_gives_their_names() -> None:
    client = cast(ClusterClient, _ClientThatMayNotList())
    assert asyncio.run(resolve(client, "mine", waiting=True)) == ([{"metadata": {"name": "mine"}}], True)
    with pytest.raises(NotFoundError, match="yours"):
        asyncio.run(resolve(client, "yours", waiting=True))


def test_the_beginning_of_a_name_stands_for_one_request(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server)
    assert csr.done("csr", "show", name[:-1], "-o", "name") == f"{QUALIFIED}/{name}\n"
    asked(live_server)
    (generated,) = waiting(live_server, "begun", [generate_key()])
    assert csr.done("csr", "show", generated[:-1], "-o", "name") == f"{QUALIFIED}/{generated}\n"
    unclear = csr("csr", "approve", "test-")
    assert unclear.code == 1
    assert '"test-" begins the names of ' in unclear.err
    assert "give --yes" in csr("csr", "deny", name[:-1]).err, "requesters choose the names of requests"
    assert csr.done("csr", "deny", name[:-1], "--yes") == f"{QUALIFIED}/{name} denied\n"


def test_a_request_that_is_called_like_a_machine_is_not_taken_for_that_of_the_machine(
    live_server: LiveServer, csr: CommandLine
) -> None:
    key = generate_key()
    (right,) = waiting(live_server, "called", [key])
    stranger = node_request(generate_key(), "evil").obj()
    stranger["metadata"] = {"name": "called"}
    stranger["spec"] |= {"signerName": "example.com/by-hand"}
    live_server.run(lambda client: client.create("certificatesigningrequests", stranger))
    for more in ((), ("--yes",)):
        outcome = csr("csr", "approve", "called", *more)
        assert outcome.code == 1
        assert '"called" stands for 2 requests: ' in outcome.err
    assert csr.done("csr", "show", "called").count("Key fingerprint:") == 2
    fingerprint = f"sha256:{public_key_fingerprint(key)}"
    assert csr.done("csr", "approve", "called", "--fingerprint", fingerprint) == f"{QUALIFIED}/{right} approved\n"
    assert csr.done("csr", "deny", "called") == f"{QUALIFIED}/called denied\n", "it is the only one that waits"


def test_the_list_says_for_which_node_a_request_waits_and_why(live_server: LiveServer, csr: CommandLine) -> None:
    name, node = serving_request(live_server)
    row = eventually_row(csr, node)
    assert row[0] == name[: len(row[0])]
    assert row[2:] == [node, "Pending:", "RequesterIsNoNode", "127.0.0.1"]
    csr.done("csr", "deny", name)


def eventually_row(csr: CommandLine, node: str) -> list[str]:
    """Return the row of a node once a controller has said why its request waits."""

    def row() -> list[str]:
        return next(line.split() for line in csr.done("csr", "list", "--pending").splitlines() if node in line)

    eventually(lambda: len(row()) == 6)
    return row()


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        pytest.param([], "", id="no controller has said one"),
        pytest.param([{"type": "Other", "reason": "O"}, {"type": "WouldFail", "reason": "W"}], "W", id="of the signer"),
        pytest.param([{"type": "NeedsApproval", "reason": "N"}], "N", id="of an approver"),
        pytest.param([{"type": "NeedsApproval", "reason": "N"}, {"type": "Denied"}], "", id="it waits no more"),
    ],
)
def test_the_reason_for_which_a_request_waits(conditions: list[Obj], reason: str) -> None:
    assert reason_of({"metadata": {"name": "a"}, "spec": {}, "status": {"conditions": conditions}}) == reason


def test_names_in_the_list_are_cut_to_unique_beginnings() -> None:
    first, last = "node-csr-" + "a" * 40, "node-csr-" + "a" * 39 + "b"
    assert beginnings([first, "csr-x7", "node-csr-0123456789abcdef", last]) == [
        first,
        "csr-x7",
        "node-csr-01234567",
        last,
    ]
    assert beginnings(["node-csr-bbbbbbbb11", "node-csr-bbbbbbbb22"]) == ["node-csr-bbbbbbbb1", "node-csr-bbbbbbbb2"]
    assert beginnings(["a" * 20, "a" * 25]) == ["a" * 20, "a" * 21], "a name that begins another one"


def test_a_request_is_shown_with_its_token(live_server: LiveServer, csr: CommandLine) -> None:
    token = live_server.create_token()
    described = {"data": {"description": base64.b64encode(b"rack 7").decode()}}
    live_server.run(lambda client: client.patch("secrets", f"bootstrap-token-{token.id}", described, "kube-system"))
    live_server.run(partial(send, live_server, token))
    text = csr.done("csr", "show", "tokened")
    assert f"Token:                {token.id} (rack 7)\n" in text
    assert "Source address:       127.0.0.1\n" in text
    shown = json.loads(csr.done("csr", "show", "tokened", "-o", "json"))
    assert shown["requester"]["token"] == {"id": token.id, "description": "rack 7"}
    assert (shown["node"], shown["sourceAddress"]) == ("tokened", "127.0.0.1")
    live_server.run(lambda client: client.delete("secrets", f"bootstrap-token-{token.id}", "kube-system"))
    assert f"Token:                {token.id}\n" in csr.done("csr", "show", "tokened")


async def send(server: LiveServer, token: BootstrapToken, _: ClusterClient) -> None:
    cluster = Cluster("", server.url, server.ca_pem)
    async with ClusterClient(cluster, KubeconfigUser("b", token=Secret(token.reveal())), SystemClock()) as client:
        await client.create("certificatesigningrequests", node_request(generate_key(), "tokened").obj())


def test_a_dry_run_changes_nothing(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server)
    assert csr.done("csr", "approve", name, "--dry-run") == f"{QUALIFIED}/{name} approved (server dry run)\n"
    assert not stored(live_server, name).get("status", {}).get("conditions")


def test_a_request_that_is_not_there(csr: CommandLine) -> None:
    message = 'Error: certificatesigningrequests.certificates.k8s.io "nope" not found\n'
    for verb in ("show", "approve", "deny"):
        assert csr("csr", verb, "nope").err == message


def test_a_user_gets_a_complete_kubeconfig(live_server: LiveServer, csr: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "jane.conf"
    arguments = ("kubeconfig", "user", "jane", "--group", "ops", "--group", "dev", "--expiration", "1h")
    outcome = csr(*arguments, "--out", str(out))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"Wrote {out}: user jane, valid until ")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    config = yaml.safe_load(out.read_text())
    assert config["current-context"] == "jane@kubernetes"
    assert config["clusters"][0]["cluster"]["server"] == live_server.url
    user = config["users"][0]["user"]
    leaf = bundles.certificates(base64.b64decode(user["client-certificate-data"]))[0]
    assert leaf.subject.rfc4514_string() == "CN=jane,O=dev+O=ops"
    refused = csr("token", "list", "--kubeconfig", str(out))
    assert refused.err.startswith('Error: secrets is forbidden: User "jane" cannot list resource "secrets"')
    again = csr(*arguments, "--out", str(out))
    assert again.err == f"Error: {out} exists already; remove it, or choose another name\n"


def test_a_user_may_be_printed_and_have_another_key(csr: CommandLine) -> None:
    config = yaml.safe_load(
        csr.done("kubeconfig", "user", "Jane Doe", "--key-algorithm", "Ed25519", "--cluster-name", "lab")
    )
    assert config["current-context"] == "Jane Doe@lab"
    assert config["users"][0]["name"] == "Jane Doe"


def test_the_rules_of_the_cluster_hold(csr: CommandLine) -> None:
    outcome = csr("kubeconfig", "user", "root", "--group", "system:masters")
    assert outcome.code == 1
    assert "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed" in outcome.err


# -- what a node had before ----------------------------------------------------------------------------------------------


def test_a_serving_request_is_shown_with_the_addresses_of_its_node(live_server: LiveServer, csr: CommandLine) -> None:
    name, node = serving_request(live_server)
    text = csr.done("csr", "show", name)
    assert f'Compared with what node "{node}" had:\n' in text
    assert f"Names and addresses:        <none> -> {node}\n" in text
    assert "Source address:             192.0.2.1 -> 127.0.0.1\n" in text
    assert "Token:                      abcdef -> <none>\n" in text
    before = json.loads(csr.done("csr", "show", name, "-o", "json"))["before"]
    assert (before["nodeName"], before["recorded"]) == (node, True)
    assert {"field": "Names and addresses", "old": "", "new": node} in before["fields"]


def test_a_name_that_nobody_had_is_said_to_be_new(live_server: LiveServer, csr: CommandLine) -> None:
    name, node = serving_request(live_server, known=False)
    assert f'nothing is recorded about node "{node}"' in csr.done("csr", "show", name)


# -- selectors, reasons, review ------------------------------------------------------------------------------------------


def test_a_reason_is_written_and_reasons_of_automatic_approvals_are_refused(
    live_server: LiveServer, csr: CommandLine
) -> None:
    name, _ = asked(live_server)
    refused = csr("csr", "approve", name, "--reason", "AutoApproved")
    assert refused.code == 2
    assert "must not begin with Auto" in refused.err
    csr.done("csr", "approve", name, "--reason", "KnownMachine", "--message", "seen it")
    condition = stored(live_server, name)["status"]["conditions"][0]
    assert (condition["reason"], condition["message"]) == ("KnownMachine", "seen it")


def test_requests_are_selected_by_label_and_signer(live_server: LiveServer, csr: CommandLine) -> None:
    name, node = serving_request(live_server)
    other, _ = asked(live_server)
    unanswered = csr("csr", "deny", "-l", f"rack={node}")
    assert unanswered.code == 1
    assert f"{name}   kubernetes-admin   CN=system:node:{node},O=system:nodes" in unanswered.err
    assert "give --yes to deny these 1 requests without a terminal" in unanswered.err
    output = csr.done("csr", "deny", "-l", f"rack={node}", "--signer", KUBELET_SERVING, "--yes", "-o", "json")
    assert [one["metadata"]["name"] for one in json.loads(output)["items"]] == [name]
    assert "No undecided" in csr("csr", "deny", "--selector", f"rack={node}", "--yes").err
    output = csr.done("csr", "deny", "--field-selector", f"metadata.name={other}", "--yes")
    assert output == f"{QUALIFIED}/{other} denied\n"


def test_all_that_wait_are_decided_at_once(live_server: LiveServer, csr: CommandLine) -> None:
    names = [asked(live_server)[0], asked(live_server)[0]]
    lines = csr.done("csr", "deny", "--all-pending", "-y").splitlines()
    assert {f"{QUALIFIED}/{name} denied" for name in names} <= set(lines)
    assert "No certificate signing requests found." in csr("csr", "list", "--pending").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((), "name the requests, or select them", id="neither names nor a selector"),
        pytest.param(("x", "--all-pending"), "NAME cannot be mixed with", id="both"),
    ],
)
def test_a_selection_must_be_clear(csr: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    outcome = csr("csr", "approve", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_review_asks_about_each_request_and_ends_with_the_input(
    live_server: LiveServer, csr: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    csr("csr", "deny", "--all-pending", "-y")
    names = {asked(live_server)[0] for _ in range(3)}
    waiting = json.loads(csr.done("csr", "list", "--pending", "-o", "json"))["items"]
    order = [
        one["metadata"]["name"] for one in sorted(waiting, key=lambda obj: str(obj["metadata"]["creationTimestamp"]))
    ]
    assert set(order) == names
    monkeypatch.setattr("sys.stdin", io.StringIO("what?\na\nDENY\ns\n"))
    outcome = csr("csr", "review", "--message", "looked at it")
    assert outcome.code == 0
    assert outcome.out.count("Key fingerprint:") == 3
    assert "Answer with approve, deny, skip or quit" in outcome.err
    assert outcome.err.endswith("1 approved, 1 denied, 1 skipped\n")
    decided = [[one["type"] for one in stored(live_server, name)["status"].get("conditions", [])] for name in order]
    assert decided == [["Approved"], ["Denied"], []]
    for given in ("q\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert csr("csr", "review").err.endswith("0 approved, 0 denied, 0 skipped\n")
    csr.done("csr", "deny", order[2])
    assert "No undecided" in csr("csr", "review").err


def test_a_review_does_not_approve_the_request_that_took_the_name_of_the_one_that_it_showed(
    live_server: LiveServer, csr: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    csr("csr", "deny", "--all-pending", "-y")
    name, _ = asked(live_server)
    first = stored(live_server, name)

    class Thinking:
        """A person during whose thought the request is deleted, and another machine makes one of its name."""

        def readline(self, limit: int) -> str:
            with ThreadPoolExecutor(1) as beside:  # the command waits for this line with its event loop
                beside.submit(self.replace).result()
            return "approve\n"

        def replace(self) -> None:
            live_server.run(lambda client: client.delete("certificatesigningrequests", name))
            pem = build_request(generate_key(), "jane", ("dev",))
            spec = {**first["spec"], "request": base64.b64encode(pem).decode()}
            again = {"kind": first["kind"], "apiVersion": first["apiVersion"], "metadata": {"name": name}, "spec": spec}
            live_server.run(lambda client: client.create("certificatesigningrequests", again))

    monkeypatch.setattr("sys.stdin", Thinking())
    outcome = csr("csr", "review")
    assert "was deleted and made again since it was shown" in outcome.err
    assert outcome.err.endswith("0 approved, 0 denied, 1 skipped\n")
    assert not stored(live_server, name)["status"].get("conditions")
    csr.done("csr", "deny", name)


POLICY = """
apiVersion: mooring.dev/v1alpha1
kind: SigningPolicy
signers:
- name: kubernetes.io/kube-apiserver-client
  rules:
  - {name: no-developers, organizations: [operators]}
"""


def test_the_finding_of_the_signing_policy_is_shown_before_the_approval(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    server = start_server(tmp_path / "data", "--cluster-signing-policy-file", str(tmp_path / "policy.yaml"))
    try:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        name, _ = asked(server)
        finding = 'rule "no-developers": the organization "dev" matches none of organizations'
        eventually(lambda: finding in mooring.done("csr", "show", name))
        assert "WouldFail" in mooring.done("csr", "show", name)
        monkeypatch.setattr("sys.stdin", io.StringIO("approve\n"))
        reviewed = mooring("csr", "review")
        assert reviewed.out.index(finding) < reviewed.all.index("approve, deny, skip or quit?")
        assert "it was not approved" in reviewed.err
        assert "0 approved, 0 denied, 1 skipped" in reviewed.err
        refused = mooring("csr", "approve", name)
        assert refused.code == 1
        assert finding in refused.err
        assert [one["type"] for one in stored(server, name)["status"]["conditions"]] == ["WouldFail"]
        mooring.done("csr", "approve", name, "--force")
        eventually(lambda: "Failed" in {one["type"] for one in stored(server, name)["status"]["conditions"]})
    finally:
        server.stop()


def test_names_that_the_list_prints_are_approved_and_shown(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server)
    (printed,) = [line for line in csr.done("csr", "list", "--pending", "-o", "name").split() if name in line]
    assert csr.done("csr", "show", printed, "-o", "name") == f"{QUALIFIED}/{name}\n"
    assert csr.done("csr", "approve", printed, "-o", "name") == f"{QUALIFIED}/{name}\n"
    wrong = csr("csr", "show", f"node/{name}")
    assert (wrong.code, wrong.out) == (2, "")
    assert f'"node/{name}" names a node; give NAME or {QUALIFIED}/NAME' in wrong.err


def test_a_kubeconfig_for_standard_output_leaves_no_file(
    csr: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert csr.done("kubeconfig", "user", f"joe-{secrets.token_hex(4)}", "--out", "-").startswith("apiVersion: v1\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["missing/joe.conf", "file/joe.conf"])
def test_a_kubeconfig_that_cannot_be_written_requests_no_certificate(
    live_server: LiveServer, csr: CommandLine, tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").write_text("")
    user = f"joe-{secrets.token_hex(4)}"
    refused = csr("kubeconfig", "user", user, "--out", str(tmp_path / out))
    assert (refused.code, refused.out) == (1, "")
    assert f"{tmp_path / out} cannot be written" in refused.err
    assert user not in csr.done("csr", "list", "-o", "wide")
