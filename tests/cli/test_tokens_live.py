"""Token commands against a real server: output, repetition, refusals."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import NotFoundError
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.k3s.token import parse_token as parse_k3s_token
from mooring.trust.kubeconfig import user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from tests.support.commandline import CommandLine, mooring, process
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

__all__ = ["live_server", "mooring"]


@pytest.fixture
def tokens(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def secret_of(server: LiveServer, token_id: str) -> Obj:
    return server.run(lambda client: client.get("secrets", tokensecret.secret_name(token_id), tokensecret.NAMESPACE))


def listed(tokens: CommandLine) -> dict[str, Obj]:
    return {item["id"]: item for item in json.loads(tokens.done("token", "list", "-o", "json"))["items"]}


def test_create_prints_the_token_alone_and_stores_what_kubeadm_would(
    live_server: LiveServer, tokens: CommandLine
) -> None:
    token = parse_token(tokens.done("token", "create").removesuffix("\n"))
    record = tokensecret.from_secret(secret_of(live_server, token.id))
    assert record.token == token
    assert record.usages == ("authentication", "signing")
    assert record.groups == ("system:bootstrappers:kubeadm:default-node-token",)
    assert record.expires is not None
    left = record.expires - SystemClock().now()
    assert tokensecret.DEFAULT_TTL * 0.99 < left <= tokensecret.DEFAULT_TTL


def test_create_in_the_format_of_k3s_adds_the_hash_of_the_ca(live_server: LiveServer, tokens: CommandLine) -> None:
    token = parse_k3s_token(tokens.done("token", "create", "--format", "k3s").removesuffix("\n"))
    assert token.ca_hash == hashlib.sha256(live_server.ca_pem).hexdigest()
    assert token.bootstrap is not None
    record = tokensecret.from_secret(secret_of(live_server, token.bootstrap.id))
    assert record.token == token.bootstrap
    assert record.usages == ("authentication", "signing")
    assert record.groups == ("system:bootstrappers:k3s:default-node-token",)
    assert record.expires is not None
    left = record.expires - SystemClock().now()
    assert tokensecret.DEFAULT_TTL * 0.99 < left <= tokensecret.DEFAULT_TTL


def test_a_limited_token_is_made_by_the_server_and_printed_as_another(
    live_server: LiveServer, tokens: CommandLine
) -> None:
    made = tokens("token", "create", "--limited", "--node-name", "ci-*", "--ttl", "2h", "--description", "runners")
    assert made.code == 0, made.err
    token = parse_token(made.out.removesuffix("\n"))
    sentence = f"Token {token.id} lets in 1 machine named ci-*, from any network, until"
    assert made.err.startswith(sentence.replace("named", "named like"))
    (found,) = (item for token_id, item in listed(tokens).items() if token_id == token.id)
    assert (found["maxJoins"], found["joins"], found["nodeName"]) == (1, 0, "ci-*")
    assert found["createdBy"] == "kubernetes-admin"
    assert 7000 < found["ttlSeconds"] <= 7200


def test_a_limited_token_has_a_join_command_of_either_way(live_server: LiveServer, tokens: CommandLine) -> None:
    line = tokens.done("token", "create", "--limited", "--max-joins", "3", "--print-join-command")
    assert line.startswith(f"mooring join {live_server.endpoint} --token ")
    assert " --discovery-token-ca-cert-hash sha256:" in line
    line = tokens.done("token", "create", "--limited", "--format", "k3s", "--print-join-command")
    token = parse_k3s_token(line.split()[-1])
    assert token.bootstrap is not None
    record = tokensecret.from_secret(secret_of(live_server, token.bootstrap.id))
    assert record.groups == ("system:bootstrappers:k3s:default-node-token",)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--groups", "system:bootstrappers:x"], 2, "--limited cannot be mixed with --groups: the server chooses it"),
        (["--usages", "signing"], 2, "--limited cannot be mixed with --usages: the server chooses it"),
        (["abcdef.0123456789abcdef"], 2, "--limited cannot be mixed with a token: the server chooses it"),
        (["--config", "init.yaml"], 2, "--limited cannot be mixed with --config: the server chooses it"),
        (["--ttl", "0"], 1, "spec.expirationSeconds: Invalid value: 0: must be from 60 to 86400"),
        (["--ttl", "25h"], 1, "spec.expirationSeconds: Invalid value: 90000: must be from 60 to 86400"),
        (["--max-joins", "101"], 1, "spec.maxJoins: Invalid value: 101: must be from 1 to 100"),
    ],
    ids=str,
)
def test_a_limited_token_has_limits(tokens: CommandLine, arguments: list[str], code: int, message: str) -> None:
    before = listed(tokens).keys()
    outcome = tokens("token", "create", "--limited", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
    assert listed(tokens).keys() == before


@pytest.mark.parametrize("flag", ["--limited", "--config=init.yaml"])
def test_a_token_of_the_environment_is_refused_where_it_would_be_ignored(
    tokens: CommandLine, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setenv("MOORING_TOKEN", "abcdef.0123456789abcdef")
    outcome = tokens("token", "create", flag)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{flag.partition('=')[0]} cannot be mixed with $MOORING_TOKEN" in outcome.err
    assert "0123456789abcdef" not in outcome.err


def test_a_dry_run_of_a_limited_token_makes_none(tokens: CommandLine) -> None:
    before = listed(tokens).keys()
    outcome = tokens("token", "create", "--limited", "--dry-run")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "[dry-run] the server would make a token\n")
    assert listed(tokens).keys() == before


def test_groups_that_are_given_win_over_those_of_the_format(live_server: LiveServer, tokens: CommandLine) -> None:
    group = "system:bootstrappers:kubeadm:default-node-token"
    output = tokens.done("token", "create", "k3sgrp.0123456789abcdef", "--format", "k3s", "--groups", group)
    assert output.endswith("::k3sgrp.0123456789abcdef\n")
    assert listed(tokens)["k3sgrp"]["groups"] == [group]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["k3sdup.fedcba9876543210"], 1, 'a token with id "k3sdup" already exists'),
        (["--print-join-command", "--join-program", "kubeadm"], 2, "does not join with a token of the format k3s"),
        (["--print-join-command", "--certificate-key", "ab" * 32], 2, "--certificate-key is kubeadm's"),
        (["--config", "init.yaml"], 2, "--config cannot be mixed with --format"),
        (["abcdef.short"], 2, "the bootstrap token is not of the form"),
    ],
)
def test_create_in_the_format_of_k3s_is_refused(
    tokens: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    if code == 1:
        tokens("token", "create", "k3sdup.0123456789abcdef")
    before = listed(tokens)
    outcome = tokens("token", "create", "--format", "k3s", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
    assert "fedcba9876543210" not in outcome.err
    assert listed(tokens).keys() == before.keys()


def test_the_command_of_an_agent_names_the_server_and_the_whole_token(
    live_server: LiveServer, tokens: CommandLine
) -> None:
    token = f"K10{hashlib.sha256(live_server.ca_pem).hexdigest()}::k3sjoi.0123456789abcdef"
    arguments = ("token", "create", "k3sjoi.0123456789abcdef", "--format", "k3s", "--print-join-command", "--dry-run")
    line = f"agent --server {live_server.url} --token {token}\n"
    assert tokens.done(*arguments) == f"mooring {line}"
    assert tokens.done(*arguments, "--join-program", "k3s") == f"k3s {line}"
    outcome = tokens("token", "create", "--print-join-command", "--join-program", "k3s")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--join-program k3s does not join with a token of the format kubeadm: give mooring or kubeadm" in outcome.err


def test_list_in_the_format_of_k3s(tokens: CommandLine) -> None:
    tokens.done(
        "token", "create", "k3slst.k3m8x1c5v0b6n4z2", "--format", "k3s", "--ttl", "0", "--usages", "authentication"
    )
    header, *rows = tokens.done("token", "list", "--format", "k3s").splitlines()
    assert header.split("  ")[0] == "TOKEN"
    assert header.split() == ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA", "GROUPS"]
    row = next(line for line in rows if line.startswith("k3slst "))
    assert row.split() == [
        "k3slst", "<forever>", "<never>", "authentication", "<none>", "system:bootstrappers:k3s:default-node-token"
    ]  # fmt: skip
    assert {line.index("system:") for line in rows if "system:" in line} == {header.index("EXTRA")}
    ids = tokens.done("token", "list", "--format", "k3s", "-o", "name").split()
    for form, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        documents = load(tokens.done("token", "list", "--format", "k3s", "-o", form))
        assert [one["id"] for one in documents] == ids
        assert {one["kind"] for one in documents} == {"BootstrapToken"}
        assert all(one["apiVersion"] and "token" not in one for one in documents)
    for form in ("table", "text", "wide", "json", "yaml", "name"):
        output = tokens.done("token", "list", "--format", "k3s", "-o", form)
        assert "k3slst" in output
        assert "k3m8x1c5v0b6n4z2" not in output


def test_delete_takes_whole_tokens_of_k3s(tokens: CommandLine) -> None:
    whole = tokens.done("token", "create", "k3sdel.0123456789abcdef", "--format", "k3s").strip()
    assert tokens.done("token", "delete", "--format", "k3s", whole) == 'bootstrap token "k3sdel" deleted\n'
    assert "k3sdel" not in listed(tokens)
    outcome = tokens("token", "delete", f"K10{'a' * 64}::server:hunter2")
    assert (outcome.code, outcome.out) == (2, "")
    assert "not a bootstrap token but a password" in outcome.err
    assert "hunter2" not in outcome.err


def test_create_takes_every_flag(live_server: LiveServer, tokens: CommandLine) -> None:
    output = tokens.done(
        "token", "create", "flag01.0123456789abcdef", "--ttl", "0", "--usages", "authentication",
        "--groups", "system:bootstrappers:a,system:bootstrappers:b", "--groups", "system:bootstrappers:c",
        "--description", "for the lab",
    )  # fmt: skip
    assert output == "flag01.0123456789abcdef\n"
    data = secret_of(live_server, "flag01")["data"]
    assert set(data) == {
        "token-id", "token-secret", "description", "usage-bootstrap-authentication", "auth-extra-groups"
    }  # fmt: skip
    shown = listed(tokens)["flag01"]
    assert shown["groups"] == ["system:bootstrappers:a", "system:bootstrappers:b", "system:bootstrappers:c"]
    assert shown["description"] == "for the lab"
    assert "expires" not in shown
    assert "ttlSeconds" not in shown


def test_a_restricted_token_says_what_it_allows_and_is_listed_so(live_server: LiveServer, tokens: CommandLine) -> None:
    outcome = tokens(
        "token", "create", "limit1.0123456789abcdef", "--ttl", "0", "--max-joins", "3", "--allow-cidr", "10.0.0.0/8",
        "--allow-cidr", "fd00::/64", "--node-name", "worker-*",
    )  # fmt: skip
    assert (outcome.code, outcome.out) == (0, "limit1.0123456789abcdef\n")
    assert outcome.err.splitlines() == [
        "Token limit1 lets in up to 3 machines named like worker-*, from 10.0.0.0/8, fd00::/64, until it is deleted.",
        "Warning: token limit1 never expires. Give tokens an end, or delete this one when the machines have joined: "
        "mooring token delete limit1",
    ]
    assert secret_of(live_server, "limit1")["metadata"]["annotations"] == {
        "mooring.dev/max-joins": "3",
        "mooring.dev/allowed-cidrs": "10.0.0.0/8,fd00::/64",
        "mooring.dev/node-name": "worker-*",
    }
    shown = listed(tokens)["limit1"]
    assert (shown["maxJoins"], shown["joins"]) == (3, 0)
    assert (shown["allowedCIDRs"], shown["nodeName"]) == (["10.0.0.0/8", "fd00::/64"], "worker-*")
    row = next(line for line in tokens.done("token", "list", "-o", "text").splitlines() if line.startswith("limit1"))
    assert row.split()[-6:] == ["0/3", "<never>", "nodes", "worker-*;", "from", "10.0.0.0/8,fd00::/64"]


def test_a_token_for_machines_that_are_thrown_away_says_so(live_server: LiveServer, tokens: CommandLine) -> None:
    outcome = tokens("token", "create", "thrown.0123456789abcdef", "--node-name", "ci-*", "--ephemeral", "90m")
    assert outcome.out == "thrown.0123456789abcdef\n"
    assert outcome.err.endswith(". The membership of a machine that is silent for 1h30m0s ends.\n")
    annotations = secret_of(live_server, "thrown")["metadata"]["annotations"]
    assert annotations == {"mooring.dev/node-name": "ci-*", "mooring.dev/ephemeral": "1h30m0s"}
    assert listed(tokens)["thrown"]["ephemeral"] == "1h30m0s"
    row = next(line for line in tokens.done("token", "list", "-o", "text").splitlines() if line.startswith("thrown"))
    assert row.split()[-4:] == ["nodes", "ci-*;", "ephemeral", "90m"]
    said = "The membership of a machine of this token that is silent for 1h30m0s ends.\n"
    assert said in tokens("token", "impact", "thrown").err
    tokens.done("token", "create", "stayed.0123456789abcdef")
    for other in ("stayed", "nowher"):
        assert "silent" not in tokens("token", "impact", other).err


def test_a_machine_of_a_token_that_requires_approval_waits_for_a_person(
    live_server: LiveServer, tokens: CommandLine, tmp_path: Path
) -> None:
    outcome = tokens("token", "create", "person.0123456789abcdef", "--require-approval")
    assert outcome.out == "person.0123456789abcdef\n"
    assert outcome.err.endswith("). Each request waits for a person: mooring csr approve.\n")
    assert secret_of(live_server, "person")["metadata"]["annotations"] == {"mooring.dev/require-approval": "true"}
    assert listed(tokens)["person"]["requireApproval"] is True
    row = next(line for line in tokens.done("token", "list", "-o", "text").splitlines() if line.startswith("person"))
    assert row.split()[-2:] == ["requires", "approval"]

    def waiting() -> list[Obj]:
        found = live_server.run(lambda client: client.list("certificatesigningrequests")).items
        mine = [one for one in found if one["spec"]["username"] == "system:bootstrap:person"]
        return [one for one in mine if one.get("status", {}).get("conditions")]

    flags = ["--token", "person.0123456789abcdef", "--discovery-token-ca-cert-hash", live_server.pin]
    with ThreadPoolExecutor() as machines:
        joining = machines.submit(
            process, "join", live_server.endpoint, *flags, "--root", str(tmp_path), "--node-name", "approved-1"
        )
        (csr,) = eventually(waiting, live_server)
        (condition,) = csr["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("NeedsApproval", "TokenRequiresApproval")
        name = csr["metadata"]["name"]
        assert 'node "approved-1" and the key sha256:' in condition["message"]
        assert condition["message"].endswith(f"mooring csr approve {name}")
        assert "system:node:approved-1" in tokens.done("csr", "show", name)
        tokens.done("csr", "approve", name)
        joined = joining.result()
    assert joined.code == 0, joined.err
    assert (tmp_path / "etc/kubernetes/kubelet.conf").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--ephemeral", "119s"], "at least 2m", id="too short a silence"),
        pytest.param(["--ephemeral", "366d"], "at most 365d", id="too long a silence"),
        pytest.param(["--ephemeral", "30"], "a duration such as 30m", id="a silence without a unit"),
        pytest.param(["--ephemeral", ""], "ephemeral", id="no silence"),
        pytest.param(["--max-joins", "1001"], "from 1 to 1000", id="too many joins"),
        pytest.param(["--allow-cidr", "10.0.0.1/8"], "not a network such as", id="host bits"),
        pytest.param(["--node-name", "Worker"], "not a node name", id="no node name"),
    ],
)
def test_a_restriction_that_cannot_be_read_creates_nothing(tokens: CommandLine, flags: list[str], message: str) -> None:
    outcome = tokens("token", "create", "never1.0123456789abcdef", *flags)
    assert outcome.code == 2
    assert message in outcome.err
    assert "never1" not in listed(tokens)


def test_a_token_that_only_signs_says_so(tokens: CommandLine) -> None:
    for token_id, flags in (("signs1", []), ("signs2", ["--groups", ""]), ("signs3", ["--format", "k3s"])):
        outcome = tokens("token", "create", f"{token_id}.0123456789abcdef", "--usages", "signing", *flags)
        assert f"Token {token_id} signs cluster-info and lets no machine in, until " in outcome.err
        assert listed(tokens)[token_id]["groups"] == []


def test_creating_an_existing_id_is_refused(tokens: CommandLine) -> None:
    tokens.done("token", "create", "again1.0123456789abcdef")
    outcome = tokens("token", "create", "again1.fedcba9876543210")
    assert outcome.code == 1
    assert outcome.err == 'Error: a token with id "again1" already exists; delete it, or choose another\n'


def test_a_dry_run_creates_nothing(live_server: LiveServer, tokens: CommandLine) -> None:
    outcome = tokens("token", "create", "dryrun.0123456789abcdef", "--dry-run")
    assert outcome.out == "dryrun.0123456789abcdef\n"
    first, allowed = outcome.err.splitlines()
    assert first == "[dry-run] would create the Secret kube-system/bootstrap-token-dryrun"
    assert allowed.startswith("Token dryrun lets in any number of machines under any name, from any network, until ")
    with pytest.raises(NotFoundError):
        secret_of(live_server, "dryrun")


def test_the_join_command_names_server_token_and_pin(live_server: LiveServer, tokens: CommandLine) -> None:
    line = tokens.done("token", "create", "joinl1.0123456789abcdef", "--print-join-command")
    assert line == (
        f"mooring join {live_server.endpoint} --token joinl1.0123456789abcdef "
        f"--discovery-token-ca-cert-hash {live_server.pin}\n"
    )


def test_a_join_command_that_would_fail_is_printed_with_a_warning(tokens: CommandLine, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    words = ("token", "create", "--print-join-command", "--kubeconfig", str(server.kubeconfig))
    try:
        assert "cluster-info" not in tokens(*words).err
        server.run(lambda client: client.delete("configmaps", "cluster-info", "kube-public"))
        done = tokens(*words)
    finally:
        server.stop()
    assert done.out.startswith("mooring join ")
    assert f"Warning: machines read cluster-info of {server.url}: it is missing, and no machine can join" in done.err


def test_the_join_command_names_every_address_and_the_published_ca_where_the_kubeconfig_has_none(
    live_server: LiveServer, tokens: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(live_server.ca_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    admin = parse_kubeconfig(live_server.kubeconfig.read_bytes())
    reached = user_kubeconfig(live_server.url, b"", admin.users[0], others=["https://other.test:443"])
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(format_kubeconfig(reached))
    line = tokens.done(
        "token", "create", "joinl3.0123456789abcdef", "--print-join-command", "--kubeconfig", str(kubeconfig)
    )
    assert line == (
        f"mooring join {live_server.endpoint} other.test:443 --token joinl3.0123456789abcdef "
        f"--discovery-token-ca-cert-hash {live_server.pin}\n"
    )


def test_the_join_command_of_kubeadm_keeps_its_trailing_space(live_server: LiveServer, tokens: CommandLine) -> None:
    common = (
        f"kubeadm join {live_server.endpoint} --token joinl2.0123456789abcdef "
        f"--discovery-token-ca-cert-hash {live_server.pin} "
    )
    arguments = ("token", "create", "joinl2.0123456789abcdef", "--print-join-command", "--dry-run")
    assert tokens.done(*arguments, "--join-program", "kubeadm") == common + "\n"
    key = "ab" * 32
    assert tokens.done(*arguments, "--certificate-key", key) == f"{common}--control-plane --certificate-key {key}\n"


def test_a_configuration_file_may_ask_for_several_tokens(tokens: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "init.yaml"
    file.write_text(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nbootstrapTokens:\n"
        "- token: config.0123456789abcdef\n  description: first\n  ttl: 1h\n  usages: [signing, authentication]\n"
        '- token: confi2.0123456789abcdef\n  expires: "2099-01-02T03:04:05Z"\n'
        "- token: confi5.0123456789abcdef\n  usages: [signing]\n"
        "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"
    )
    output = tokens.done("token", "create", "--config", str(file))
    assert output == "config.0123456789abcdef\nconfi2.0123456789abcdef\nconfi5.0123456789abcdef\n"
    shown = listed(tokens)
    assert shown["config"]["description"] == "first"
    assert shown["confi2"]["expires"] == "2099-01-02T03:04:05Z"
    assert (shown["config"]["groups"], shown["confi5"]["groups"]) == (
        ["system:bootstrappers:kubeadm:default-node-token"],
        [],
    )


def test_what_a_configuration_file_made_before_a_failure_is_told(tokens: CommandLine, tmp_path: Path) -> None:
    tokens.done("token", "create", "confi4.0123456789abcdef")
    file = tmp_path / "init.yaml"
    file.write_text(
        "apiVersion: kubeadm.k8s.io/v1beta3\nkind: InitConfiguration\nbootstrapTokens:\n"
        "- token: confi3.0123456789abcdef\n  expires: 2099-01-02T03:04:05Z\n- token: confi4.0123456789abcdef\n"
    )
    outcome = tokens("token", "create", "--config", str(file))
    assert (outcome.code, outcome.out) == (1, "confi3.0123456789abcdef\n")
    assert (
        outcome.err.splitlines()[-1] == 'Error: a token with id "confi4" already exists; delete it, or choose another'
    )


def test_list_has_one_form_for_everybody(tokens: CommandLine) -> None:
    tokens.done("token", "create", "listed.0123456789abcdef", "--description", "shown")
    tokens.done("token", "create", "lists2.0123456789abcdef", "--usages", "signing", "--ttl", "0")
    ids = tokens.done("token", "list", "-o", "name").split()
    assert "listed" in ids
    document = json.loads(tokens.done("token", "list", "-o", "json"))
    assert (document["kind"], document["apiVersion"]) == ("List", "v1")
    assert [item["id"] for item in document["items"]] == ids
    assert yaml.safe_load(tokens.done("token", "list", "-o", "yaml"))["items"][0]["kind"] == "BootstrapToken"
    table = tokens.done("token", "list").splitlines()
    assert table[0].split() == ["TOKEN", "EXPIRES", "JOINS", "LAST", "USE", "DESCRIPTION"]
    rows = {line.split(".")[0]: line.split()[1:] for line in table[1:]}
    expires = next(item["expires"] for item in document["items"] if item["id"] == "listed")
    assert rows["listed"] == [f"{expires[:16]}Z", "<unlimited>", "<never>", "shown"]
    assert rows["lists2"] == ["<never>", "<none>", "<never>", "<none>"], "it lets no machine join"
    text = tokens.done("token", "list", "-o", "text").splitlines()
    assert text[0].split() == ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA", "GROUPS", "JOINS", "LAST", "USE",
                               "LIMITS"]  # fmt: skip
    assert len(text) == len(table) == len(ids) + 1
    wide = tokens.done("token", "list", "-o", "wide").splitlines()
    assert wide[0].endswith("SECRET")
    assert any(line.endswith("bootstrap-token-listed") for line in wide)


def test_a_deletion_prints_what_it_has_deleted_also_when_it_ends_early(tokens: CommandLine) -> None:
    for token in ("delet1", "delet2"):
        tokens.done("token", "create", f"{token}.0123456789abcdef")
    dry = json.loads(tokens.done("token", "delete", "delet1", "--dry-run", "-o", "json"))
    assert dry == {"kind": "DeleteResult", "dryRun": True, "deleted": ["delet1"]}
    outcome = tokens("token", "delete", "delet1", "gone00", "-o", "json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["deleted"] == ["delet1"]
    assert tokens.done("token", "delete", "delet2", "-o", "name") == "delet2\n"


def test_secrets_are_shown_on_demand_alone(tokens: CommandLine) -> None:
    tokens.done("token", "create", "hidden.k3m8x1c5v0b6n4z2")
    for form in ("table", "text", "wide", "json", "yaml", "name"):
        output = tokens.done("token", "list", "-o", form)
        assert "hidden" in output
        assert "k3m8x1c5v0b6n4z2" not in output
        shown = tokens.done("token", "list", "-o", form, "--show-secrets")
        assert ("hidden.k3m8x1c5v0b6n4z2" in shown) is (form != "name")


READING = [
    [*path.split(), *form]
    for path in (
        "token list",
        "csr list",
        "node list",
        "certs list",
        "restore-check list",
        "issuance list",
        "machine list",
        "status",
    )
    for form in ([], ["-o", "json"], ["-o", "yaml"])
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_what_never_happened_has_no_year_and_no_list_shows_a_token(
    command: list[str], live_server: LiveServer, tokens: CommandLine
) -> None:
    """A token without an end that no machine used, a request without a decision, and a Node without a status."""
    live_server.once(_create_unset)
    output = tokens(*command)
    assert output.code == 0, output.err
    for year in ("0001-01-01", "1970-01-01", "292277", "2262-04"):
        assert year not in output.out + output.err
    assert "k7m8x1c5v0b6n4z9" not in output.out


def _create_unset(server: LiveServer) -> None:
    async def create(client: ClusterClient) -> None:
        token = parse_token("neverx.k7m8x1c5v0b6n4z9")
        record = tokensecret.new_record(token, SystemClock().now(), ttl=timedelta(0))
        await client.create("secrets", tokensecret.to_secret(record))
        await client.create("nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "never-heard"}})

    server.run(create)


def test_a_secret_that_is_no_token_is_told_and_skipped(live_server: LiveServer, tokens: CommandLine) -> None:
    broken: Obj = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "bootstrap-token-broken", "namespace": "kube-system"},
        "type": tokensecret.SECRET_TYPE,
        "stringData": {"token-id": "broken", "token-secret": "short", "description": "sec"},
    }
    live_server.run(lambda client: client.create("secrets", broken))
    try:
        outcome = tokens("token", "list", "-o", "name")
    finally:
        live_server.run(lambda client: client.delete("secrets", "bootstrap-token-broken", "kube-system"))
    assert outcome.code == 0
    assert "broken" not in outcome.out.split()
    assert outcome.err.startswith('Warning: bootstrap token secret "bootstrap-token-broken": ')
    assert "short" not in outcome.err


def test_a_token_whose_groups_the_server_refuses_is_listed_with_a_warning(
    live_server: LiveServer, tokens: CommandLine
) -> None:
    tokens.done("token", "create", "odd001.0123456789abcdef")
    data = {"stringData": {"auth-extra-groups": "system:bootstrappers:a, admins"}}
    try:
        live_server.run(lambda client: client.patch("secrets", "bootstrap-token-odd001", data, "kube-system"))
        outcome = tokens("token", "list", "-o", "name")
    finally:
        tokens.done("token", "delete", "odd001")
    assert "odd001" in outcome.out.split()
    assert (
        'Warning: token odd001 cannot be used to join: bootstrap group " admins" is invalid: it must match'
        in outcome.err
    )


def test_delete_takes_ids_and_whole_tokens(tokens: CommandLine) -> None:
    for name in ("delet1", "delet2"):
        tokens.done("token", "create", f"{name}.0123456789abcdef")
    assert tokens.done("token", "delete", "delet1", "--dry-run") == 'bootstrap token "delet1" deleted (dry run)\n'
    output = tokens.done("token", "delete", "delet1", "delet2.0123456789abcdef")
    assert output == 'bootstrap token "delet1" deleted\nbootstrap token "delet2" deleted\n'
    assert not {"delet1", "delet2"} & set(listed(tokens))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("delete", "nearb2"), "see mooring token list"),
        (("delete", "nearb2", "--dry-run"), "see mooring token list"),
        (("delete", "nearb2", "--dry-run", "-o", "json"), "see mooring token list"),
        (("impact", "nearb2", "--revoke"), "near are nearb1"),
        (("impact", "nearb2", "--revoke", "--dry-run"), "near are nearb1"),
        (("impact", "nearb2", "--revoke", "-o", "json"), "add --force"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_ending_a_token_that_left_no_trace_is_an_error(
    tokens: CommandLine, arguments: tuple[str, ...], text: str
) -> None:
    tokens.done("token", "create", "nearb1.0123456789abcdef")
    try:
        done = tokens("token", *arguments)
    finally:
        tokens.done("token", "delete", "nearb1")
    assert done.code == 1
    assert 'Error: there is no bootstrap token "nearb2"' in done.err
    assert text in done.err


def test_with_force_a_token_without_a_trace_is_withdrawn(tokens: CommandLine) -> None:
    assert tokens("token", "impact", "nearb3", "--revoke", "--force").code == 0
    assert tokens("token", "impact", "nearb3", "--force").code == 2


def test_the_first_deletion_that_fails_stops(tokens: CommandLine) -> None:
    for name in ("delet3", "delet4"):
        tokens.done("token", "create", f"{name}.0123456789abcdef")
    outcome = tokens("token", "delete", "delet3", "gone00", "delet4")
    assert (outcome.code, outcome.out) == (1, 'bootstrap token "delet3" deleted\n')
    assert outcome.err == 'Error: there is no bootstrap token "gone00"; see mooring token list\n'
    assert "delet4" in listed(tokens)


def test_a_wrong_id_deletes_nothing_at_all(tokens: CommandLine) -> None:
    tokens.done("token", "create", "delet5.0123456789abcdef")
    assert tokens("token", "delete", "delet5", "BAD").code == 2
    assert "delet5" in listed(tokens)


def test_a_server_that_is_down_is_asked_again_and_then_told(
    live_server: LiveServer, tokens: CommandLine, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "down.conf"
    port = free_port()
    elsewhere.write_text(live_server.kubeconfig.read_text().replace(live_server.endpoint, f"127.0.0.1:{port}"))
    outcome = tokens("token", "list", "--kubeconfig", str(elsewhere), "--timeout", "3s")
    assert outcome.code == 1
    first, last = outcome.err.splitlines()
    assert first.startswith(f"Trying again for 3s: asking https://127.0.0.1:{port}: nothing answers there")
    assert last.startswith(f"Error: asking https://127.0.0.1:{port}: nothing answers there")


@pytest.mark.parametrize(
    "words", [("token", "list"), ("token", "delete", "delet6"), ("certs", "revoke", "--node", "n1"), ("csr", "list")]
)
def test_a_refused_connection_ends_a_command_at_once(
    live_server: LiveServer, tokens: CommandLine, tmp_path: Path, words: tuple[str, ...]
) -> None:
    elsewhere = tmp_path / "down.conf"
    port = free_port()
    elsewhere.write_text(live_server.kubeconfig.read_text().replace(live_server.endpoint, f"127.0.0.1:{port}"))
    outcome = tokens(*words, "--kubeconfig", str(elsewhere))
    assert outcome.code == 1
    assert "Trying again" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith(f"Error: asking https://127.0.0.1:{port}: nothing answers there")


def test_a_token_of_a_stranger_is_refused_by_the_server(
    live_server: LiveServer, tokens: CommandLine, tmp_path: Path
) -> None:
    config = yaml.safe_load(live_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "stranger"}
    file = tmp_path / "stranger.conf"
    file.write_text(yaml.safe_dump(config))
    outcome = tokens("token", "list", "--kubeconfig", str(file))
    told, _, audit_id = outcome.err.rstrip("\n").rpartition(" ")
    assert (outcome.code, told) == (
        1,
        f'Error: {live_server.url} does not accept the credentials of user "{config["users"][0]["name"]}" in the kubeconfig: '
        "they may have expired, or be of another cluster; name another kubeconfig with --kubeconfig, or renew this one; "
        "an administrator of a Mooring server learns the reason with: mooring auth explain",
    )
    assert "Because:  unknown-token" in tokens.done("auth", "explain", audit_id)
