"""`mooring kubeconfig refresh`: files of people follow addresses and CAs of their cluster."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.cli import kubeconfigrefresh
from mooring.pki.x509.bundles import certificates
from mooring.trust.discovery.pins import pin_of
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support.commandline import CommandLine, mooring, process
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

__all__ = ["mooring"]
PLURAL = "certificateauthorityrollovers"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    server = start_server(tmp_path / "data")
    try:
        yield server
    finally:
        server.stop()


def issued(mooring: CommandLine, server: LiveServer, path: Path, name: str = "bob") -> Path:
    mooring.done("kubeconfig", "user", name, "--out", str(path), "--kubeconfig", str(server.kubeconfig))
    return path


def pins(path: Path) -> list[str]:
    return [str(pin_of(one)) for one in certificates(parse_kubeconfig(path.read_text()).clusters[0].ca_pem)]


def published_pins(server: LiveServer) -> list[str]:
    return [str(pin_of(one)) for one in certificates(server.ca_pem)]


def move(mooring: CommandLine, server: LiveServer, phase: str, *words: str) -> None:
    mooring("ca", "rollover", *words, "--kubeconfig", str(server.kubeconfig))

    def reached() -> bool:
        found: Any = server.run(lambda client: client.get(PLURAL, "cluster-ca"))
        return bool((found.get("status") or {}).get("phase") == phase)

    eventually(reached, server)


def refreshed(mooring: CommandLine, path: Path, *words: str) -> Any:
    outcome = mooring("kubeconfig", "refresh", "--kubeconfig", str(path), "-o", "json", *words)
    assert outcome.out, outcome.err
    (found,) = json.loads(outcome.out)["clusters"]
    return {**found, "code": outcome.code}


def test_a_file_follows_the_ca_through_a_rollover(mooring: CommandLine, server: LiveServer, tmp_path: Path) -> None:
    bob = issued(mooring, server, tmp_path / "bob.conf")
    absent = Path(shutil.copy(bob, tmp_path / "absent.conf"))
    before = refreshed(mooring, bob)
    assert (before["changes"], before["warnings"], before["problem"]) == ([], [], "")
    (old,) = pins(bob)

    move(mooring, server, "TrustBoth", "start")
    asked = refreshed(mooring, bob, "--dry-run")
    assert pins(bob) == [old]
    assert refreshed(mooring, bob)["changes"] == asked["changes"]
    assert pins(bob) == published_pins(server)
    assert mooring.done("auth", "whoami", "--kubeconfig", str(bob))

    move(mooring, server, "IssueNew", "advance")
    move(mooring, server, "Drain", "advance")
    (warning,) = refreshed(mooring, bob)["warnings"]
    assert warning == (
        "the client certificate of bob is of a CA that the cluster is about to retire: ask an administrator for another file "
        "(mooring kubeconfig user bob)"
    )
    move(mooring, server, "Done", "advance", "--force")
    for path in (bob, absent):
        found = refreshed(mooring, path)
        assert f"CA {old} is removed" in found["changes"]
        assert "of a CA that the cluster accepts no more" in found["warnings"][0]
        assert pins(path) == published_pins(server) != [old]
    # The file of a person who got another certificate works.
    again = issued(mooring, server, tmp_path / "again.conf")
    assert refreshed(mooring, again)["changes"] == []


def test_after_a_compromised_ca_a_person_compares(mooring: CommandLine, server: LiveServer, tmp_path: Path) -> None:
    bob = issued(mooring, server, tmp_path / "bob.conf")
    content = bob.read_text()
    move(mooring, server, "TrustBoth", "start", "--compromised")
    for phase in ("IssueNew", "Drain", "Done"):
        move(mooring, server, phase, "advance", "--force", "--compromised")
    (new,) = published_pins(server)
    failed = mooring("kubeconfig", "refresh", "--kubeconfig", str(bob))
    assert failed.code == 1
    assert f"The machine there names the CA {new}." in failed.err
    assert "mooring kubeconfig refresh --discovery-token-ca-cert-hash HASH" in failed.err
    assert bob.read_text() == content

    wrong = mooring(
        "kubeconfig", "refresh", "--kubeconfig", str(bob), "--discovery-token-ca-cert-hash", f"sha256:{'0' * 64}"
    )
    assert (wrong.code, bob.read_text()) == (1, content)
    assert "no CA of the cluster has a pinned public key" in wrong.err
    found = refreshed(mooring, bob, "--discovery-token-ca-cert-hash", new)
    assert (found["code"], found["problem"]) == (0, "")
    assert pins(bob) == [new]


def test_a_file_follows_the_addresses_and_keeps_what_is_not_the_clusters(
    mooring: CommandLine, server: LiveServer, tmp_path: Path
) -> None:
    bob, gone = issued(mooring, server, tmp_path / "bob.conf"), f"https://127.0.0.1:{free_port()}"
    assert refreshed(mooring, bob)["changes"] == []
    # From when the cluster had another server, which is gone.
    kept = yaml.safe_load(bob.read_text().replace(f"    server: {server.url}", f"    server: {gone}"))
    (extension,) = kept["clusters"][0]["cluster"]["extensions"]
    extension["extension"]["servers"].insert(0, gone)
    foreign = {"name": "example.com/x", "extension": {"a": 1}}
    kept["clusters"][0]["cluster"]["extensions"].append(foreign)
    kept["preferences"] = {"colors": True}
    kept["contexts"][0]["context"]["namespace"] = "team"
    kept["clusters"].append({"name": "other", "cluster": {"server": "https://192.0.2.1:6443"}})
    bob.write_text(yaml.safe_dump(kept))
    found = refreshed(mooring, bob)
    assert found["changes"] == [f"server {server.url} in place of {gone}"]
    now = yaml.safe_load(bob.read_text())
    assert now["clusters"][0]["cluster"]["server"] == server.url
    assert foreign in now["clusters"][0]["cluster"]["extensions"]
    for key in ("preferences", "contexts", "users"):
        assert now[key] == kept[key]
    assert now["clusters"][1] == kept["clusters"][1]
    assert bob.stat().st_mode & 0o777 == 0o600
    before = bob.stat()
    assert refreshed(mooring, bob)["changes"] == []
    assert bob.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_of_several_addresses_keeps_them_in_step(
    mooring: CommandLine, server: LiveServer, tmp_path: Path
) -> None:
    bob, gone = issued(mooring, server, tmp_path / "bob.conf"), f"127.0.0.1:{free_port()}"
    refreshed(mooring, bob)
    config = yaml.safe_load(bob.read_text())
    entry = config["clusters"][0]["cluster"]
    entry["extensions"][0]["extension"]["servers"].append(f"https://{gone}")
    further = {"server": f"https://{gone}", "certificate-authority-data": entry["certificate-authority-data"]}
    config["clusters"].append({"name": gone, "cluster": further})
    bob.write_text(yaml.safe_dump(config))
    # With --all, too, it is no cluster of its own.
    asked = refreshed(mooring, bob, "--all", "--dry-run")
    assert (asked["changes"], asked["problem"]) == (["further addresses none"], "")
    assert refreshed(mooring, bob, "--all")["changes"] == ["further addresses none"]
    assert [one["name"] for one in yaml.safe_load(bob.read_text())["clusters"]] == ["kubernetes"]


def test_an_entry_that_changed_meanwhile_is_left_alone(
    mooring: CommandLine, server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = issued(mooring, server, tmp_path / "bob.conf")
    other = bob.read_text().replace(server.url, "https://192.0.2.1:6443")
    written = kubeconfigrefresh.write

    def changed(*arguments: Any) -> bool:
        bob.write_text(other)
        return written(*arguments)

    monkeypatch.setattr(kubeconfigrefresh, "write", changed)
    assert "was changed by another program meanwhile" in refreshed(mooring, bob)["problem"]
    assert bob.read_text() == other


def test_an_address_without_tls_is_refused(mooring: CommandLine, server: LiveServer, tmp_path: Path) -> None:
    bob = issued(mooring, server, tmp_path / "bob.conf")
    content = bob.read_text().replace("https://", "http://")
    bob.write_text(content)
    assert "is not https: nothing proves what its cluster publishes" in refreshed(mooring, bob)["problem"]
    assert bob.read_text() == content
    bob.write_text(content.replace("http://", "https://joe:verysecretword@"))
    outcome = mooring("kubeconfig", "refresh", "--kubeconfig", str(bob), "-o", "json")
    assert "verysecretword" not in outcome.all


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--all"]], ids=str)
def test_a_kubeconfig_that_is_no_file_is_an_error(mooring: CommandLine, words: list[str]) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        pipe.write(CLUSTER)
        pipe.close()
        piped = f"/dev/fd/{reader}"
        outcomes = {
            piped: mooring("kubeconfig", "refresh", "--kubeconfig", piped, *words),
            # This standard input is a removed file.
            "/dev/stdin": process("kubeconfig", "refresh", "--kubeconfig", "/dev/stdin", *words, stdin=CLUSTER),
        }
    for path, outcome in outcomes.items():
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == (
            f"Error: {path} is a pipe or a removed file, which cannot be brought up to date; name the file\n"
        )


def test_the_cluster_of_another_context_is_no_further_address(
    mooring: CommandLine, server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with two clusters of one CA, each named by its address."""
    bob, gone = issued(mooring, server, tmp_path / "bob.conf"), f"127.0.0.1:{free_port()}"
    config = yaml.safe_load(bob.read_text())
    other = {
        "server": server.url,
        "certificate-authority-data": config["clusters"][0]["cluster"]["certificate-authority-data"],
    }
    config["clusters"].append({"name": server.endpoint, "cluster": other})
    config["contexts"].append({"name": "other", "context": {"cluster": server.endpoint, "user": "bob"}})
    config["clusters"][0]["cluster"]["server"] = f"https://{gone}"
    bob.write_text(yaml.safe_dump(config))
    content = bob.read_text()
    assert "nothing answers there" in refreshed(mooring, bob)["problem"]
    assert bob.read_text() == content
    # Also where the contexts are in another file.
    clusters = tmp_path / "clusters.conf"
    clusters.write_text(yaml.safe_dump({"clusters": config.pop("clusters")}))
    content = clusters.read_text()
    bob.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", f"{bob}:{clusters}")
    assert "nothing answers there" in mooring("kubeconfig", "refresh").err
    # And where that file cannot be read.
    bob.write_text("{{\n")
    outcome = mooring("kubeconfig", "refresh", "--all", "--dry-run")
    assert "cluster kubernetes: fetching cluster-info" in outcome.err
    assert f"cluster {server.endpoint}: server" not in outcome.out
    assert clusters.read_text() == content


def status_id(mooring: CommandLine, server: LiveServer) -> str:
    found = json.loads(mooring("status", "-o", "json", "--kubeconfig", str(server.kubeconfig)).out)
    cluster_id: str = found["clusterInfo"]["clusterID"]
    return cluster_id


def test_another_cluster_of_the_same_ca_is_not_followed(mooring: CommandLine, tmp_path: Path) -> None:
    first = start_server(tmp_path / "first")
    try:
        bob = issued(mooring, first, tmp_path / "bob.conf")
        known = status_id(mooring, first)
        refreshed(mooring, bob)
        assert f"cluster-id: {known}" in bob.read_text()
        line = mooring.done("token", "create", "--print-join-command", "--kubeconfig", str(first.kubeconfig))
        mooring.done(*shlex.split(line)[1:], "--node-name", "n1", "--root", str(tmp_path / "n1"))
        assert f"cluster-id: {known}" in (tmp_path / "n1/etc/kubernetes/kubelet.conf").read_text()
    finally:
        first.stop()
    content = bob.read_text()
    shutil.copytree(tmp_path / "first/pki", tmp_path / "second/pki")
    second = start_server(tmp_path / "second", port=first.port)
    try:
        other = status_id(mooring, second)
        assert known != other != ""
        for words in ((), ("--discovery-token-ca-cert-hash", published_pins(second)[0])):
            problem = refreshed(mooring, bob, *words)["problem"]
            assert f"another cluster answers there: its id is {other}, and the known one is {known}" in problem
        assert bob.read_text() == content
    finally:
        second.stop()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--context", "nowhere"], 1, 'the kubeconfig has no context "nowhere"'),
        (["--all", "--context", "x"], 2, "--all cannot be combined with --context"),
        (["--discovery-token-ca-cert-hash", "md5:0"], 2, "invalid CA hash"),
        ([], 1, "the kubeconfig has no current context: name one with --context, or give --all"),
        (["--kubeconfig", ""], 2, "--kubeconfig"),
        (["--kubeconfig", "/nowhere", "--all"], 1, "/nowhere cannot be read: no such file or directory"),
        (["--timeout", "0s"], 2, "--timeout must be longer than 0, and at most 5m"),
        (["--timeout", "5m1s"], 2, "--timeout must be longer than 0, and at most 5m"),
    ],
    ids=str,
)
def test_wrong_words(mooring: CommandLine, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    path = tmp_path / "x.conf"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://192.0.2.1'}}]\n")
    outcome = mooring("kubeconfig", "refresh", "--kubeconfig", str(path), *words)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err


CLUSTER = "clusters: [{name: a, cluster: {server: 'https://192.0.2.1'}}]\n"
FAULTY_FILES = {
    "no current context": (CLUSTER, "the kubeconfig has no current context: name one with --context, or give --all"),
    "a current context that is not there": (
        CLUSTER + "current-context: x\n",
        'the kubeconfig has no context "x" with a cluster',
    ),
    "a context whose cluster is not there": (
        CLUSTER + "contexts: [{name: x, context: {cluster: b}}]\ncurrent-context: x\n",
        'the kubeconfig has no context "x" with a cluster',
    ),
    "a name twice": (
        "clusters: [{name: a, cluster: {}}, {name: a, cluster: {}}]\n",
        "{}: clusters has two entries of the same name",
    ),
    "not base64": (
        "clusters: [{name: a, cluster: {certificate-authority-data: '%'}}]\n",
        "{}: clusters[0].cluster.certificate-authority-data is not base64",
    ),
    "a key twice": (
        CLUSTER + "kind: Config\nkind: Config\n",
        '{}: the kubeconfig has a key twice in one object: line 3: key "kind" already set in map; '
        "`kubectl config view --raw --flatten` writes it plainly",
    ),
    "empty": ("", "no cluster found in {}: the file does not exist, or has none"),
}


@pytest.mark.parametrize(("content", "problem"), FAULTY_FILES.values(), ids=FAULTY_FILES)
def test_a_file_that_cannot_be_used_gives_a_document_too(
    mooring: CommandLine, tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "x.conf"
    path.write_text(content)
    outcome = mooring("kubeconfig", "refresh", "--kubeconfig", str(path), "-o", "json")
    problem = problem.format(path)
    assert (outcome.code, outcome.err) == (1, f"Error: {problem}\n")
    (found,) = json.loads(outcome.out)["clusters"]
    assert found == {
        "file": str(path),
        "cluster": "",
        "server": "",
        "changes": [],
        "warnings": [],
        "problem": problem,
    }


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_cannot_be_read_stops_no_cluster_of_another(
    mooring: CommandLine, server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    bob, broken = issued(mooring, server, tmp_path / "bob.conf"), tmp_path / "broken.conf"
    broken.write_text("{{\n")
    problem = f"{broken}: the kubeconfig is neither YAML nor JSON: it cannot be read at line 2, column 1"
    files = (broken, bob) if is_first else (bob, broken)
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, (*files, broken))))
    outcome = mooring("kubeconfig", "refresh", "--all")
    assert (outcome.code, outcome.err) == (1, f"Error: {problem}\n")
    assert outcome.out == f"{bob}: cluster kubernetes is as the cluster publishes it\n"
    documents = json.loads(mooring("kubeconfig", "refresh", "--all", "-o", "json").out)["clusters"]
    assert [(one["file"], one["cluster"], one["problem"]) for one in documents] == [
        (str(bob), "kubernetes", ""),
        (str(broken), "", problem),
    ]
    # The unreadable file may be the one that chooses the context.
    outcome = mooring("kubeconfig", "refresh", "-o", "json")
    (document,) = json.loads(outcome.out)["clusters"]
    assert (outcome.code, document["file"], document["problem"]) == (1, str(broken), problem)
    # There is nothing to ask.
    monkeypatch.setenv("KUBECONFIG", str(broken))
    assert mooring("kubeconfig", "refresh", "--all").err == f"Error: {problem}\n"


def test_clusters_that_cannot_be_asked_do_not_stop_the_others(
    mooring: CommandLine, server: LiveServer, tmp_path: Path
) -> None:
    bob = issued(mooring, server, tmp_path / "bob.conf")
    config = yaml.safe_load(bob.read_text())
    gone, unsafe = f"https://127.0.0.1:{free_port()}", server.url
    config["clusters"].insert(0, {"name": "gone", "cluster": {"server": gone}})
    config["clusters"].append({"name": "unsafe", "cluster": {"server": unsafe, "insecure-skip-tls-verify": True}})
    bob.write_text(yaml.safe_dump(config))
    outcome = mooring("kubeconfig", "refresh", "--all", "--kubeconfig", str(bob))
    assert outcome.code == 1
    assert "cluster kubernetes is as the cluster publishes it" in outcome.out
    assert "cluster gone: " in outcome.err
    assert "cluster unsafe: the entry of" in outcome.err
    assert "skips verification" in outcome.err
