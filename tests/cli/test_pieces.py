"""The parts of commands that need no server: tables, times, configuration files, decisions, patience, options, logs, progress."""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import logging
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mooring.agent.steps import Progress
from mooring.apimachinery.schema import Obj
from mooring.authn.anonymous import AnonymousSettings
from mooring.cli import cluster, printing, serverlogs
from mooring.cli.csr import decision, show
from mooring.cli.csr.decision import CsrDecision, decide, decided_request
from mooring.cli.csr.show import lines
from mooring.cli.join import flags
from mooring.cli.options import flags as machine
from mooring.cli.options import server as options
from mooring.cli.secretsencryption import EncryptionFile
from mooring.cli.token import list as tokenlist
from mooring.cli.token.create import token_records
from mooring.client.login import loginfiles
from mooring.client.serverversion import NotMooringError
from mooring.client.sourceaddress import detected_addresses
from mooring.clock import SystemClock
from mooring.errors import (
    ConfigError,
    ConflictError,
    ForbiddenError,
    InternalServerError,
    MooringError,
    PeerError,
    ServiceUnavailableError,
    StorageReadError,
    UnauthorizedError,
)
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.settings.declaration import split_commas
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings
from mooring.trust.discovery.errors import BalancerAnswerError, EndpointDownError, NotKubernetesError, NotTlsError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

# ── token list ───────────────────────────────────────────────────────────────────────────────────────────────────

GROUP = "system:bootstrappers:kubeadm:default-node-token"
KUBEADM_TABLE = (
    "TOKEN                     TTL         EXPIRES                USAGES                   "
    "DESCRIPTION                                                EXTRA GROUPS",
    "abcdef.0123456789abcdef   23h         2026-01-03T02:04:05Z   authentication,signing   "
    f"<none>                                                     {GROUP}",
    "ghijkl.0123456789abcdef   <forever>   <never>   <none>                   "
    "for the lab                                                <none>",
)
"""Output of Go's tabwriter with minwidth 10, padding 3, header and first row flushed together.

Source: docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands.
"""


OURS = ("-", "<never>", "<none>")
"""Cells of the columns that kubeadm does not have."""


def test_the_table_begins_with_kubeadms_columns_to_the_byte() -> None:
    rows = [
        ("abcdef.0123456789abcdef", "23h", "2026-01-03T02:04:05Z", "authentication,signing", "<none>", GROUP, *OURS),
        ("ghijkl.0123456789abcdef", "<forever>", "<never>", "<none>", "for the lab", "<none>", *OURS),
    ]
    found = zip(tokenlist.text_lines(rows), KUBEADM_TABLE, strict=True)
    assert all(line.startswith(theirs) for line, theirs in found)


def test_no_token_prints_no_header() -> None:
    assert tokenlist.text_lines([]) == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-2, "<invalid>"), (-1, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"),
        (86399, "23h"), (86400, "1d"), (364 * 86400, "364d"), (365 * 86400, "1y"), (800 * 86400, "2y"),
    ],
)  # fmt: skip
def test_a_ttl_has_one_unit(seconds: int, shown: str) -> None:
    assert tokenlist.short_duration(timedelta(seconds=seconds)) == shown


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_is_as_wide_as_its_content() -> None:
    assert printing.table(("A", "LONG"), [("xyz", "1"), ("", "")]) == "A     LONG\nxyz   1\n"


def test_documents_keep_letters_as_they_are() -> None:
    assert json.loads(printing.as_json({"é": [1]})) == {"é": [1]}
    assert printing.as_yaml({"b": "é", "a": 1}) == "a: 1\nb: é"


@given(st.text())
def test_documents_keep_every_character_and_are_printable(text: str) -> None:
    document = {"name": text}
    for form, read in ((printing.as_json, json.loads), (printing.as_yaml, yaml.safe_load)):
        shown = form(document)
        assert shown.replace("\n", "").isprintable()
        if "\ud800" <= max(text, default="") <= "\udfff" or any("\ud800" <= one <= "\udfff" for one in text):
            continue  # YAML has no lone surrogates, and no server sends one
        assert read(shown) == document


# ── configuration file of token create ───────────────────────────────────────────────────────────────────────────

HEAD = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n"
ONE = "f: one InitConfiguration is expected, the file has "
BAD_FILES = {
    "an empty file": ("", ONE + "0"),
    "two of them": (f"{HEAD}---\n{HEAD}", ONE + "2"),
    "another kind": ("kind: ClusterConfiguration\n", ONE + "0"),
    "an old version": (
        HEAD.replace("v1beta4", "v1beta2"),
        "f: the apiVersion of InitConfiguration must be kubeadm.k8s.io/v1beta4 or kubeadm.k8s.io/v1beta3",
    ),
    "tokens that are no list": (HEAD + "bootstrapTokens: x\n", "f: bootstrapTokens must be a list of at most 1000 tokens"),
    "a token that is no object": (HEAD + "bootstrapTokens: [x]\n", "f: bootstrapTokens[0] must be an object"),
    "a number as token": (HEAD + "bootstrapTokens: [{token: 5}]\n", "f: bootstrapTokens[0].token must be text"),
    "a malformed token": (
        HEAD + "bootstrapTokens: [{token: q7w2e9.k3m8}]\n",
        "f: bootstrapTokens[0]: the bootstrap token is not of the form abcdef.0123456789abcdef: 6 characters, one dot, "
        "16 characters, only a-z and 0-9, nothing before or after",
    ),
    "a malformed ttl": (
        HEAD + "bootstrapTokens: [{ttl: 1 day}]\n",
        'f: bootstrapTokens[0].ttl: "1 day" is not a duration; write it like 7d, 24h, 1h30m or 90s',
    ),
    "a ttl without a unit": (
        HEAD + 'bootstrapTokens: [{ttl: "3600"}]\n',
        "f: bootstrapTokens[0].ttl: \"3600\" has no unit; write 3600s, 3600m or 3600h",
    ),
    "ttl and expires": (
        HEAD + 'bootstrapTokens: [{ttl: 1h, expires: "2099-01-01T00:00:00Z"}]\n',
        "f: bootstrapTokens[0]: a token has either a ttl or an expiration time, not both",
    ),
    "an unknown usage": (
        HEAD + "bootstrapTokens: [{}, {usages: [signing, foo]}]\n",
        "f: bootstrapTokens[1]: invalid bootstrap token usage foo: valid usages are signing,authentication",
    ),
    "groups that are no list": (HEAD + "bootstrapTokens: [{groups: x}]\n", "f: bootstrapTokens[0].groups must be a list"),
    "broken YAML": (HEAD + "a: [\n", "f: yaml: line 3: "),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_wrong_configuration_file_is_told_by_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        token_records(text.encode(), "f", NOW)
    assert str(error.value).startswith(message)


def test_a_file_that_is_no_text() -> None:
    with pytest.raises(ConfigError, match=r"^f: the file is not UTF-8 text$"):
        token_records(b"\xff", "f", NOW)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"{HEAD}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n", id="two documents"
        ),
        pytest.param(f"{HEAD}---\napiVersion: v1\nkind: X\n".replace("\n", "\r\n"), id="lines that end as on Windows"),
        pytest.param(f"--- # the first\n{HEAD}--- # the second\nkind: X\n", id="comments behind the separators"),
        pytest.param(f"{HEAD}---\t\n", id="a separator with a tab at the end"),
        pytest.param(f"\ufeff{HEAD}", id="a byte order mark"),
    ],
)
def test_documents_of_a_file_as_kubeadm_splits_them(text: str) -> None:
    assert len(token_records(text.encode(), "f", NOW)) == 1


@pytest.mark.parametrize("version", ["v1beta4", "v1beta3"])
def test_no_list_means_one_token_with_kubeadms_defaults(version: str) -> None:
    (record,) = token_records(HEAD.replace("v1beta4", version).encode(), "f", NOW)
    assert record.usages == ("signing", "authentication")
    assert record.groups == (GROUP,)
    assert record.expires == NOW + timedelta(hours=24)


def test_expires_wins_over_the_default_ttl() -> None:
    (record,) = token_records(f'{HEAD}bootstrapTokens: [{{expires: "2099-01-01T00:00:00Z"}}]'.encode(), "f", NOW)
    assert record.expires == datetime(2099, 1, 1, tzinfo=UTC)


@given(st.binary(max_size=200))
def test_junk_is_refused_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(ConfigError):
        token_records(data, "f", NOW)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────


def request(*conditions: str, text: bytes = b"junk", **status: Any) -> Obj:
    found: Obj = {"metadata": {"name": "r"}, "spec": {"request": base64.b64encode(text).decode()}}
    if conditions:
        status["conditions"] = [{"type": one, "status": "True"} for one in conditions]
    return found | {"status": status}


def test_a_request_that_cannot_be_read_says_so_in_place_of_facts() -> None:
    facts = show.csr_details(request(certificate="!"), NOW)
    assert facts["request"] == {"problem": "PEM block type must be CERTIFICATE REQUEST"}
    assert facts["certificate"] == {"problem": "the text holds no CERTIFICATE PEM block"}
    shown = dict(lines(facts, NOW))
    assert shown["Request unreadable"] == "PEM block type must be CERTIFICATE REQUEST"
    assert shown["Certificate"] == "unreadable: the text holds no CERTIFICATE PEM block"


def test_a_request_of_the_supervisor_shows_the_names_that_the_certificate_gets() -> None:
    obj = request(text=build_request(generate_key(), "kubernetes-admin", ("system:masters",)))
    extra = {"mooring.io/k3s-credential": ["k3s-token"], "mooring.io/k3s-node-name": ["n1"]}
    obj["spec"] |= {"signerName": "mooring.io/k3s-kubelet-client", "extra": extra}
    facts = show.csr_details(obj, NOW)
    assert facts["request"]["subject"]["text"] == "CN=system:node:n1,O=system:nodes"


@given(st.binary(max_size=100))
def test_facts_of_junk_never_fail(text: bytes) -> None:
    facts = show.csr_details(request("Approved", "Failed", text=text), NOW)
    assert facts["condition"] == "Approved,Failed"
    assert lines(facts, NOW)


APPROVE = CsrDecision(condition="Approved", message="m")


def test_a_decision_is_appended_and_the_rest_kept() -> None:
    old = request("Failed")
    new = decided_request(old, APPROVE, "2026-01-02T03:04:05Z")
    assert new is not None
    assert new["status"]["conditions"] == [
        {"type": "Failed", "status": "True"},
        {
            "type": "Approved",
            "status": "True",
            "reason": "MooringApprove",
            "message": "m",
            "lastUpdateTime": "2026-01-02T03:04:05Z",
        },
    ]
    assert old == request("Failed")


def test_the_same_decision_is_no_write_unless_forced() -> None:
    old = request("Approved")
    assert decided_request(old, APPROVE, "t") is None
    assert decided_request(old, CsrDecision(condition="Approved", message="m", force=True), "t") == old


def test_a_request_that_took_the_name_of_the_one_that_was_shown_is_not_decided() -> None:
    """A request is deleted after a day; another machine may make one of its name while a person looks at the first."""
    other = request()
    other["metadata"]["uid"] = "2"
    for condition in ("Approved", "Denied"):
        shown = CsrDecision(condition=condition, message="m", uid="1")
        with pytest.raises(ConfigError, match="was deleted and made again since it was shown; it was not decided"):
            decided_request(other, shown, "t")
        assert decided_request(other, replace(shown, uid="2"), "t") is not None


def test_a_fingerprint_needs_a_readable_request() -> None:
    decision = CsrDecision(condition="Approved", message="m", fingerprint="sha256:00")
    with pytest.raises(ConfigError, match=r'^the certificate signing request "r" cannot be read: it was not approved'):
        decided_request(request(), decision, "t")


class Contended:
    """Server on which `conflicts` writes conflict."""

    def __init__(self, conflicts: int) -> None:
        self.conflicts, self.reads = conflicts, 0

    async def get(self, plural: str, name: str) -> Obj:
        self.reads += 1
        return request()

    async def update(self, plural: str, obj: Obj, *, subresource: str, dry_run: bool) -> Obj:
        assert subresource == "approval"
        if self.reads <= self.conflicts:
            raise ConflictError("somebody was faster")
        return obj


def test_a_request_that_the_signer_would_fail_is_approved_with_force_only() -> None:
    preview = {"type": "WouldFail", "status": "True", "reason": "SigningPolicy", "message": "rule x: too long"}
    old = request()
    old["status"] = {"conditions": [preview]}
    with pytest.raises(ConfigError, match="would fail after an approval: rule x: too long; it was not approved"):
        decided_request(old, APPROVE, "t")
    for condition, force in (("Approved", True), ("Denied", False)):
        new = decided_request(old, CsrDecision(condition=condition, message="m", force=force), "t")
        assert new is not None
        assert [one["type"] for one in new["status"]["conditions"]] == ["WouldFail", condition]


def test_a_request_that_breaks_a_rule_of_its_signer_is_approved_with_force_only() -> None:
    text = base64.b64encode(build_request(generate_key(), "system:node:n1", ("system:nodes",))).decode()
    old = request()
    old["spec"] |= {"request": text, "signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": ["server auth"]}
    with pytest.raises(ConfigError, match="would fail after an approval: usages did not match"):
        decided_request(old, APPROVE, "t")
    assert decided_request(old, CsrDecision(condition="Approved", message="m", force=True), "t") is not None
    assert decided_request(old, CsrDecision(condition="Denied", message="m"), "t") is not None


@pytest.mark.parametrize("conflicts", [0, 1, 9])
def test_a_conflict_is_tried_again_on_the_newest_state(conflicts: int) -> None:
    server = Contended(conflicts)
    asyncio.run(decide(server, "r", APPROVE, SystemClock()))  # type: ignore[arg-type] # the two verbs it uses
    assert server.reads == conflicts + 1


def test_ten_conflicts_are_enough() -> None:
    server = Contended(100)
    with pytest.raises(ConflictError):
        asyncio.run(decide(server, "r", APPROVE, SystemClock()))  # type: ignore[arg-type] # the two verbs it uses
    assert server.reads == decision.MAX_CONFLICTS


# ── patience ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (EndpointDownError("s", "w"), True),
        (ServiceUnavailableError("starting"), True),
        (PeerError("reset"), True),
        (BalancerAnswerError("s", 503), True),
        (NotKubernetesError("s", "w"), False),
        (NotTlsError("s", "w"), False),
        (NotMooringError("another"), False),
        (UnauthorizedError(), False),
        (ForbiddenError("no"), False),
        (ConfigError("flag"), False),
        (InternalServerError("the disk is full"), True),
        (
            InternalServerError('Internal error occurred: unable to transform key "/registry/secrets/a/b": damaged'),
            False,
        ),
        (StorageReadError.of("", "secrets", [("/registry/secrets/a/b", "damaged")]), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_only_what_may_pass_is_asked_again(error: MooringError, passes: bool) -> None:
    assert cluster.is_transient(error) is passes


class QuickClock:
    """Clock whose time passes only by sleeping."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_retries_end_after_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    clock, asked = QuickClock(), []

    async def down() -> None:
        asked.append(clock.slept)
        raise EndpointDownError("s", "w")

    with pytest.raises(EndpointDownError):
        asyncio.run(cluster.retry(down, clock, timedelta(minutes=1)))
    assert len(asked) == 121
    assert asked[:3] == [0, 0.5, 1.0]
    assert capsys.readouterr().err.count("Trying again for 1m0s") == 1


def test_a_retry_succeeds() -> None:
    answers = iter([ServiceUnavailableError("starting"), None])

    async def ask() -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "there"

    assert asyncio.run(cluster.retry(ask, QuickClock(), timedelta(seconds=5))) == "there"


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lists_may_be_repeated_or_have_commas() -> None:
    assert split_commas(["a,b", " c ", ",", ""]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("uid", "xdg", "directory"),
    [
        (0, "/ignored", "/var/lib/mooring"),
        (1000, "", "/home/me/.local/share/mooring"),
        (1000, "/data", "/data/mooring"),
        (1000, "relative", "/home/me/.local/share/mooring"),
    ],
    ids=["root", "a user", "a user with XDG_DATA_HOME", "a relative XDG_DATA_HOME is ignored"],
)
def test_where_state_is_kept(uid: int, xdg: str, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setenv("XDG_DATA_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert machine.default_data_dir() == directory


def test_a_user_without_home_has_the_root_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the user of a container that no file of its image names, and that has no HOME."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert machine.default_data_dir() == "/.local/share/mooring"
    assert cluster.default_kubeconfigs()[0] == Path("/.kube/config")
    assert loginfiles.directory() == Path("/.cache/mooring/logins")


def test_a_machine_without_a_route_has_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: socket.socket, address: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert detected_addresses() == ()


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", machine.free_port("127.0.0.1")))
    assert machine.free_port("192.0.2.1") == 6443


@click.command()
@options.server_options
def shown(**flags: Any) -> None:
    config = options.server_configuration(**flags)
    click.echo(
        f"{config[NetworkSettings].secure_port} {config[AnonymousSettings].enabled} {','.join(map(str, config.endpoints))} "
        f"{config[ServingSettings].shutdown_delay_duration.total_seconds()}"
    )


def test_server_flags_come_from_the_environment_and_the_command_line_wins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORING_SECURE_PORT", "7443")
    monkeypatch.setenv("MOORING_ANONYMOUS_AUTH", "false")
    monkeypatch.setenv("MOORING_CONTROL_PLANE_ENDPOINT", "a.example b.example:1")
    monkeypatch.setenv("MOORING_SHUTDOWN_DELAY_DURATION", "1.5s")
    shown.main(["--data-dir", "/d"], standalone_mode=False)
    shown.main(["--data-dir", "/d", "--secure-port", "8443", "--anonymous-auth"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines() == [
        "7443 False a.example:7443,b.example:1 1.5",
        "8443 True a.example:8443,b.example:1 1.5",
    ]


# ── logs and progress ────────────────────────────────────────────────────────────────────────────────────────────


def record(level: int = logging.INFO, text: str = "token q7w2e9.k3m8x1c5v0b6n4z2") -> logging.LogRecord:
    made = logging.LogRecord("mooring.x", level, "", 0, text, (), None)
    made.created = 0.0
    return made


def test_a_log_line_for_a_collector_holds_no_token() -> None:
    assert serverlogs.PlainFormatter().format(record()) == "1970-01-01T00:00:00Z INFO mooring.x token q7w2e9.(redacted)"


def test_a_collector_gets_json_without_a_token() -> None:
    line = serverlogs.JsonFormatter().format(record())
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00Z",
        "level": "INFO",
        "logger": "mooring.x",
        "message": "token q7w2e9.(redacted)",
    }
    failed = record(logging.ERROR, "two\nlines")
    failed.exc_text = "Traceback\n  token q7w2e9.k3m8x1c5v0b6n4z2"
    line = serverlogs.JsonFormatter().format(failed)
    assert "\n" not in line
    assert json.loads(line)["traceback"] == ["Traceback", "  token q7w2e9.(redacted)"]
    assert json.loads(line)["message"].isprintable()


def test_the_steps_of_an_agent_have_the_form_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = importlib.import_module("mooring.cli.join.agent")._report
    report(Progress("discovery", "trusted", kept=True))
    assert "discovery" in capsys.readouterr().err
    handler = logging.StreamHandler(log := io.StringIO())
    handler.setFormatter(serverlogs.JsonFormatter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("mooring"), "level", logging.INFO)
    report(Progress("discovery", "trusted", kept=True))
    report(Progress("discovery", "waiting"))
    assert capsys.readouterr().err == ""
    (line,) = log.getvalue().splitlines()
    assert json.loads(line)["logger"] == "mooring.agent"


def test_a_terminal_gets_colour_for_what_needs_attention() -> None:
    formatter = serverlogs.TerminalFormatter()
    assert formatter.format(record())[8:] == " token q7w2e9.(redacted)"
    assert formatter.format(record(logging.ERROR)).startswith("\x1b[31m")


@pytest.mark.parametrize(
    ("verbosity", "ours", "others"),
    [(0, logging.INFO, logging.WARNING), (1, logging.DEBUG, logging.WARNING), (2, logging.DEBUG, logging.INFO)],
)
def test_how_much_is_logged(verbosity: int, ours: int, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    root, mine = logging.getLogger(), logging.getLogger("mooring")
    kept = (root.handlers[:], root.level, mine.level)
    try:
        serverlogs.configure(verbosity)
        assert (mine.level, root.level) == (ours, others)
    finally:
        root.handlers[:] = kept[0]
        root.setLevel(kept[1])
        mine.setLevel(kept[2])


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Progress("wait", "approved\nand signed", 0.0124), "[wait] approved\\nand signed (12 ms)"),
        (Progress("discovery", "asking\x1b[2J"), "[discovery] asking\\x1b[2J"),
        (Progress("node", "ready", 1.26), "[node] ready (1.3 s)"),
        (Progress("x", "q7w2e9.k3m8x1c5v0b6n4z2"), "[x] q7w2e9.(redacted)"),
    ],
    ids=["milliseconds", "a step that goes on", "seconds", "no token"],
)
def test_a_line_of_progress(found: Progress, line: str) -> None:
    assert flags.line(found) == line


def test_a_terminal_sees_finished_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with flags.progress_printer() as tell:
        tell(Progress("discovery", "asking [bold] one"))
        tell(Progress("discovery", "host a is down", kept=True))
        tell(Progress("discovery", "trusted [by] token", 0.001))
    shown = capsys.readouterr().out
    assert "[discovery] trusted [by] token (1 ms)" in shown
    assert "[discovery] host a is down\n" in shown
    assert "[discovery] asking" not in shown


# ── the journal of a rotation of encryption keys ─────────────────────────────────────────────────────────────────

DAMAGED_JOURNALS = {
    "empty": b"",
    "a list": b"[]",
    "no key": b"{}",
    "brackets without an end": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGED_JOURNALS.values(), ids=DAMAGED_JOURNALS)
def test_a_damaged_journal_is_named_with_a_way_on(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "encryption.yaml.rotation").write_bytes(content)
    with pytest.raises(ConfigError, match=r"encryption\.yaml\.rotation is damaged: delete it, and start again"):
        EncryptionFile(tmp_path / "encryption.yaml").new_key(SystemClock())
