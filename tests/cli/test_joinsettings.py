"""Settings of `join` and `agent`: each has a flag, a variable and a key; which of them counts; errors that name the source."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mooring.agent import daemon
from mooring.agent.join import JoinOptions
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.cli.commands import COMMANDS
from mooring.cli.join import join as joincommand
from mooring.cli.join.agent import agent
from mooring.cli.join.flags import SETTINGS, SUBJECTS, Given
from mooring.cli.join.join import join
from mooring.cli.options.declared import settings_options
from mooring.controlplane.configuration import declared_settings
from mooring.settings.declaration import DURATION, LINES, OPTIONAL_DURATION, OPTIONAL_PORT, PORT, SWITCH, Setting
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import ByAddress, ByFile, JoinPlan, JoinSettings
from mooring.trust.k3s.agentfile import read_agent_file
from tests.support.commandline import CommandLine, Outcome, mooring

__all__ = ["mooring"]
TOKEN = "abcdef.0123456789abcdef"
PIN = "sha256:" + "ab" * 32
PROGRAM = ("--program", "/usr/bin/mooring")
OF_ONE_RUN = {"adopt", "config", "dry_run", "discover_only", "is_service", "output", "verbose", "log_format"}
"""Parameters that no file holds."""
REPEATABLE = [one.name for one in SETTINGS if isinstance(one.default, tuple)]
ALL = pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.name)


@ALL
def test_every_setting_has_a_flag_with_a_variable_of_its_own(setting: Setting) -> None:
    (parameter,) = [one for one in agent.params if one.name == setting.field]
    assert parameter.envvar == setting.variable
    assert [one.name for one in SETTINGS if one.variable == setting.variable] == [setting.name]


@pytest.mark.parametrize("command", [join, agent], ids=lambda one: one.name)
def test_every_flag_is_a_setting_unless_it_is_about_one_run(command: click.Command) -> None:
    declared = {one.field for one in (SETTINGS if command is agent else JoinSettings.declared())}
    assert {one.name for one in command.params} - OF_ONE_RUN == declared


HOOK_VARIABLES = ("MOORING_KIND", "MOORING_CERTIFICATE", "MOORING_NODE_NAME")
SHARED = {
    "MOORING_TOKEN": "the token that up creates is the one that machines join with",
    "MOORING_NODE_NAME": "the node of this machine, which the agent names to its hooks",
    "K3S_URL": "the server whose token is rotated is one that machines join",
}
"""Variables that other commands read, too, because they mean the same there."""


def test_no_variable_of_another_command_is_taken_for_something_else() -> None:
    own = {one.variable for one in SETTINGS}
    others = {one.variable for one in declared_settings()} | {"MOORING_DEBUG", *HOOK_VARIABLES}
    for path, entry in COMMANDS.items():
        if path not in ("join", "agent", "agent unit", "doctor"):
            for parameter in entry.load().params:
                names = parameter.envvar or ()
                others.update([names] if isinstance(names, str) else names)
    assert own & others == SHARED.keys()
    assert {"MOORING_CONFIG", "MOORING_DATA_DIR", "MOORING_NODE_DELETION"} <= others, "the server's"


def text_of(setting: Setting, which: int) -> str:
    """Return one of three values, as a flag, a variable and a file have it."""
    if setting.value_type.choices:
        return setting.value_type.choices[which % len(setting.value_type.choices)]
    if setting.value_type in (DURATION, OPTIONAL_DURATION):
        return f"{which + 1}h0m0s"
    if setting.value_type in (PORT, OPTIONAL_PORT):
        return str(which + 1)
    return "a b" if setting.value_type is LINES else f"v{which}"


def given(setting: Setting, arguments: list[str], environment: dict[str, str], file: str) -> Given:
    """Return what a command with this flag gets."""
    found: list[Given] = []

    def command(**values: Any) -> None:
        found.append(Given(click.get_current_context()))

    decorated = click.command()(settings_options([setting])(command))
    outcome = CliRunner().invoke(decorated, arguments, env=environment, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    found[0].add(read_agent_file([("agent.yaml", file.encode())], SETTINGS))
    return found[0]


@ALL
def test_a_flag_wins_over_a_variable_that_over_the_file_and_that_over_the_default(setting: Setting) -> None:
    flag, variable, key = (text_of(setting, which) for which in range(3))
    arguments = [flag] if setting.positional else [f"--{setting.name}", flag]
    environment, file = {setting.variable: variable}, f"{setting.name}: {key}\n"
    if setting.value_type is SWITCH:
        arguments, environment, file = [f"--{setting.name}"], {setting.variable: "1"}, f"{setting.name}: true\n"
    found = [
        given(setting, *given_there)
        for given_there in (
            (arguments, environment, file),
            ([], environment, file),
            ([], {}, file),
            ([], {setting.variable: ""}, ""),
        )
    ]
    assert [setting.field in one.flags for one in found] == [True, False, False, False]
    assert [one.variables.get(setting.field) for one in found] == [None, setting.variable, None, None]
    assert [one.lines.get(setting.field) for one in found] == [None, None, "agent.yaml: line 1", None]
    values = [one.values[setting.field] for one in found]
    if setting.value_type is SWITCH:
        assert values == [True, True, True, False]
    elif setting.value_type in (DURATION, OPTIONAL_DURATION):
        assert values[:3] == [timedelta(hours=hours) for hours in (1, 2, 3)]
    elif setting.value_type in (PORT, OPTIONAL_PORT):
        assert values[:3] == [1, 2, 3]
    else:
        wanted = [(one,) if setting.name in REPEATABLE else one for one in (flag, variable, key)]
        assert values[:3] == wanted


def test_a_variable_of_hooks_has_one_on_each_line() -> None:
    (hooks,) = [one for one in SETTINGS if one.value_type is LINES]
    found = given(hooks, [], {hooks.variable: "systemctl reload nginx\n\ntrue\n"}, "")
    assert found.values["on_renew"] == ("systemctl reload nginx", "true")


class Machine:
    """The commands with a root of their own. `runs` are the joins that they would carry out."""

    def __init__(self, mooring: CommandLine, root: Path) -> None:
        self.mooring, self.root = mooring, root
        self.runs: list[tuple[JoinPlan | None, JoinOptions]] = []

    def file(self, text: str, path: str = "etc/mooring/agent.yaml", mode: int = 0o600) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def __call__(self, command: str, *arguments: str) -> Outcome:
        return self.mooring(command, "--root", str(self.root), *arguments)

    def run(self, command: str, *arguments: str) -> tuple[JoinPlan, JoinOptions]:
        self(command, *arguments)
        plan, options = self.runs.pop()
        assert plan is not None
        return plan, options


@pytest.fixture
def machine(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "NODE_NAME", "CONFIG_FILE", "DATA_DIR", "LB_SERVER_PORT"):
        monkeypatch.delenv(f"K3S_{name}", raising=False)
    machine = Machine(mooring, tmp_path)

    async def run(plan: JoinPlan | None, options: JoinOptions, *_: Any, **more: Any) -> None:
        machine.runs.append((plan, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(joincommand, "join_cluster", run)
    monkeypatch.setattr(daemon, "run", run)
    return machine


COMMANDS_OF_A_MACHINE = pytest.mark.parametrize("command", ["join", "agent"])
FILE = f"""\
address: [192.0.2.1, 192.0.2.2]
token: {TOKEN}
discovery-token-ca-cert-hash: {PIN}
node-name: from-file
node-ip: [2001:DB8:0::7, 192.0.2.7]
register-node: none
node-deletion: reregisters
discovery-timeout: 7s
tls-bootstrap-timeout: 8s
certificate-lifetime: 1h
serving-certificates: true
on-renew: [systemctl reload nginx]
"""


@COMMANDS_OF_A_MACHINE
def test_one_file_is_enough_for_both_commands(machine: Machine, command: str) -> None:
    machine.file(FILE)
    plan, options = machine.run(command)
    assert plan.node_name == "from-file"
    assert (options.settings.register_node, options.settings.node_deletion) == ("none", "reregisters")
    assert (options.node.address, options.node.more_addresses) == ("2001:db8::7", (("InternalIP", "192.0.2.7"),))
    assert (options.polling.total, options.certificate_timeout, options.expiration_seconds) == (7.0, 8.0, 3600)


@COMMANDS_OF_A_MACHINE
def test_a_name_in_upper_case_is_lowered_with_one_line(machine: Machine, command: str) -> None:
    machine.file(FILE)
    told = machine(command, "--node-name", "Rack-7").err
    assert told.count('--node-name "Rack-7": the Node is called rack-7, in lower case\n') == 1
    plan, _ = machine.runs.pop()
    assert plan is not None
    assert plan.node_name == "rack-7"


@COMMANDS_OF_A_MACHINE
def test_a_name_that_the_node_cannot_have_stops_before_anything_is_asked(machine: Machine, command: str) -> None:
    machine.file(FILE.replace("register-node: none", "register-node: ready"))
    told = machine(command, "--node-name", f"{'a' * 60}.test").err
    assert "the label kubernetes.io/hostname of a Node takes 63" in told
    assert machine.runs == []
    assert machine.run(command, "--node-name", f"{'a' * 60}.test", "--register-node", "none")[0].node_name.endswith(
        ".test"
    )


@COMMANDS_OF_A_MACHINE
def test_variables_are_enough(machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    machine.file("node-name: from-file\n")
    for name, value in {
        "ADDRESS": "192.0.2.1 192.0.2.2", "TOKEN": TOKEN, "DISCOVERY_TOKEN_CA_CERT_HASH": PIN, "NODE_NAME": "from-variable",
        "AGENT_NODE_DELETION": "reregisters",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"MOORING_{name}", value)
    plan, options = machine.run(command)
    assert (plan.node_name, options.settings.node_deletion) == ("from-variable", "reregisters")
    assert machine.run(command, "--node-name", "from-flag")[0].node_name == "from-flag"


@COMMANDS_OF_A_MACHINE
@pytest.mark.parametrize("by", ["--config", "MOORING_AGENT_CONFIG"])
def test_a_named_file_takes_the_place_of_the_default_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str, by: str
) -> None:
    machine.file("not: [YAML")
    named = str(machine.file(FILE, "named.yaml"))
    if by == "--config":
        plan, _ = machine.run(command, by, named)
    else:
        monkeypatch.setenv(by, named)
        plan, _ = machine.run(command)
    assert plan.node_name == "from-file"


@COMMANDS_OF_A_MACHINE
def test_the_variables_of_a_server_are_not_those_of_a_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("CONFIG", "DATA_DIR", "NODE_DELETION", "BIND_ADDRESS", "ADVERTISE_ADDRESS"):
        monkeypatch.setenv(f"MOORING_{name}", "not-for-an-agent")
    _, options = machine.run(command, "192.0.2.1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN)
    assert options == machine.run(command, "192.0.2.1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN)[1]
    assert options.settings.node_deletion == "ends-membership"


@pytest.mark.parametrize(
    ("arguments", "file", "is_planned"),
    [
        ((), f"address: 192.0.2.1\ndiscovery-token-ca-cert-hash: {PIN}\n", False),
        ((), f"tls-bootstrap-token: {TOKEN}\n", False),
        ((), f"address: 192.0.2.1\ntoken: {TOKEN}\ndiscovery-token-ca-cert-hash: {PIN}\n", True),
        ((), f"discovery-file: f\ntls-bootstrap-token: {TOKEN}\n", True),
        (("192.0.2.1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN), "", True),
    ],
)
def test_a_file_whose_token_is_gone_asks_for_no_join(
    machine: Machine, arguments: tuple[str, ...], file: str, is_planned: bool
) -> None:
    machine.file(file)
    machine("agent", *arguments)
    ((plan, _),) = machine.runs
    assert (plan is not None) is is_planned


def test_an_address_on_the_command_line_asks_for_a_join(machine: Machine) -> None:
    assert "no way of discovery: give an API server address with --discovery-token" in machine("agent", "192.0.2.1").err
    machine.file("address: 192.0.2.1\n")
    assert "no way of discovery" in machine("join").err, "this machine is no member"


WRONG = [
    ("register-node", "never", "register-node"),
    ("node-deletion", "never", "node-deletion"),
    ("discovery-timeout", "soon", "discovery-timeout"),
    ("discovery-timeout", "0s", "discovery-timeout must be longer than 0"),
    ("tls-bootstrap-timeout", "0s", "tls-bootstrap-timeout must be longer than 0"),
    ("certificate-lifetime", "1s", "certificate-lifetime must be between 10m0s"),
    ("node-name", "A_b", 'node-name "A_b" is invalid'),
    ("token", "not-so-secret", "--token: the bootstrap token is not of the form"),
    ("discovery-token", "not-so-secret", "--discovery-token: the bootstrap token is not of the form"),
    ("tls-bootstrap-token", "not-so-secret", "--tls-bootstrap-token: the bootstrap token is not of the form"),
    ("discovery-token-ca-cert-hash", "sha256:ab", 'invalid CA hash "sha256:ab"'),
    ("discovery-file", "http://a.test", "--discovery-file: if a URL is used, it must be https://"),
    ("address", "a:b:c:d:x", 'the API server address "a:b:c:d:x" must be host or host:port'),
]


@COMMANDS_OF_A_MACHINE
@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(("name", "value", "said"), WRONG, ids=lambda one: str(one)[:30])
def test_a_wrong_value_is_one_line_that_names_its_source(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str, source: str, name: str, value: str, said: str
) -> None:
    (setting,) = [one for one in SETTINGS if one.name == name]
    rest = {"address": "192.0.2.1", "token": TOKEN, "discovery-token-ca-cert-hash": PIN}
    if name == "discovery-file":
        del rest["address"], rest["discovery-token-ca-cert-hash"]
    rest.pop(name, None)
    arguments = [part for key, one in rest.items() for part in ((one,) if key == "address" else (f"--{key}", one))]
    place = ""
    if source == "flag":
        arguments += [value] if setting.positional else [f"--{name}", value]
    elif source == "variable":
        place = setting.variable
        monkeypatch.setenv(place, value)
    else:
        place = f"{machine.file(f'# a comment{chr(10)}{name}: {value}{chr(10)}')}: line 2"
    outcome = machine(command, *arguments)
    assert outcome.code == (1 if source == "file" else 2), outcome.err
    assert outcome.err.count("\n") == 1
    assert place in outcome.err
    assert said in outcome.err or f'"{name}": give' in outcome.err or f"Invalid value for '{place}'" in outcome.err
    assert "not-so-secret" not in outcome.all
    assert not machine.runs


def test_a_mistake_names_every_source_that_takes_part(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    file = machine.file("discovery-file: f\n")
    monkeypatch.setenv("MOORING_DISCOVERY_TOKEN", TOKEN)
    assert f"Error: MOORING_DISCOVERY_TOKEN, {file}: line 1: --discovery-token and" in machine("join").err


@pytest.mark.parametrize("key", [one.name for one in SETTINGS if one.secret])
@COMMANDS_OF_A_MACHINE
def test_a_file_with_a_token_is_read_by_its_owner_alone(machine: Machine, command: str, key: str) -> None:
    path = machine.file(f"{key}: {TOKEN}\n", mode=0o644)
    err = machine(command).err
    assert f'run chmod 600 {path}, because it holds the secret "{key}"' in err
    assert TOKEN not in err


def test_a_file_of_the_other_way(machine: Machine) -> None:
    file = machine.file("server: https://192.0.2.1\n")
    assert f"{file}: line 1: server is for a join the k3s way: run mooring agent" in machine("join").err
    machine.file("server: https://192.0.2.1\ntls-bootstrap-timeout: 1m\n")
    assert "--tls-bootstrap-timeout and --server belong to two ways of joining" in machine("agent").err
    machine.file("node-external-ip: 192.0.2.7\n")
    assert f"{file}: line 1: --node-external-ip needs --server" in machine("agent").err


def test_k3s_url_does_not_change_the_way_of_a_file(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.file(FILE)
    monkeypatch.setenv("K3S_URL", "https://192.0.2.10:6443")
    assert machine.run("agent")[0].node_name == "from-file"


@pytest.mark.parametrize("name", ["ADDRESS", "DISCOVERY_FILE"])
def test_k3s_url_gets_no_token_that_is_for_another_address(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("K3S_URL", "https://192.0.2.10:6443")
    monkeypatch.setenv("MOORING_TOKEN", TOKEN)
    monkeypatch.setenv(f"MOORING_{name}", "192.0.2.1")
    if name == "ADDRESS":
        monkeypatch.setenv("MOORING_DISCOVERY_TOKEN_CA_CERT_HASH", PIN)
    plan, _ = machine.run("agent")
    discovery = plan.discovery
    assert discovery == ByFile("192.0.2.1") or (isinstance(discovery, ByAddress) and discovery.is_pinned)


def test_an_unknown_token_is_waited_for_as_long_as_was_chosen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = ("join", "192.0.2.1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN)
    assert machine.run(*join)[1].polling == Polling(unsigned=30.0)
    chosen = Polling(total=60.0)
    assert machine.run(*join, "--discovery-timeout", "1m")[1].polling == chosen
    machine.file("discovery-timeout: 1m\n")
    assert machine.run(*join)[1].polling == chosen
    monkeypatch.setenv("MOORING_DISCOVERY_TIMEOUT", "2m")
    assert machine.run("agent", *join[1:])[1].polling == Polling(total=120.0)


def test_settings_of_every_way_are_shared() -> None:
    names = [one.name for own in SUBJECTS.values() for one in own]
    assert len(names) == len(set(names)) == len(SETTINGS)


def test_a_unit_follows_the_file(machine: Machine) -> None:
    named = machine.file(
        "on-renew: [systemctl reload nginx]\nserver: https://192.0.2.10:6443\ndata-dir: /data\n", "a.yaml"
    )
    root = ("--root", str(machine.root))
    lines = machine.mooring.done("agent", "unit", *PROGRAM, *root, "--config", str(named)).splitlines()
    assert f"ExecStart=/usr/bin/mooring agent --config {named} --root {machine.root}" in lines
    assert f"ConditionPathExists={machine.root}/data/agent/client-kubelet.crt" in lines
    assert not any(line.startswith("ProtectSystem") for line in lines), "the hooks of the file write"


def test_a_unit_does_not_take_variables_of_the_shell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3S_URL", "https://192.0.2.10:6443")
    monkeypatch.setenv("MOORING_ON_RENEW", "true")
    assert "ExecStart=/usr/bin/mooring agent\n" in machine.mooring.done("agent", "unit", *PROGRAM)


def test_a_join_and_an_agent_load_no_schema() -> None:
    program = (
        "import sys, mooring.cli.join.join, mooring.cli.join.agent; "
        "print([name for name in sys.modules if name.startswith('mooring.api.core')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", "it takes a tenth of their time, and few command lines have labels or taints"


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.secret], ids=lambda one: one.name)
def test_a_token_of_any_source_is_in_no_repr(setting: Setting) -> None:
    for arguments, environment, file in (
        ([f"--{setting.name}", "not-so-secret"], {}, ""),
        ([], {setting.variable: "not-so-secret"}, ""),
        ([], {}, f"{setting.name}: not-so-secret\n"),
    ):
        found = given(setting, arguments, environment, file)
        for subject in (JoinSettings, K3sJoinSettings):
            assert "not-so-secret" not in repr(found.read(subject))
        assert "not-so-secret" not in repr(read_agent_file([("agent.yaml", file.encode())], SETTINGS))


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("server", "http://192.0.2.10", "--server: the scheme must be https"),
        ("token", "K10not-so-secret", "--token: invalid token format"),
        ("node-ip", "x", '--node-ip: "x" is not an IP address'),
        ("node-ip", "192.0.2.7,192.0.2.8", "--node-ip: must contain either a single IP or a dual-stack pair of IPs"),
        ("node-external-ip", "x", '--node-external-ip: "x" is not an IP address'),
        ("node-internal-dns", "A_b", '--node-internal-dns: "a_b" is not a DNS name'),
        ("node-label", "kubernetes.io/os=x", "kubernetes.io/os: the agent sets this label"),
        ("node-taint", "x", "is not a taint"),
        ("lb-server-port", "70000", "70000 is not in the range 0<=x<=65535"),
        ("node-name", "A_b", '--node-name "A_b" is invalid'),
        ("register-node", "never", "register-node"),
        ("discovery-timeout", "0s", "--discovery-timeout must be longer than 0"),
    ],
    ids=str,
)
def test_a_wrong_value_of_the_k3s_way_names_its_source(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, source: str, name: str, value: str, said: str
) -> None:
    (setting,) = [one for one in SETTINGS if one.name == name]
    arguments = [] if name == "server" else ["--server", "https://192.0.2.10:6443"]
    place = ""
    if source == "flag":
        arguments += [f"--{name}", value]
    elif source == "variable":
        place = setting.variable
        monkeypatch.setenv(place, value)
    else:
        place = f"{machine.file(f'{name}: {value}{chr(10)}', 'etc/rancher/k3s/config.yaml')}: line 1"
    outcome = machine("agent", *arguments)
    assert outcome.code == (1 if source == "file" else 2), outcome.err
    assert outcome.err.count("\n") == 1
    assert place in outcome.err
    assert said in outcome.err or f"Invalid value for '{place}'" in outcome.err
    assert "not-so-secret" not in outcome.all
