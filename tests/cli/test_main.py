"""Command line: table of commands, errors, exit codes, and no repetition of mistyped secrets."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mooring import __version__, build
from mooring.cli import commands, main
from mooring.cli.commands import COMMANDS, GROUPS
from mooring.cli.options.flags import ObjectName
from mooring.cli.printing import redacted
from mooring.trust.bootstraptoken.token import parse_token
from tests.generated import pages
from tests.support.commandline import CommandLine, mooring, process
from tests.support.rows import each_row

__all__ = ["mooring"]
_NAMED = {"--selector": "'-l' / '--selector'"}
TOKEN = "q7w2e9.k3m8x1c5v0b6n4z2"
PIN = "sha256:" + "0" * 64
SOURCES = Path(main.__file__).parent.parent


@each_row("path", COMMANDS)
def test_every_row_of_the_table_is_a_command_with_help(path: str, mooring: CommandLine) -> None:
    command = COMMANDS[path].load()
    assert command.name == path.split()[-1]
    assert (command.help or "").strip()
    assert "Usage: mooring " + path in mooring.done(*path.split(), "--help")


def test_every_group_has_commands() -> None:
    above = {" ".join(path.split()[:n]) for path in COMMANDS for n in range(1, len(path.split()))}
    assert above == set(GROUPS)


def test_reference_pages_say_what_the_table_says() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, f"run: python -m tests.generated --write ({path.name})"


BAD_INPUT = {
    "an unknown command gets the nearest one": (["tokn"], 'there is no command "tokn"; did you mean "token"?'),
    "an unknown command of a group too": (["token", "lst"], 'there is no command "lst"; did you mean "list"?'),
    "a command like no other gets no guess": (["zzz"], 'there is no command "zzz"'),
    "an unknown flag gets the nearest one": (
        ["token", "create", "--tll", "1h"],
        "No such option '--tll' (Did you mean '--ttl'?)",
    ),
    "a duration in no form": (
        ["token", "create", "--ttl", "1 day"],
        "Invalid value for '--ttl': \"1 day\" is not a duration; write it like 7d, 24h, 1h30m or 90s",
    ),
    "a duration without a unit": (
        ["token", "create", "--ttl", "3600"],
        "Invalid value for '--ttl': \"3600\" has no unit; write 3600s, 3600m or 3600h",
    ),
    "an empty duration": (
        ["token", "create", "--ttl="],
        "Invalid value for '--ttl': it is empty; write a duration like 7d, 24h, 1h30m or 90s; the value after --ttl is empty",
    ),
    "an empty token of a join": (
        ["join", "h:1", "--token", "", "--discovery-token-ca-cert-hash", PIN],
        "no way of discovery: give an API server address with --discovery-token (or --token), or --discovery-file; "
        "the value after --token is empty",
    ),
    "an empty pin and an empty address": (
        ["join", "", "--token", TOKEN, "--discovery-token-ca-cert-hash="],
        "--token: discovery by token needs the address of an API server, host or host:port; an argument is empty; "
        "the value after --discovery-token-ca-cert-hash is empty",
    ),
    "an empty token to delete": (
        ["token", "delete", ""],
        "Invalid value for 'TOKEN...': it is empty; give a name; an argument is empty",
    ),
    "a certificate key without a join command, before anything is created": (
        ["token", "create", "--certificate-key", "0" * 64],
        "--certificate-key is only of use with --print-join-command",
    ),
    "a certificate key of another length": (
        ["token", "create", "--certificate-key", "00", "--print-join-command"],
        "--certificate-key must be 64 hexadecimal digits: a key of 32 bytes",
    ),
    "flags beside --config": (
        ["token", "create", "--config", "x", "--ttl", "1h", "--usages", "signing"],
        "--config cannot be mixed with --ttl, --usages: write it into the file",
    ),
    "a token beside --config": (
        ["token", "create", TOKEN, "--config", "x"],
        "--config cannot be mixed with a token: write it into the file",
    ),
    "delete without a token": (["token", "delete"], "Missing argument 'TOKEN...'."),
    "a fingerprint for several requests": (
        ["csr", "approve", "a", "b", "--fingerprint", PIN],
        "--fingerprint needs exactly one NAME",
    ),
    "an expiration below what signers grant": (
        ["kubeconfig", "user", "jane", "--expiration", "9m59s"],
        "--expiration must be at least 10m0s",
    ),
    "a user without a name": (["kubeconfig", "user", " "], "NAME must not be empty"),
    "no time for discovery": (
        ["join", "h:1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN, "--discovery-timeout", "0"],
        "--discovery-timeout must be longer than 0",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_a_wrong_command_line_is_told_and_ends_with_2(arguments: list[str], message: str, mooring: CommandLine) -> None:
    outcome = mooring(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    told, _, see = line.rpartition(" (see: mooring")
    assert told.replace('"--tll"', "'--tll'") == f"Error: {message.rstrip('.')}" or told.startswith(
        "Error: No such option"
    )
    assert see.endswith("--help)")


_BELOW = "|".join(re.escape(path) for path in COMMANDS if " " in path)
_WITHOUT_PROGRAM = re.compile(rf"(?<!mooring )(?<!kubeadm )(?<!k3s )(?<![\\w-])({_BELOW})(?![\\w-])")


def test_every_hint_is_a_whole_command() -> None:
    """Commands in messages stand behind the name of the program, so that they can be copied."""
    found: list[str] = []
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [
                    f"{path.relative_to(SOURCES)}:{node.lineno}: {match[0]}"
                    for match in _WITHOUT_PROGRAM.finditer(node.value)
                    if match[0] != node.value  # a key of the table of commands
                ]
    assert found == []


CA_FILES = ("--ca-cert", "/nowhere/ca.crt", "--ca-key", "/nowhere/ca.key")
MEANINGLESS = {
    "a malformed token": (
        ["token", "create", "abcdef.short"],
        "the bootstrap token is not of the form abcdef.0123456789abcdef: 6 characters, one dot, 16 characters, "
        "only a-z and 0-9, nothing before or after",
    ),
    "an unknown usage": (
        ["token", "create", "--usages", "signing,foo", "--usages", "bar"],
        "invalid bootstrap token usage bar,foo: valid usages are signing,authentication",
    ),
    "a group without the usage": (
        ["token", "create", "--usages", "signing", "--groups", "system:bootstrappers:a"],
        'token groups cannot be given unless the usages include "authentication"',
    ),
    "a group of another name": (
        ["token", "create", "--groups", "system:masters"],
        'bootstrap group "system:masters" is invalid: it must match \\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\\z',
    ),
    "a negative ttl": (
        ["token", "create", "--ttl=-1h"],
        "the ttl of a token is not negative: 0 means that it never expires",
    ),
    "an id that is none": (
        ["token", "delete", "abcde"],
        "not a bootstrap token id (6 characters of a-z and 0-9) and not a whole token (id, dot, 16 characters)",
    ),
    "an unknown authorization mode": (
        ["init", "--data-dir", "/nowhere", "--authorization-mode", "RBAC,Foo"],
        'authorization-mode: "Foo" is not one of AlwaysAllow, AlwaysDeny, Node, RBAC',
    ),
    "a bind address that is a name": (
        ["up", "--data-dir", "/nowhere", "--bind-address", "localhost"],
        'bind-address: "localhost" is not an IP address; 0.0.0.0 or :: means every address of both families',
    ),
    "a first token that is none, before anything is made": (
        ["up", "--data-dir", "/nowhere", "--token", "abc"],
        "the bootstrap token is not of the form abcdef.0123456789abcdef: 6 characters, one dot, 16 characters, "
        "only a-z and 0-9, nothing before or after",
    ),
    "init in memory": (
        ["init", "--storage", "memory:"],
        "storage: memory: forgets everything when init ends; use mooring up with it",
    ),
    "a join without a pin": (
        ["join", "192.0.2.1:6443", "--token", TOKEN],
        "discovery by token without --discovery-token-ca-cert-hash can be unsafe: give the hash, or pass "
        "--discovery-token-unsafe-skip-ca-verification to continue without it",
    ),
    "a join without anything": (
        ["join"],
        "no way of discovery: give an API server address with --discovery-token (or --token), or --discovery-file",
    ),
    "two ways of discovery": (
        ["join", "192.0.2.1:6443", "--discovery-file", "x", "--token", TOKEN],
        "an API server address and --discovery-file cannot both be given: choose one way of discovery",
    ),
    "a node name that is none": (
        ["join", "--node-name", "Node_1"],
        '--node-name "Node_1" is invalid: a lowercase RFC 1123 subdomain',
    ),
    "a pin that is none": (
        ["csr", "approve", "x", "--fingerprint", "md5:00"],
        "--fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it",
    ),
    "a server that is no URL": (
        ["login", "--server", "ftp://h", "--username", "jane"],
        '--server: "ftp://h" is not an https URL',
    ),
    "a server that is no address": (
        ["login", "--server", "h:0", "--username", "jane"],
        'the API server address "h:0" must be host or host:port',
    ),
    "a provider that is no URL": (
        ["login", "--server", "h", "--oidc-issuer-url", "h", "--oidc-client-id", "x"],
        '--oidc-issuer-url: "h" is not an https URL',
    ),
    "an address that is none": (["certs", "server", *CA_FILES, "--ip", "h"], '--ip: "h" is not an IP address'),
    "a name that is an address": (["certs", "server", *CA_FILES, "--dns", "::1"], '--dns: "::1" is an IP address'),
    "a name of files with a slash": (
        ["certs", "ca", "--name", "../x", "--common-name", "x"],
        '"../x" is no name for files',
    ),
    "an empty data directory": (
        ["up", "--token", "", "--data-dir", ""],
        "data-dir: the directory is not named; leave the flag out for the default; the value after --data-dir is empty",
    ),
    **{
        f"an empty name for {' '.join(command)}": (
            [*command, ""],
            f"Invalid value for '{name}': it is empty; give a name; ",
        )
        for command, name in (
            (("node", "revoke", "--dry-run"), "NAME"),
            (("node", "delete"), "NAME..."),
            (("csr", "approve"), "[NAME]..."),
            (("machine", "remove"), "NAME..."),
        )
    },
    "a snapshot to standard output": (
        ["snapshot", "save", "-"],
        "a snapshot is not written to standard output: name a",
    ),
    "an empty bootstrap token": (
        ["token", "create", ""],
        "the bootstrap token is empty: the file or the variable that was to hold it has nothing; an argument is empty",
    ),
    **{
        f"an empty {flag} of {' '.join(command)}": (
            [*command, flag, value],
            f"Invalid value for {_NAMED.get(flag, repr(flag))}: give a value, or leave the flag out{told}",
        )
        for command, flag, value, told in (  # no limit, where one was meant
            (("token", "create"), "--max-joins", "", "; the value after --max-joins is empty"),
            (("token", "create"), "--node-name", "", "; the value after --node-name is empty"),
            (("token", "create"), "--allow-cidr", "", "; the value after --allow-cidr is empty"),
            (("token", "create"), "--config", "", "; the value after --config is empty"),
            (("csr", "approve", "one"), "--fingerprint", "", "; the value after --fingerprint is empty"),
            (("csr", "approve", "--all-pending"), "--signer", "", "; the value after --signer is empty"),
            (("csr", "deny", "--all-pending"), "--selector", "", "; the value after --selector is empty"),
            (("csr", "deny", "--all-pending"), "--field-selector", "", "; the value after --field-selector is empty"),
            (("machine", "authorize", "one"), "--key-fingerprint", "", "; the value after --key-fingerprint is empty"),
            (("machine", "authorize", "one"), "--node-name", "", "; the value after --node-name is empty"),
            (("machine", "authorize", "one"), "--allow-cidr", " , ", " (see"),
            (
                ("machine", "authorize", "one"),
                "--request-annotation",
                "",
                "; the value after --request-annotation is empty",
            ),
            (("kubeconfig", "refresh"), "--context", "", "; the value after --context is empty"),
            (
                ("kubeconfig", "refresh"),
                "--discovery-token-ca-cert-hash",
                "",
                "; the value after --discovery-token-ca-cert-hash is empty",
            ),
            (("kubeconfig", "user", "one"), "--out", "", "; the value after --out is empty"),
            (("serviceaccount", "token", "one"), "--audience", "", "; the value after --audience is empty"),
            (
                ("serviceaccount", "token", "one"),
                "--bound-object-uid",
                "",
                "; the value after --bound-object-uid is empty",
            ),
        )
    },
    "an empty data directory whose CAs are shown": (
        ["ca", "show", "--data-dir="],
        "data-dir: the directory is not named; leave the flag out for the default; the value after --data-dir is empty",
    ),
    "an empty data directory of an administrator": (
        ["token", "list", "--data-dir", ""],
        "--data-dir: the directory is not named; leave the flag out for the default; the value after --data-dir is empty",
    ),
    "a storage nobody knows": (["up", "--storage", "redis:x"], "storage: the URL must start with one of "),
}


REFUSED = {
    "a kubeconfig that is not there": (
        ["token", "list", "--kubeconfig", "/nowhere/admin.conf"],
        "/nowhere/admin.conf cannot be read: no such file or directory; check the path",
    ),
    "a kubeconfig that is not there, and an empty context": (
        ["token", "list", "--kubeconfig", "/nowhere/admin.conf", "--context", ""],
        "/nowhere/admin.conf cannot be read: no such file or directory; check the path; the value after --context is empty",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_one_line_and_ends_with_1(
    arguments: list[str], message: str, mooring: CommandLine
) -> None:
    outcome = mooring(*arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"Error: {message}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "message"), MEANINGLESS.values(), ids=MEANINGLESS)
def test_a_value_that_can_mean_nothing_is_one_line_and_ends_with_2(
    arguments: list[str], message: str, mooring: CommandLine
) -> None:
    outcome = mooring(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"Error: {message}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("command", ["init", "up", "server"])
def test_a_storage_nobody_knows_is_refused_before_anything_is_made(
    command: str, mooring: CommandLine, tmp_path: Path
) -> None:
    outcome = mooring(command, "--data-dir", str(tmp_path / "data"), "--storage", "redis:x")
    assert outcome.code == 2
    assert outcome.err.startswith("Error: storage: the URL must start with one of etcd:, memory:, sqlite: ")
    assert not (tmp_path / "data").exists()


MISPLACED = {
    "as an address": ["join", TOKEN, "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN],
    "after generate": ["token", "generate", TOKEN],
    "as a command": [TOKEN],
    "as a pin": ["join", "h:1", "--token", TOKEN, "--discovery-token-ca-cert-hash", TOKEN],
    "as a node name": ["join", "h:1", "--node-name", TOKEN + ".X"],
    "as a kubeconfig": ["token", "list", "--kubeconfig", f"/nowhere/{TOKEN}"],
    "as a ttl": ["token", "create", "--ttl", TOKEN],
}


@pytest.mark.parametrize("arguments", MISPLACED.values(), ids=MISPLACED)
def test_a_token_in_the_wrong_place_is_not_repeated(arguments: list[str], mooring: CommandLine) -> None:
    outcome = mooring(*arguments)
    assert outcome.code in (1, 2)
    assert "k3m8x1c5v0b6n4z2" not in outcome.all


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("auth", "hash-password", "correct horse"), id="to be hashed"),
        pytest.param(("login", "--server", "https://h", "--username", "jane", "correct horse"), id="of a login"),
        pytest.param(("auth", "whoami", "jane", "correct horse"), id="behind a name"),
    ],
)
def test_a_password_on_the_command_line_is_not_repeated(arguments: tuple[str, ...], mooring: CommandLine) -> None:
    outcome = mooring(*arguments)
    command = " ".join(arguments[: 1 if arguments[0] == "login" else 2])
    assert outcome.code == 2
    assert outcome.all == f"Error: there is an argument too many (see: mooring {command} --help)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token {TOKEN}.", "token q7w2e9.(redacted)."),
        ("bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl here", "bearer (redacted) here"),
        ("-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----", "(redacted)"),
        ("-----BEGIN EC PRIVATE KEY-----\nMC4C", "(redacted)"),
        (f"(K10{'ab' * 32}::server:hunter2::3)", f"(K10{'ab' * 32}::(redacted)"),
        ("K10:::hunter2 K10::node:hunter2", "K10::(redacted) K10::(redacted)"),
        (f"K10{'ab' * 32}::{TOKEN}", f"K10{'ab' * 32}::q7w2e9.(redacted)"),
        ("K10<hash of the CA>::server:<password>", "K10<hash of the CA>::server:<password>"),
        ("write abcdef.0123456789abcdef", "write abcdef.0123456789abcdef"),
        ("server.example:6443 sha256:00", "server.example:6443 sha256:00"),
        ("http://root:hunter2@[::1]:2379/a, https://t0ken@b", "http://(redacted)@[::1]:2379/a, https://(redacted)@b"),
        (
            "https://u:p@ss@a https://u:12/pass@a:1/b, https://u:pa/s@s@a",
            "https://(redacted)@a https://(redacted)@a:1/b, https://(redacted)@a",
        ),
        ("https://example.com/users/jane@example.com", "https://example.com/users/jane@example.com"),
        ("https://192.0.2.1:6443/users/jane@example.com", "https://192.0.2.1:6443/users/jane@example.com"),
    ],
    ids=[
        "a token keeps its id",
        "a JWT keeps nothing",
        "a key neither",
        "nor half a key",
        "a K10 token keeps its hash",
        "a K10 token without a hash, user or both",
        "a K10 token of a bootstrap token keeps both",
        "a form stays",
        "the documented example stays",
        "the rest stays",
        "user and password of a URL",
        "a password with an @ or a slash",
        "an address behind a path stays",
        "an address behind a port and a path stays",
    ],
)
def test_what_looks_like_a_secret_is_cut_out(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_group_without_command_shows_its_commands_and_ends_with_2(mooring: CommandLine) -> None:
    outcome = mooring("token")
    assert outcome.code == 2
    assert "create    Create a bootstrap token." in outcome.err


def test_generate_prints_one_token(mooring: CommandLine) -> None:
    first, second = mooring.done("token", "generate"), mooring.done("token", "generate")
    assert first != second
    assert first.endswith("\n")
    parse_token(first[:-1])


def test_generate_imports_nothing_heavy() -> None:
    heavy = ("asyncio", "cryptography", "rich", "httpx2", "yaml", "msgspec", "mooring.client", "mooring.api")
    program = (
        "import sys; from mooring.cli.main import run; code = run(['token', 'generate']); "
        f"print([name for name in {heavy!r} if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[] 0"


def test_no_command_of_a_client_loads_the_schema_of_every_kind() -> None:
    """Loading them takes longer than the rest of such a command."""
    of_servers = (
        "init",
        "up",
        "server",
        "controllers",
        "store",
        "snapshot",
        "config",
        "datastore",
        "secrets-encryption",
        "issuance",
    )
    names = [name for name in COMMANDS if name.split()[0] not in of_servers]
    program = (
        "import sys; from mooring.cli.commands import COMMANDS; "
        f"loaded = [name for name in {names!r} if COMMANDS[name].load() and 'mooring.api.kinds' in sys.modules]; print(loaded[:1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert {"join", "agent", "token list", "csr approve", "certs revoke"} <= set(names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, mooring: CommandLine) -> None:
    script = mooring.done("completion", shell)
    assert "_MOORING_COMPLETE" in script
    assert "mooring" in script


def test_completion_knows_commands_without_loading_them() -> None:
    outcome = process(_MOORING_COMPLETE="bash_complete", COMP_WORDS="mooring token c", COMP_CWORD="2")
    assert outcome.out == "plain,create\n"


class TestAsProcess:
    def test_the_version(self) -> None:
        assert process("--version").out == f"mooring {build.with_commit(__version__)}\n"

    def test_a_refusal_goes_to_stderr_with_1(self) -> None:
        outcome = process("token", "list", "--kubeconfig", "/nowhere")
        assert (outcome.code, outcome.out) == (1, "")
        assert "Traceback" not in outcome.err

    def test_a_wrong_line_ends_with_2(self) -> None:
        assert process("nothing").code == 2

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_a_closed_stream_is_one_that_nobody_uses(self, closed: str) -> None:
        line = f'"$0" -m mooring auth hash-password {closed}'  # it looks at its input, and prints an error
        done = subprocess.run(["sh", "-c", line, sys.executable], input=b"", capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == (b"" if "2>" in closed else b"Error: the password is empty\n")
        line = f'"$0" -m mooring version {closed}'
        assert subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, check=False).returncode == 0

    def test_nobody_reads_the_output(self) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", "mooring", "completion", "bash"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            running.stdout.close()
            assert running.stderr is not None
            assert running.stderr.read() == b""
            assert running.wait() == main.EXIT_NO_READER


@click.command("broken")
def broken() -> None:
    raise RuntimeError(f"secret {TOKEN}")


@click.command("interrupted")
def interrupted() -> None:
    raise KeyboardInterrupt


def _with(monkeypatch: pytest.MonkeyPatch, command: click.Command) -> None:
    monkeypatch.setattr(commands.TableGroup, "get_command", lambda self, ctx, name: command)


def test_a_fault_of_our_own_is_one_line_without_its_message(
    monkeypatch: pytest.MonkeyPatch, mooring: CommandLine
) -> None:
    _with(monkeypatch, broken)
    outcome = mooring("init")
    assert outcome.code == 70
    assert outcome.err == (
        "Error: a fault of mooring itself (RuntimeError); set MOORING_DEBUG=1 to see where, and report it\n"
    )


def test_debugging_shows_the_fault(monkeypatch: pytest.MonkeyPatch, mooring: CommandLine) -> None:
    _with(monkeypatch, broken)
    monkeypatch.setenv("MOORING_DEBUG", "1")
    with pytest.raises(RuntimeError):
        mooring("init")


def test_an_interrupt_ends_with_130_and_says_nothing(monkeypatch: pytest.MonkeyPatch, mooring: CommandLine) -> None:
    _with(monkeypatch, interrupted)
    outcome = mooring("init")
    assert outcome.code == 130
    assert outcome.err.strip() == ""


@pytest.mark.parametrize(
    "arguments", [("csr", "show"), ("csr", "approve"), ("csr", "deny"), ("serviceaccount", "token")]
)
def test_a_name_with_a_slash_ends_with_2(arguments: tuple[str, ...], mooring: CommandLine, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(
        '{"kind": "Config", "apiVersion": "v1", "current-context": "x", '
        '"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "users": [{"name": "x", "user": {}}], '
        '"clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}]}'
    )
    outcome = mooring(*arguments, "../secrets", "--kubeconfig", str(kubeconfig))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith(' can be called "../secrets"\n')


def typed_parameters() -> list[tuple[str, str]]:
    """Every flag whose values have a form: its command, and the flag."""
    return [
        (path, one.opts[0])
        for path, entry in COMMANDS.items()
        for one in entry.load().params
        if isinstance(one, click.Option)
        and not one.is_flag
        and not one.count
        and not isinstance(one.type, click.types.StringParamType | ObjectName)
    ]


@each_row("path, flag", typed_parameters, " ".join)
def test_a_value_of_another_form_ends_with_2(path: str, flag: str, mooring: CommandLine) -> None:
    outcome = mooring(*path.split(), f"{flag}=@@")
    assert outcome.code == 2, outcome.all
    assert outcome.out == ""
    assert f"(see: mooring {path} --help)" in outcome.err


@each_row("path", COMMANDS)
def test_an_unknown_flag_and_a_flag_without_its_value_end_with_2(path: str, mooring: CommandLine) -> None:
    wrong = [["--no-such-flag"]]
    wrong += [
        [one.opts[0]]
        for one in COMMANDS[path].load().params
        if isinstance(one, click.Option) and not one.is_flag and not one.count and one.flag_value is None
    ]
    for flags in wrong:
        outcome = mooring(*path.split(), *flags)
        assert (outcome.code, outcome.out) == (2, ""), flags
        assert outcome.err.startswith("Error: ")


@each_row("path", COMMANDS)
def test_an_argument_too_many_or_too_few_ends_with_2(path: str, mooring: CommandLine) -> None:
    arguments = [one for one in COMMANDS[path].load().params if isinstance(one, click.Argument)]
    if all(one.nargs == 1 for one in arguments):
        outcome = mooring(*path.split(), *(["x"] * (len(arguments) + 1)))
        assert (outcome.code, outcome.out) == (2, "")
    if any(one.required for one in arguments):
        outcome = mooring(*path.split())
        assert (outcome.code, outcome.out) == (2, "")


def test_a_wrong_value_in_the_file_of_a_server_is_no_wrong_command_line(mooring: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text('bind-address: "localhost"\nstorage: "etcd:x"\n')
    outcome = mooring("server", "--config", str(file))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith('Error: bind-address: "localhost" is not an IP address')
    assert mooring("server", "--config", str(file), "--bind-address", "127.0.0.1").code == 1
    assert mooring("server", "--config", str(file), "--bind-address", "here").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("server", "--data-dir"), "Option '--data-dir' requires an argument (see: mooring server --help)"),
        (("ca", "show", "--data-dir"), "Option '--data-dir' requires an argument (see: mooring ca show --help)"),
        (("--data-dir", "x", "token", "list"), "before the command: flags of a command stand behind it (see: mooring --help)"),
        (("token", "--data-dir", "x", "list"), "flags of a command stand behind it (see: mooring token --help)"),
        (("server", "--secure-port", "abc"), "'--secure-port': \"abc\" is not a number from 0 to 65535 (see: mooring server"),
        (("server", "--secure-port", "70000"), "70000 is not in the range 0<=x<=65535"),
        (("server", "--control-plane-endpoint", "https://a.example:6443"), "is a URL; leave out https:// (see: mooring server"),
        (("token", "create", "--allow-cidr", "10.0.0.1/8"), "10.0.0.0/8 is meant"),
        (("token", "list", "--kubeconfig", "/etc/hostname"), "/etc/hostname: this is not a kubeconfig"),
        (("ca", "show", "--data-dir", "/nonexistent/d"), "/nonexistent/d is not there: this command reads the data directory"),
        (("snapshot", "list", "--data-dir", "/nonexistent/d"), "check the path: this command reads the data dir"),
        (("token", "rotate", "--data-dir", "/nonexistent/d"), "this command reads the store of a server, and no kubeconfig"),
    ],
)  # fmt: skip
def test_an_error_says_what_to_write_instead(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
