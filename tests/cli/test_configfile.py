"""Configuration file of a server: its keys and types, precedence over it, and the report of every mistake."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooring.authn.anonymous import AnonymousSettings
from mooring.authn.custom import CustomSettings
from mooring.authn.login import LoginSettings
from mooring.authn.oidc.settings import OidcSettings
from mooring.cli.options import configfile
from mooring.cli.options.configfile import read
from mooring.cli.server import serve
from mooring.cli.server.serve import server
from mooring.client import files
from mooring.controlplane.configuration import ServerConfig, declared_settings
from mooring.errors import ConfigError
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AuditSettings, FlowControlSettings, ServingSettings
from mooring.settings.storage import StorageSettings
from tests.support.commandline import CommandLine, mooring
from tests.support.testca import ThrowawayCA

__all__ = ["mooring"]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the configuration file."""

    def write(text: str) -> Path:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def started(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ServerConfig]:
    """Return the configuration of `mooring server` with some flags."""
    found: list[ServerConfig] = []
    monkeypatch.setattr(serve, "serve", lambda config, *rest, **more: found.append(config))
    monkeypatch.setattr(configfile, "DEFAULT_PATH", str(tmp_path / "default.yaml"))

    def started(*arguments: str) -> ServerConfig:
        mooring.done("server", "--data-dir", str(tmp_path / "data"), *arguments)
        return found[-1]

    return started


def test_a_file_sets_flags_of_every_type(started: Callable[..., ServerConfig], write: Write) -> None:
    file = write(
        """
# as k3s has it: flags without their dashes in front
secure-port: 7443
bind-address: 127.0.0.1
control-plane-endpoint: [a.example, "b.example:6444"]
apiserver-cert-extra-sans: c.example,d.example
anonymous-auth: false
anonymous-requests-per-second: 2.5
shutdown-delay-duration: 1m30s
login-ttl: 0
oidc-issuer-url: https://idp.example
oidc-client-id: us
oidc-required-claim: ["team=blue"]
authenticators:
- name: ldap
  class: company.ldap:Ldap
  deadline: 3s
  options: {url: "ldaps://ldap.example"}
"""
    )
    config = started("--config", str(file))
    network, serving = config[NetworkSettings], config[ServingSettings]
    assert (network.secure_port, network.bind_address, config[AnonymousSettings].enabled) == (7443, "127.0.0.1", False)
    assert [str(one) for one in config.endpoints] == ["a.example:7443", "b.example:6444"]
    assert serving.apiserver_cert_extra_sans == ("c.example", "d.example")
    assert config[FlowControlSettings].anonymous_requests_per_second == 2.5
    assert serving.shutdown_delay_duration == timedelta(seconds=90)
    assert config[LoginSettings].login_ttl == timedelta(0)
    assert config[AnonymousSettings].anonymous_auth is False
    assert config[OidcSettings].required_claims == {"team": "blue"}
    (own,) = config[CustomSettings].authenticators
    assert (own.name, own.location, own.deadline, own.cache_ttl) == (
        "ldap", "company.ldap:Ldap", timedelta(seconds=3), timedelta(seconds=10),
    )  # fmt: skip
    assert own.options["url"] == "ldaps://ldap.example"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    started: Callable[..., ServerConfig], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("secure-port: 1001\naudit-log-maxsize: 11\naudit-log-maxage: 12\nstorage: 'memory:'\n")
    monkeypatch.setenv("MOORING_SECURE_PORT", "1002")
    monkeypatch.setenv("MOORING_AUDIT_LOG_MAXSIZE", "22")
    config = started("--config", str(file), "--secure-port", "1003")
    assert (
        config[NetworkSettings].secure_port,
        config[AuditSettings].audit_log_maxsize,
        config[AuditSettings].audit_log_maxage,
    ) == (1003, 22, 12)
    assert (config[StorageSettings].storage, config[AuditSettings].audit_log_maxbackup) == ("memory:", 5)


def test_the_file_can_be_named_in_the_environment(
    started: Callable[..., ServerConfig], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORING_CONFIG", str(write("secure-port: 1001")))
    assert started()[NetworkSettings].secure_port == 1001


def test_the_file_in_the_default_place_is_read_unless_config_is_empty(
    started: Callable[..., ServerConfig], tmp_path: Path
) -> None:
    assert started()[NetworkSettings].secure_port == 6443
    (tmp_path / "default.yaml").write_text("secure-port: 1001")
    assert started()[NetworkSettings].secure_port == 1001
    assert started("--config", "")[NetworkSettings].secure_port == 6443


def test_init_and_up_read_the_same_file(mooring: CommandLine, write: Write) -> None:
    file = write("secure-port: yes")
    for command in ("init", "up", "server"):
        outcome = mooring(command, "--config", str(file))
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == f'Error: {file}: line 1: "secure-port": give a whole number\n'


def test_init_prints_the_command_that_serves_with_the_same_file(
    mooring: CommandLine, write: Write, tmp_path: Path
) -> None:
    file = write(f"data-dir: {tmp_path}/data")
    assert f"  mooring server --config {file}\n" in mooring.done("init", "--config", str(file), "--token", "")
    assert (tmp_path / "data/admin.conf").exists()
    outcome = mooring.done("init", "--config", "", "--data-dir", str(tmp_path / "data"), "--token", "")
    assert f"  mooring server --data-dir {tmp_path}/data\n" in outcome


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "secure-prt: 1", 'line 1: "secure-prt": unknown key, did you mean "secure-port"?', id="a key that is none"
        ),
        pytest.param(
            "client_ca_file: x", '"client_ca_file": unknown key, did you mean "client-ca-file"?', id="underscores"
        ),
        pytest.param("--data-dir: x", '"--data-dir": unknown key, did you mean "data-dir"?', id="dashes in front"),
        pytest.param("zzz: 1", '"zzz": unknown key', id="a key like no other"),
        pytest.param("token: abc", '"token": it cannot be set in this file; give it as a flag', id="a token"),
        pytest.param("config: x", '"config": it cannot be set in this file', id="another file"),
        pytest.param("storage: a\n\nstorage: b", 'line 3: "storage": it is there twice, first in line 1', id="twice"),
        pytest.param("secure-port: '1'", '"secure-port": give a whole number', id="a number in quotes"),
        pytest.param("secure-port: true", '"secure-port": give a whole number', id="truth for a number"),
        pytest.param("secure-port: 1.5", '"secure-port": give a whole number', id="a fraction"),
        pytest.param("secure-port: 70000", '"secure-port": 70000 is not in the range 0<=x<=65535', id="out of range"),
        pytest.param("storage: 5", '"storage": give a text; put quotes around', id="a number for a text"),
        pytest.param("storage:", '"storage": give a text', id="nothing for a text"),
        pytest.param("storage: {a: b}", '"storage": give a text', id="a mapping for a text"),
        pytest.param("anonymous-auth: 'true'", '"anonymous-auth": give true or false', id="truth in quotes"),
        pytest.param("anonymous-requests-per-second: x", "give a number", id="a text for a number"),
        pytest.param("login-ttl: 5", '"login-ttl": a duration needs a unit: give 5s', id="a duration without a unit"),
        pytest.param("login-ttl: soon", '"login-ttl": give a duration, such as 5s', id="a duration in words"),
        pytest.param("control-plane-endpoint: 5", "give a text or a list of texts", id="a number for a list"),
        pytest.param("control-plane-endpoint: [5]", "give a text or a list of texts", id="a list of numbers"),
        pytest.param("authenticators: x", '"authenticators": give a list of mappings', id="authenticators as a text"),
        pytest.param(
            "authenticators: [{name: a, class: 'b:C', deadline: 5}]",
            '"authenticators": [0].deadline: a duration needs a unit: give 5s',
            id="an authenticator's duration without a unit",
        ),
        pytest.param(
            "authenticators: [{name: a, class: 'b:C', cache-ttl: x}]",
            '"authenticators": [0].cache-ttl: give a duration, such as 5s',
            id="an authenticator's duration in words",
        ),
        pytest.param("- a", "a configuration is keys with values", id="a list"),
        pytest.param("a: [", "yaml: line 1: ", id="no YAML"),
        pytest.param("a: !!python/object:os.system x", "tags are not supported", id="a tag"),
        pytest.param("a: &x [1]\nb: *x", '"b": unknown key', id="an alias"),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_line(
    write: Write, mooring: CommandLine, text: str, message: str
) -> None:
    outcome = mooring("server", "--config", str(write(text)))
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("Error: ")
    assert message in line


def test_all_mistakes_of_a_file_are_reported_at_once_in_order(write: Write, mooring: CommandLine) -> None:
    outcome = mooring("server", "--config", str(write("b-key: 1\nsecure-port: x\nlogin-ttl: 7\na-key: 2\n")))
    assert [part.partition('"')[0] for part in outcome.err.split("; ")][1:] == ["line 2: ", "line 3: ", "line 4: "]


def test_no_value_is_repeated(write: Write, mooring: CommandLine) -> None:
    text = "storage: [hunter2]\nlogin-ttl: hunter2\nkeystone-url: 5\nauthenticators: [{deadline: hunter2}]\nx: hunter2"
    assert "hunter2" not in mooring("server", "--config", str(write(text))).all


@pytest.mark.parametrize(
    ("mode", "code"), [pytest.param(0o666, 1, id="everybody may write"), pytest.param(0o644, 0, id="others may read")]
)
def test_a_file_that_everybody_may_write_is_refused(write: Write, mode: int, code: int, mooring: CommandLine) -> None:
    file = write("secure-port: 1001")
    file.chmod(mode)
    outcome = mooring("config", "check", str(file))
    assert outcome.code == code
    if code:
        assert (
            f"{file} can be written by every user, who could then log in as any user; run chmod go-w on it"
            in outcome.err
        )


def test_the_default_file_of_another_user_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("secure-port: 1001")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(files, "ROOT", -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read(str(file), declared_settings(), named=False)
    assert read(str(file), declared_settings()).values == {"secure_port": 1001}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param(b"\xff", "not UTF-8", id="not text"),
        pytest.param(b"#" * (1 << 21), "is larger than 1048576 bytes", id="too large"),
    ],
)
def test_a_file_that_cannot_be_read_at_all(
    tmp_path: Path, mooring: CommandLine, content: bytes | None, message: str
) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    outcome = mooring("server", "--config", str(file))
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err


def test_an_empty_file_sets_nothing(started: Callable[..., ServerConfig], write: Write) -> None:
    assert started("--config", str(write("# nothing yet\n")))[NetworkSettings].secure_port == 6443


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from([*(one.name for one in declared_settings()), "authenticators", "other"]), JSON, max_size=4
    )
)
def test_any_document_is_read_or_refused_with_its_keys(tmp_path: Path, document: dict[str, Any]) -> None:
    import json

    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(document, ensure_ascii=False), errors="replace")
    try:
        found = read(str(file), declared_settings())
    except ConfigError:
        return  # a character that YAML does not have
    assert {problem.key for problem in found.problems} <= set(document)


def test_every_flag_of_a_server_is_a_key_with_a_type() -> None:
    keys = {one.name: one.value_type.name for one in declared_settings()}
    assert {f"--{name}" for name in keys} - {"--authenticators"} | {"--config"} == {
        option
        for parameter in server.params
        for option in parameter.opts
        if option not in ("-v", "--verbose", "--log-format", "-t", "--token")  # k3s's name of --server-token
    }
    assert not configfile.NOT_KEYS & set(keys)
    assert {key: keys[key] for key in ("data-dir", "secure-port", "login-ttl", "anonymous-auth")} == {
        "data-dir": "text",
        "secure-port": "integer",
        "login-ttl": "duration",
        "anonymous-auth": "boolean",
    }
    assert keys["oidc-required-claim"] == "list of texts"
    assert keys["anonymous-requests-per-second"] == "number"


# ── mooring config check ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_good_file_is_reported_with_the_authenticators(mooring: CommandLine, write: Write, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(ThrowawayCA().certificate_pem)
    data = tmp_path / "data"
    file = write(f"data-dir: {data}\nclient-ca-file: {tmp_path}/ca.crt\nauthorization-mode: RBAC\n")
    outcome = mooring("config", "check", str(file))
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"{file} is good: 3 keys. Who calls would be judged by:\nAUTHENTICATOR ")
    assert ["client-certificate", "client-ca-file"] in [line.split() for line in outcome.out.splitlines()]
    assert f"Authorization: RBAC. State: sqlite:{data}/mooring.db." in outcome.out
    assert outcome.err.startswith("Warning: client-ca-file does not hold this cluster's own CA")
    assert not data.exists()


def test_mistakes_in_named_files_are_reported_too(mooring: CommandLine, write: Write, tmp_path: Path) -> None:
    (tmp_path / "empty.crt").write_text("nothing")
    file = write(
        f"""
data-dir: {tmp_path}/data
client-ca-file: {tmp_path}/empty.crt
oidc-client-id: us
keystone-ca-file: /nowhere
authorization-mode: Nobody
audit-policy-file: /nowhere/policy.yaml
secure-prt: 1
login-ttl: 1s
authenticators: [{{name: Bad}}]
"""
    )
    outcome = mooring("config", "check", str(file))
    assert (outcome.code, outcome.out) == (1, "")
    lines = outcome.err.splitlines()
    for sentence in (
        'line 8: "secure-prt": unknown key, did you mean "secure-port"?',
        "line 4: oidc-issuer-url: it is needed with oidc-client-id",
        "line 5: keystone-url: it is needed with keystone-ca-file",
        'line 9: "login-ttl": give a duration from 60s to 24h',
        "line 10: authenticators[0].name: give a name of lower case letters",
        'line 6: "authorization-mode": "Nobody" is not one of',
        'line 7: "audit-policy-file": /nowhere/policy.yaml cannot be read',
        f'line 3: "client-ca-file": {tmp_path}/empty.crt: the text holds no CERTIFICATE PEM block',
    ):
        assert any(sentence in line for line in lines), (sentence, lines)
    assert lines[-1] == f"Error: {file} has 8 mistakes; no server would start with it"
    assert len(lines) == 9


def test_a_key_that_was_left_out_for_a_mistake_is_not_reported_missing(
    mooring: CommandLine, write: Write, tmp_path: Path
) -> None:
    ca = ThrowawayCA()
    certificate, _ = ca.server("localhost").write(tmp_path, "tls")
    _, key = ca.server("localhost").write(tmp_path, "other")
    file = write(
        f"oidc-issuer-url: 5\noidc-client-id: us\ntls-cert-file: {certificate}\ntls-private-key-file: {key}\n"
        f"data-dir: {tmp_path}/data\n"
    )
    outcome = mooring("config", "check", str(file))
    assert [line.partition("config.yaml: ")[2] for line in outcome.err.splitlines()[:-1]] == [
        'line 1: "oidc-issuer-url": give a text; put quotes around one that looks like a number',
        'line 4: "tls-private-key-file": it is not the key of the first certificate in tls-cert-file; the files are '
        f"{certificate} and {key}",
    ]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        pytest.param(True, "", id="the CAs are named"),
        pytest.param(
            False,
            "Warning: tls-cert-file: no CA that is known here verifies the certificate of CN=company",
            id="not named",
        ),
        pytest.param(
            None, 'line 5: "root-ca-file": no certificate in it verifies the serving certificate', id="others are named"
        ),
    ],
)
def test_a_check_verifies_the_serving_certificate(
    mooring: CommandLine, write: Write, tmp_path: Path, root: bool | None, message: str
) -> None:
    company = ThrowawayCA("company")
    certificate, key = company.server("localhost").write(tmp_path, "tls")
    named = tmp_path / "root.crt"
    named.write_bytes((company if root else ThrowawayCA("another")).certificate_pem)
    lines = [f"data-dir: {tmp_path}/data", f"tls-cert-file: {certificate}", f"tls-private-key-file: {key}"]
    lines.append("control-plane-endpoint: [localhost]")
    lines += [] if root is False else [f"root-ca-file: {named}"]
    key.chmod(0o600)
    outcome = mooring("config", "check", str(write("\n".join(lines))))
    assert outcome.code == (1 if root is None else 0)
    assert message in outcome.err
    assert bool(outcome.err) is bool(message)


def test_a_check_reads_the_environment(mooring: CommandLine, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("storage: 'memory:'")
    monkeypatch.setenv("MOORING_SECURE_PORT", "many")
    outcome = mooring("config", "check", str(file))
    assert outcome.code == 1
    assert '"many" is not a number from' in outcome.err
    assert outcome.err.splitlines()[-1] == f"Error: {file} has one mistake; no server would start with it"


def test_a_check_without_a_file_takes_the_default_one(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    monkeypatch.setattr(configfile, "DEFAULT_PATH", "/nowhere/config.yaml")
    outcome = mooring("config", "check")
    assert (outcome.code, outcome.out) == (2, "")
    assert "give the file to check" in outcome.err
    monkeypatch.setattr(configfile, "DEFAULT_PATH", str(write("storage: 'memory:'")))
    assert mooring("config", "check").code == 0


def test_a_check_reads_the_ca_of_the_data_directory(mooring: CommandLine, write: Write, tmp_path: Path) -> None:
    data = tmp_path / "data"
    mooring.done("init", "--data-dir", str(data), "--token", "")
    file = write(
        f"""
data-dir: {data}
requestheader-client-ca-file: {data}/pki/ca.crt
requestheader-username-headers: X-Remote-User
"""
    )
    outcome = mooring("config", "check", str(file))
    assert outcome.code == 1
    assert "requestheader-allowed-names: it is needed" in outcome.err
    (data / "pki/ca.crt").write_text("nothing")
    assert f"the CA in {data}/pki cannot be used" in mooring("config", "check", str(file)).err


def test_completion_reads_no_file(write: Write) -> None:
    with server.make_context("server", ["--config", str(write("x: 1"))], resilient_parsing=True) as ctx:
        assert ctx.default_map is None


def test_the_file_of_the_documentation_is_valid(write: Write) -> None:
    page = Path(__file__).parents[2] / "docs/operate.md"
    _, _, section = page.read_text().partition("## The configuration file")
    file = write(section.partition("```yaml\n")[2].partition("```")[0])
    found = read(str(file), declared_settings())
    assert found.problems == ()
    assert len(found.values) == 8
    assert [one["name"] for one in found.values["authenticators"]] == ["ldap"]
