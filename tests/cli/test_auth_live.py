"""`mooring auth explain` and `mooring auth whoami` against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mooring.cli.auth import add_meanings, print_explanation, request_explanation, review, rows, user_of
from mooring.client.cluster import ClusterClient
from mooring.errors import ForbiddenError, MooringError, NotFoundError, PeerError
from mooring.trust.discovery.errors import NotKubernetesError
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server
from tests.support.testca import ThrowawayCA

__all__ = ["live_server", "mooring"]
UNKNOWN = "abcdef.0123456789abcdef"


@pytest.fixture
def auth(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def asked(server: LiveServer, token: str = "", path: str = "/api/v1/secrets") -> tuple[int, str]:
    """Return status and Audit-Id of a request."""
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    connection = http.client.HTTPSConnection(server.endpoint, context=context, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Audit-Id"]
    finally:
        connection.close()


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put text on standard input."""
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stdin)


def test_a_refusal_is_explained_under_the_id_that_the_caller_got(live_server: LiveServer, auth: CommandLine) -> None:
    status, audit_id = asked(live_server, UNKNOWN)
    assert status == 401
    told = auth.done("auth", "explain", audit_id)
    assert "Request:  GET /api/v1/secrets, from 127.0.0.1, at 20" in told
    assert "Answer:   401 Unauthorized\nBecause:  unknown-id\n" in told
    cells = [" ".join(line.split()) for line in told.splitlines()]
    assert "AUTHENTICATOR VERDICT REASON DETAIL" in cells
    assert "client-certificate not mine" in cells
    assert (
        "bootstrap-token refused unknown-id token id abcdef: there is no Secret kube-system/bootstrap-token-abcdef"
        in cells
    )
    assert "\nunknown-id\n  There is no bootstrap token of this id" in told
    assert "mooring token create --print-join-command" in told
    assert UNKNOWN not in told


def test_machines_read_the_same_and_what_is_known_of_each_code(live_server: LiveServer, auth: CommandLine) -> None:
    _, audit_id = asked(live_server, UNKNOWN)
    told = json.loads(auth.done("auth", "explain", audit_id, "-o", "json"))
    assert (told["kind"], told["auditID"], told["code"], told["why"]) == ("Refusal", audit_id, 401, "unknown-id")
    step = next(one for one in told["authenticators"] if one["name"] == "bootstrap-token")
    assert (step["reason"], step["meaning"], step["remedy"]) == ("unknown-id", told["meaning"], told["remedy"])
    assert yaml.safe_load(auth.done("auth", "explain", audit_id, "-o", "yaml")) == told


def test_what_was_forbidden_says_who_asked_and_how_to_grant_it(live_server: LiveServer, auth: CommandLine) -> None:
    status, audit_id = asked(live_server)
    assert status == 403
    told = auth.done("auth", "explain", audit_id)
    assert (
        "Answer:   403 Forbidden\n"
        'Because:  secrets is forbidden: User "system:anonymous" cannot list resource "secrets" in API group "" at the'
    ) in told
    assert "User:     system:anonymous\nGroups:   system:unauthenticated\n" in told
    assert "kubectl auth can-i --list" in told


def test_an_id_that_nobody_was_refused_under_is_one_line_and_1(auth: CommandLine) -> None:
    outcome = auth("auth", "explain", "no/such?id")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith('Error: no refusal is kept under "no/such?id": each server keeps its own newest')
    assert outcome.err.count("\n") == 1


def test_a_token_that_would_be_accepted_is_0(live_server: LiveServer, auth: CommandLine, tmp_path: Path) -> None:
    token = live_server.create_token(signed=False)
    file = tmp_path / "token"
    file.write_text(token.reveal() + "\n")
    told = auth.done("auth", "explain", "--token-file", str(file))
    assert f"Decision: accepted\nUser:     system:bootstrap:{token.id}\n" in told
    assert "system:bootstrappers:kubeadm:default-node-token, system:authenticated\n" in told
    assert told.splitlines()[-1].split() == ["bootstrap-token", "accepted", f"system:bootstrap:{token.id}"]


def test_a_token_that_would_be_refused_is_1_and_is_not_repeated(
    auth: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, f"{UNKNOWN}\n")
    outcome = auth("auth", "explain", "--token-file", "-")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("Decision: refused: unknown-id\n\nAUTHENTICATOR ")
    assert UNKNOWN not in outcome.all
    assert UNKNOWN[:6] in outcome.out


def test_a_certificate_of_a_stranger_is_told_with_its_issuer(auth: CommandLine, tmp_path: Path) -> None:
    certificate, _ = ThrowawayCA("somebody else").client("jane").write(tmp_path, "jane")
    outcome = auth("auth", "explain", "--certificate-file", str(certificate))
    assert outcome.code == 1
    assert "unknown-ca   the certificate was signed by an unknown authority: issuer CN=somebody else\n" in outcome.out
    assert "add the CA to --client-ca-file" in outcome.out


def test_a_certificate_of_the_cluster_is_its_user(live_server: LiveServer, auth: CommandLine, tmp_path: Path) -> None:
    import base64

    user = yaml.safe_load(live_server.kubeconfig.read_text())["users"][0]["user"]
    file = tmp_path / "admin.crt"
    file.write_bytes(base64.b64decode(user["client-certificate-data"]))
    told = json.loads(auth.done("auth", "explain", "--certificate-file", str(file), "-o", "json"))
    assert (told["authenticated"], told["user"]["username"]) == (True, "kubernetes-admin")


def test_a_password_comes_from_standard_input(auth: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "hunter2\n")
    outcome = auth("auth", "explain", "--username", "jane")
    assert outcome.code == 1
    assert outcome.out.startswith("Decision: refused: unknown-password\n")
    assert "hunter2" not in outcome.all


def test_on_a_terminal_the_password_is_asked_for_without_echo(
    auth: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_how: dict[str, Any] = {}

    def prompt(text: str, **how: Any) -> str:
        asked_how.update(how, text=text)
        return "hunter2"

    monkeypatch.setattr("mooring.cli.auth.sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(click, "prompt", prompt)
    assert auth("auth", "explain", "--username", "jane").code == 1
    assert (asked_how["text"], asked_how["hide_input"], asked_how["err"]) == ("Password", True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        pytest.param((), 2, "give an audit id, or one of", id="nothing"),
        pytest.param(("an-id", "--token-file", "f"), 2, "give an audit id, or one of", id="two questions"),
        pytest.param(
            ("q7w2e9.k3m8x1c5v0b6n4z2",), 2, "is no audit id; a token is read from a file", id="a bootstrap token"
        ),
        pytest.param(
            ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",), 2, "is no audit id; a token is", id="a signed token"
        ),
        pytest.param(("31ada4fd" * 9,), 2, "is no audit id; a token is read from a file", id="another token"),
        pytest.param(("--token-file", "/nowhere/token"), 1, "/nowhere/token cannot be read", id="no file"),
        pytest.param(("--token-file", "-"), 1, "standard input is empty; it should hold the token", id="empty input"),
        pytest.param(
            ("--username", "jane"), 1, "standard input is empty; it should hold the password", id="no password"
        ),
    ],
)
def test_what_cannot_be_asked(
    auth: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, told: str
) -> None:
    typed(monkeypatch, "")
    outcome = auth("auth", "explain", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert told in outcome.err
    assert not any(one in outcome.err for one in arguments if "is no audit id" in told)


def test_a_password_that_is_not_utf8_is_not_replaced_by_another(
    auth: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"p\xfcssword\n")))
    outcome = auth("auth", "explain", "--username", "jane")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the password on standard input is not UTF-8" in outcome.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"\xff\xfe", "is not text; is it the token?", id="not text"),
        pytest.param(b" \n", "is empty; it should hold the token", id="blanks"),
        pytest.param(b"x" * 300_000, "is larger than 262144 bytes", id="too much"),
    ],
)
def test_a_file_that_holds_no_token(auth: CommandLine, tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    outcome = auth("auth", "explain", "--token-file", str(file))
    assert (outcome.code, outcome.out) == (1, "")
    assert told in outcome.err


def test_too_much_on_standard_input_is_not_read(auth: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "x" * 300_000)
    assert "standard input is longer than 262144 bytes" in auth("auth", "explain", "--token-file", "-").err


def test_whoami_is_kubectls_table(live_server: LiveServer, auth: CommandLine) -> None:
    lines = auth.done("auth", "whoami").splitlines()
    assert [line.split("   ")[0].strip() for line in lines] == [
        "ATTRIBUTE",
        "Username",
        "Groups",
        "Extra: authentication.kubernetes.io/credential-id",
    ]
    assert lines[1].endswith("   kubernetes-admin")
    assert lines[2].endswith("   [kubeadm:cluster-admins system:authenticated]")
    assert "[X509SHA256=" in lines[3]
    found = json.loads(auth.done("auth", "whoami", "-o", "json"))
    assert (found["kind"], found["apiVersion"]) == ("SelfSubjectReview", "authentication.k8s.io/v1")
    assert found["status"]["userInfo"]["username"] == "kubernetes-admin"
    assert yaml.safe_load(auth.done("auth", "whoami", "-o", "yaml"))["kind"] == "SelfSubjectReview"


class Served:
    """A server that serves one version of SelfSubjectReview, or none."""

    def __init__(self, version: str) -> None:
        self.path = f"/apis/authentication.k8s.io/{version}/selfsubjectreviews"

    async def post_path(self, path: str, obj: Any) -> Any:
        if path != self.path:
            raise NotFoundError("the server could not find the requested resource")
        return obj


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_older_servers_are_asked_in_the_version_they_serve(version: str) -> None:
    found = asyncio.run(review(cast(ClusterClient, Served(version))))
    assert found["apiVersion"] == f"authentication.k8s.io/{version}"


def test_a_server_without_the_review_is_an_error_in_words() -> None:
    with pytest.raises(PeerError, match="does not tell callers who they are"):
        asyncio.run(review(cast(ClusterClient, Served("v0"))))


def test_every_attribute_that_is_there_is_printed() -> None:
    user = {"username": "jane", "uid": "42", "groups": ["a", "b"], "extra": {"y": ["2"], "x": ["1", "3"]}}
    assert list(rows(user)) == [
        ("Username", "jane"),
        ("UID", "42"),
        ("Groups", "[a b]"),
        ("Extra: x", "[1 3]"),
        ("Extra: y", "[2]"),
    ]
    assert list(rows({})) == [("Username", "")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STEP = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "verdict", "reason", "detail"), JSON))
TOLD = st.fixed_dictionaries(
    {"kind": st.sampled_from(["Refusal", "Explanation"]), "authenticators": st.lists(STEP | JSON, max_size=3)},
    optional=dict.fromkeys(("user", "why", "code", "reason", "path", "time", "authenticated"), JSON),
)


@given(TOLD)
def test_whatever_a_server_says_it_is_printed_or_refused_in_words(told: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(PeerError):
        print_explanation(add_meanings(told))


@given(JSON)
def test_whoever_a_server_takes_us_for_it_is_printed(user: Any) -> None:
    if isinstance(user, dict):
        labels = [label for label, _ in rows(user)]
        assert labels[0] == "Username"


@pytest.mark.parametrize(
    ("steps", "why", "codes"),
    [
        pytest.param(
            [("request-header", "refused", "proxy-name-not-allowed"), ("client-certificate", "refused", "unknown-ca")],
            "proxy-name-not-allowed",
            ["proxy-name-not-allowed"],
            id="a proxy of another name is not told to add its CA",
        ),
        pytest.param(
            [("request-header", "not-mine", "no-user-header"), ("client-certificate", "refused", "unknown-ca")],
            "no-user-header",
            ["no-user-header"],
            id="nor is one that names nobody",
        ),
        pytest.param(
            [("request-header", "refused", "unknown-ca"), ("client-certificate", "refused", "unknown-ca")],
            "unknown-ca",
            ["unknown-ca"],
            id="a stranger is, once",
        ),
        pytest.param(
            [("client-certificate", "refused", "unknown-ca"), ("token-file", "refused", "expired")],
            "expired",
            ["expired", "unknown-ca"],
            id="the reason that heads the record comes first",
        ),
        pytest.param(
            [("anonymous", "not-mine", "path-not-anonymous")],
            "path-not-anonymous",
            ["path-not-anonymous"],
            id="an anonymous request on another path",
        ),
    ],
)
def test_advice_follows_the_reason(
    steps: list[tuple[str, str, str]], why: str, codes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "kind": "Refusal",
        "why": why,
        "code": 401,
        "authenticators": [{"name": name, "verdict": verdict, "reason": reason} for name, verdict, reason in steps],
    }
    print_explanation(add_meanings(told))
    advice = capsys.readouterr().out.partition("AUTHENTICATOR")[2].splitlines()[len(steps) + 1 :]
    assert [line for line in advice if line and not line.startswith(" ")] == codes


class AnotherServer:
    """A Kubernetes API server that is not Mooring."""

    async def get_path(self, path: str) -> Any:
        raise NotFoundError("the server could not find the requested resource")

    async def post_path(self, path: str, obj: Any) -> Any:
        raise NotFoundError("the server could not find the requested resource")


@pytest.mark.parametrize("audit_id", ["an-id", ""])
def test_another_kind_of_server_is_told_apart(audit_id: str) -> None:
    with pytest.raises(PeerError, match="is it a Mooring server"):
        asyncio.run(request_explanation(cast(ClusterClient, AnotherServer()), audit_id, {}))


class Kubernetes(AnotherServer):
    """A kube-apiserver: an administrator gets a plain 404, every other user a 403."""

    server = "https://a.test:6443"

    def __init__(self, error: MooringError) -> None:
        self.error = error

    async def get_path(self, path: str) -> Any:
        if path == "/version":
            return {"gitVersion": "v1.36.2"}
        raise self.error

    async def post_path(self, path: str, obj: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("audit_id", ["an-id", ""])
@pytest.mark.parametrize(
    "error",
    [
        NotKubernetesError("asking", "status 404 without a Kubernetes Status"),
        ForbiddenError('forbidden: User "jane" cannot get path "/debug/authentication/refusals/an-id"'),
        NotFoundError("the server could not find the requested resource"),
    ],
    ids=["administrator", "anybody", "404"],
)
def test_a_kube_apiserver_is_named(audit_id: str, error: MooringError) -> None:
    with pytest.raises(PeerError) as caught:
        asyncio.run(request_explanation(cast(ClusterClient, Kubernetes(error)), audit_id, {}))
    assert str(caught.value) == (
        "https://a.test:6443 is Kubernetes v1.36.2, not Mooring: only a Mooring server explains refusals; "
        "elsewhere the log of kube-apiserver tells the reason"
    )


def test_an_address_that_guesses_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    step = {"name": "bootstrap-token", "verdict": "refused", "reason": "wrong-secret"}
    print_explanation(
        add_meanings({"kind": "Refusal", "code": 429, "why": "wrong-secret", "authenticators": [step, step]})
    )
    told = capsys.readouterr().out
    assert told.count("The id is known, and the secret part behind it is wrong.") == 1
    assert "Find out who guesses there" in told


@pytest.mark.parametrize("said", [{}, {"status": 5}, {"status": {"userInfo": []}}], ids=str)
def test_a_server_that_does_not_say_who_the_caller_is(said: Any) -> None:
    with pytest.raises(PeerError, match="did not say who the caller is"):
        user_of(said)
