"""`mooring serviceaccount token` against a real server.

Source: docs/protocol/service-account-tokens.md#tokenrequest.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from mooring.pki.jwt.token import decode_unverified
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]

SPACE = "robots"
POD = {"spec": {"containers": [{"name": "c", "image": "x"}], "serviceAccountName": "robot"}}
COMMAND = ("serviceaccount", "token")


@pytest.fixture
def uids(live_server: LiveServer) -> dict[str, str]:
    """Return the uids of the objects that the tokens are bound to."""
    return live_server.once(make_objects)


def make_objects(server: LiveServer) -> dict[str, str]:
    async def make(client: Any) -> dict[str, str]:
        await client.create("namespaces", {"metadata": {"name": SPACE}})
        made = {}
        for plural, obj in (
            ("serviceaccounts", {"metadata": {"name": "robot"}}),
            ("secrets", {"metadata": {"name": "s"}}),
            ("pods", {"metadata": {"name": "p"}, **POD}),
        ):
            made[plural] = (await client.create(plural, obj, SPACE))["metadata"]["uid"]
        made["nodes"] = (await client.create("nodes", {"metadata": {"name": "of-tokens"}}))["metadata"]["uid"]
        return made

    return server.run(make)


@pytest.fixture
def admin(
    live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, uids: dict[str, str]
) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def claims(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    return decode_unverified(text.removesuffix("\n"))[1]


def test_the_token_alone_is_printed(admin: CommandLine) -> None:
    made = claims(admin.done(*COMMAND, "robot", "-n", SPACE))
    assert made["sub"] == "system:serviceaccount:robots:robot"
    assert made["exp"] - made["iat"] == 3600


def test_the_namespace_is_the_contexts(admin: CommandLine) -> None:
    assert claims(admin.done(*COMMAND, "default"))["sub"] == "system:serviceaccount:default:default"


def test_audiences_and_duration(admin: CommandLine) -> None:
    made = claims(
        admin.done(*COMMAND, "robot", "-n", SPACE, "--audience", "a,b", "--audience", "c", "--duration", "20m")
    )
    assert made["aud"] == ["a,b", "c"]
    assert made["exp"] - made["iat"] == 1200


@pytest.mark.parametrize(
    ("kind", "plural", "name"), [("Pod", "pods", "p"), ("Secret", "secrets", "s"), ("Node", "nodes", "of-tokens")]
)
@pytest.mark.parametrize("said", [True, False], ids=["with its uid", "without"])
def test_a_token_that_ends_with_an_object(
    admin: CommandLine, uids: dict[str, str], kind: str, plural: str, name: str, said: bool
) -> None:
    uid = ("--bound-object-uid", uids[plural]) if said else ()
    made = claims(
        admin.done(*COMMAND, "robot", "-n", SPACE, "--bound-object-kind", kind, "--bound-object-name", name, *uid)
    )
    assert made["kubernetes.io"][kind.lower()] == {"name": name, "uid": uids[plural]}


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_whole_answer(admin: CommandLine, form: str, read: Any) -> None:
    found = read(admin.done(*COMMAND, "robot", "-n", SPACE, "-o", form))
    assert found["kind"] == "TokenRequest"
    assert found["metadata"]["name"] == "robot"
    assert set(found["status"]) == {"token", "expirationTimestamp"}


def test_a_life_that_was_shortened_is_told(admin: CommandLine) -> None:
    outcome = admin(*COMMAND, "robot", "-n", SPACE, "--duration", "9000h")
    assert outcome.code == 0
    assert outcome.err == "The server shortened the life of the token: it is 8760h0m0s, not 9000h0m0s\n"
    assert claims(outcome.out)["exp"] - claims(outcome.out)["iat"] == 365 * 86400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--duration", "-1s"), "--duration must be a positive number of whole seconds"),
        (("--duration", "1.5s"), "--duration must be a positive number of whole seconds"),
        (("--bound-object-kind", "Pod"), "--bound-object-name is needed with --bound-object-kind"),
        (("--bound-object-kind", "Job", "--bound-object-name", "j"), "'Job' is not one of"),
        (("--bound-object-name", "p"), "--bound-object-name is only of use with --bound-object-kind"),
        (("--bound-object-uid", "u"), "--bound-object-uid is only of use with --bound-object-kind"),
        (("--duration", "5m"), "may not specify a duration less than 10 minutes"),
        (("--bound-object-kind", "Pod", "--bound-object-name", "x"), 'pods "x" not found'),
        (
            ("--bound-object-kind", "Pod", "--bound-object-name", "p", "--bound-object-uid", "u"),
            "the UID in the bound object reference (u) does not match the UID in record",
        ),
    ],
    ids=" ".join,
)
def test_what_cannot_be_issued_is_one_line(admin: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    outcome = admin(*COMMAND, "robot", "-n", SPACE, *arguments)
    assert outcome.code != 0
    assert outcome.out == ""
    assert message in outcome.err


def test_an_account_that_is_not_there(admin: CommandLine) -> None:
    outcome = admin(*COMMAND, "nobody", "-n", SPACE)
    assert (outcome.code, outcome.out) == (1, "")
    assert 'serviceaccounts "nobody" not found' in outcome.err
