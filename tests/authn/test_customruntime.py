"""Authenticators that the configuration names: found or refused at start, and asked through a whole server."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import sys
import textwrap
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.authn.host import Running
from mooring.authn.table import NAMES
from mooring.errors import ConfigError
from mooring.server.authentication.custom import RESERVED_NAMES, build
from tests.support.authnhost import AuthnHost, configured
from tests.support.serverroom import Reply, Server, connection, open_server

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
NUMBERS = itertools.count()
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module that can be imported, and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(text: str) -> str:
        name = f"guest{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return made


def start(*listed: dict[str, Any]) -> Running:
    config = configured(authenticators=listed)
    running = build(config, AuthnHost(config).host)
    assert running is not None
    return running


PLAIN = """
    MADE = []

    class Guest:
        def __init__(self, options):
            self.options = options
            MADE.append(self)
        def authenticate(self, offered):
            return None
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("class Other: ...", 'class: the module "{module}" has no Guest', id="no such class"),
        pytest.param("def Guest(options): ...", "class: Guest is no class", id="a function"),
        pytest.param("Guest = 42", "class: Guest is no class", id="a number"),
        pytest.param("class Guest: ...", "class: Guest cannot be made with one argument, the options",
                     id="a class that takes no options"),
        pytest.param("class Guest:\n    def __init__(self, url, base): ...",
                     "class: Guest cannot be made with one argument, the options", id="a class that takes options apart"),
        pytest.param("class Guest:\n    def __init__(self, options): raise ValueError(options['password'])",
                     "class: Guest raised ValueError when it was made", id="a class that fails with a secret in its text"),
        pytest.param("class Guest:\n    def __init__(self, options): raise SystemExit(options['password'])",
                     "class: Guest raised SystemExit when it was made", id="a class that would end the process"),
        pytest.param("from mooring.authn.plugin import ConfigError\n"
                     "class Guest:\n    def __init__(self, options): raise ConfigError('url: give one')",
                     "options: url: give one", id="a class that says what is wrong with its options"),
        pytest.param("class Guest:\n    def __init__(self, options): ...",
                     "class: Guest has no method authenticate that takes one argument, what was offered", id="no method"),
        pytest.param("class Guest:\n    authenticate = 42\n    def __init__(self, options): ...",
                     "class: Guest has no method authenticate that takes one argument, what was offered",
                     id="what is no method"),
        pytest.param("class Guest:\n    def __init__(self, options): ...\n    def authenticate(self, user, password): ...",
                     "class: Guest has no method authenticate that takes one argument, what was offered",
                     id="a method of another protocol"),
        pytest.param("class Guest:\n    def __init__(self, options): ...\n    async def authenticate(self): ...",
                     "class: Guest has no method authenticate that takes one argument, what was offered",
                     id="a coroutine without the argument"),
        pytest.param("class Guest:\n    def __init__(self, options): ...\n    def authenticate(self, offered): ...\n"
                     "    def close(self): ...",
                     "class: the method close of Guest is no async def without arguments", id="a close that would block"),
        pytest.param("class Guest:\n    def __init__(self, options): ...\n    def authenticate(self, offered): ...\n"
                     "    async def close(self, why): ...",
                     "class: the method close of Guest is no async def without arguments", id="a close that wants more"),
        pytest.param("import there_is_no_such_module",
                     'class: the module "{module}" needs "there_is_no_such_module", which is not installed',
                     id="a module that needs another"),
        pytest.param("import json.no_such_part", 'class: the module "{module}" needs "json.no_such_part", which is not '
                     "installed", id="a module that needs a part of another"),
        pytest.param("from mooring.authn.own import User",
                     'class: the module "{module}" imports "mooring.authn.own", which this version does not have; import from '
                     "mooring.authn.plugin, and from no other module of Mooring", id="a module of another version of Mooring"),
        pytest.param("raise ValueError('hunter2')", 'class: importing "{module}" raised ValueError', id="a module that fails"),
        pytest.param("raise ModuleNotFoundError", 'class: the module "{module}" needs a module that is not installed',
                     id="a module that lacks it does not say what"),
        pytest.param("raise SystemExit('hunter2')", 'class: importing "{module}" raised SystemExit',
                     id="a module that would end the process"),
        pytest.param("def (", 'class: importing "{module}" raised SyntaxError', id="a module that is no Python"),
    ],
)  # fmt: skip
def test_what_is_wrong_stops_the_start_in_one_line(write: Write, text: str, told: str) -> None:
    module = write(text)
    first = {"name": "first", "class": f"{write(PLAIN)}:Guest"}
    with pytest.raises(ConfigError) as raised:
        start(first, {"name": "ldap", "class": f"{module}:Guest", "options": {"password": "hunter2"}})
    assert str(raised.value) == "authenticators[1]." + told.format(module=module)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    ("location", "missing"),
    [
        pytest.param("there_is_no_such_module:Guest", "there_is_no_such_module", id="a module"),
        pytest.param("there_is.no_such_module:Guest", "there_is", id="a package"),
        pytest.param("json.no_such_part:Guest", "json.no_such_part", id="a part of one that is there"),
    ],
)
def test_a_module_that_is_not_there_is_named(location: str, missing: str) -> None:
    with pytest.raises(ConfigError) as raised:
        start({"name": "ldap", "class": location})
    assert str(raised.value) == (
        f'authenticators[0].class: there is no module "{missing}"; install it beside mooring, or name its folder in PYTHONPATH'
    )


@pytest.mark.parametrize("name", sorted(NAMES | RESERVED_NAMES))
def test_nobody_takes_the_name_of_one_of_ours(write: Write, name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        start({"name": name, "class": f"{write(PLAIN)}:Guest"})
    assert str(raised.value) == (
        f'authenticators[0].name: "{name}" is what Mooring calls one of its own; choose another'
    )


def test_a_class_that_is_not_written_in_python_is_taken_at_its_word() -> None:
    with pytest.raises(ConfigError, match="dict has no method authenticate"):
        start({"name": "odd", "class": "builtins:dict"})


def test_several_are_made_in_order_each_with_its_own_options(write: Write) -> None:
    module = write(PLAIN)
    own = start(
        {"name": "first", "class": f"{module}:Guest", "options": {"a": 1}, "deadline": timedelta(seconds=2)},
        {"name": "second", "class": f"{module}:Guest"},
    )
    assert [one.name for one in own.authenticators] == ["first", "second"]
    assert [instance.options for instance in sys.modules[module].MADE] == [{"a": 1}, {}]

    async def close() -> None:
        await own.close()

    asyncio.run(close())


DIRECTORY = """
    import asyncio
    from mooring.authn.plugin import NotMine, Rejected, User

    CLOSED, MADE = [], []

    class Guest:
        def __init__(self, options):
            MADE.append(self)
            self.asked = 0
            self.users = options["users"]
        def judged(self, offered):
            self.asked += 1
            if offered.token:
                user = offered.token.reveal().decode().removeprefix("token-of-")
                return User(user) if user in self.users else NotMine("no-such-token")
            if offered.user == "broken":
                raise SystemExit(offered.password.reveal())
            if offered.user == "root":
                return User("root", groups=["system:masters"])
            if offered.user not in self.users:
                return NotMine("unknown-user")
            if offered.password.reveal() != b"hunter2":
                return Rejected("wrong-password", f"user {offered.user}")
            return User(offered.user, uid="7", groups=["dev"], extra={"company.example/floor": ["3"]})
        async def close(self):
            CLOSED.append(self)

    class Blocking(Guest):
        def authenticate(self, offered):
            return self.judged(offered)

    class Remote(Guest):
        async def authenticate(self, offered):
            await asyncio.sleep(0)
            return self.judged(offered)
"""


def basic(user: str, password: str) -> tuple[str, str]:
    return "authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def who(server: Server, user: str, password: str = "hunter2") -> Reply:
    return await server.post(WHO, REVIEW, via=connection(), headers=[basic(user, password)])


def instance_of(module: str) -> Any:
    """Return the only instance of the classes of DIRECTORY in a module."""
    (instance,) = sys.modules[module].MADE
    return instance


def in_server_with(test: Callable[[Server], Awaitable[None]], *listed: dict[str, Any]) -> None:
    async def run() -> None:
        async with open_server(authenticators=listed) as server:
            await test(server)

    asyncio.run(run())


@pytest.mark.parametrize("form", ["Blocking", "Remote"])
def test_whom_an_authenticator_lets_in_through_a_whole_server(
    write: Write, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = write(DIRECTORY)

    async def test(server: Server) -> None:
        jane = await who(server, "jane")
        assert jane.status == 201
        assert jane.obj["status"]["userInfo"] == {
            "username": "jane",
            "uid": "7",
            "groups": ["dev", "system:authenticated"],
            "extra": {"company.example/floor": ["3"]},
        }
        refused = [
            await who(server, "jane", "wrong-hunter2"),
            await who(server, "joe"),
            await who(server, "broken"),
            await who(server, "root"),
            await who(server, "jane", ""),
        ]
        assert {reply.status for reply in refused} == {401}
        assert len({reply.body for reply in refused}) == 1, "the caller is not told why"
        assert (await who(server, "jane")).status == 201, "the server lives"
        guest = instance_of(module)
        assert guest.asked == 5, "jane is remembered, and an empty password is shown to nobody"
        await server.clock.advance(11)
        await who(server, "jane")
        assert guest.asked == 6

    with caplog.at_level(logging.DEBUG):
        in_server_with(test, {"name": "company", "class": f"{module}:{form}", "options": {"users": ["jane"]}})
    assert "hunter2" not in caplog.text
    for reason in (
        "company: wrong-password (user jane)",
        "company: failed (it raised SystemExit)",
        "company: reserved-name (a group begins with system:)",
        "basic: unknown-password",
    ):
        assert reason in caplog.text
    assert len(__import__(module).CLOSED) == 1


NEGOTIATING = """
    from mooring.authn.plugin import NotMine, Rejected, User

    class Tickets:
        schemes = ("Negotiate", "Digest")
        def __init__(self, options):
            self.used = set()
        def authenticate(self, offered):
            ticket = offered.credential.reveal().decode()
            if offered.scheme != "negotiate":
                return NotMine()
            if ticket in self.used:
                return Rejected("replayed")
            self.used.add(ticket)
            return User(ticket.removeprefix("ticket-of-")) if ticket.startswith("ticket-of-") else NotMine()

    class Tokens:
        schemes = ["bearer"]
        def __init__(self, options):
            pass
        def authenticate(self, offered):
            return User("token") if offered.token.matches(b"good") else NotMine()
"""


def test_credentials_of_a_scheme_that_a_class_names_reach_it_and_no_other(write: Write) -> None:
    module = write(NEGOTIATING)

    async def by(server: Server, authorization: str, *more: tuple[str, str]) -> Reply:
        headers = [("Authorization", authorization), *more]
        return await server.post(WHO, REVIEW, via=connection(), headers=headers)

    async def test(server: Server) -> None:
        good = await by(server, "Negotiate ticket-of-jane")
        assert (good.status, good.obj["status"]["userInfo"]["username"]) == (201, "jane")
        assert (await by(server, "Bearer good")).status == 201
        challenged = ["Digest", "Negotiate"]
        for refused in ("Negotiate ticket-of-jane", "Negotiate", "Negotiate x", "Digest ticket-of-joe", "Bearer bad"):
            reply = await by(server, refused)
            assert reply.status == 401, refused
            assert [value for name, value in reply.every_header if name == "www-authenticate"] == challenged
        browser = await by(server, "Bearer bad", ("Sec-Fetch-Site", "cross-site"))
        assert "www-authenticate" not in browser.headers
        ignored = await by(server, "Basic amFuZTp4")
        assert ignored.status == 403, "no class takes passwords, so that Basic offers nothing, as for kube-apiserver"

    in_server_with(
        test, {"name": "tokens", "class": f"{module}:Tokens"}, {"name": "tickets", "class": f"{module}:Tickets"}
    )


@pytest.mark.parametrize(
    "schemes", ["()", '"Negotiate"', "(5,)", '("",)', '("two words",)', "None", '("a",) * 9'], ids=str
)
def test_schemes_that_are_none_stop_the_start(write: Write, schemes: str) -> None:
    module = write(
        f"class Guest:\n    schemes = {schemes}\n"
        "    def __init__(self, options): ...\n    def authenticate(self, offered): ...\n"
    )
    with pytest.raises(ConfigError) as raised:
        start({"name": "x", "class": f"{module}:Guest"})
    told = 'schemes of Guest is no tuple of one to 8 names, such as ("Negotiate",)'
    assert str(raised.value) == f"authenticators[0].class: {told}"


def test_a_token_review_asks_too(write: Write) -> None:
    async def test(server: Server) -> None:
        review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}
        for token, authenticated in (("token-of-jane", True), ("token-of-joe", False)):
            status = (await server.post(TOKEN_REVIEWS, {**review, "spec": {"token": token}})).obj["status"]
            assert status.get("authenticated", False) is authenticated
            assert status["user"].get("username") == ("jane" if authenticated else None)
        reply = await server.post(WHO, REVIEW, token="token-of-jane")
        assert reply.obj["status"]["userInfo"]["username"] == "jane"

    in_server_with(test, {"name": "company", "class": f"{write(DIRECTORY)}:Remote", "options": {"users": ["jane"]}})


def test_those_who_offer_the_same_at_once_share_one_answer(write: Write) -> None:
    async def test(server: Server) -> None:
        offered = [("jane", "hunter2")] * 10 + [("joe", "hunter2"), ("jane", "wrong")] * 5
        replies = await asyncio.gather(*(who(server, user, password) for user, password in offered))
        assert [reply.status for reply in replies] == [201] * 10 + [401, 401] * 5
        guest = instance_of(module)
        assert guest.asked == 3

    module = write(DIRECTORY)
    options = {"users": ["jane"]}
    in_server_with(
        test, {"name": "company", "class": f"{module}:Remote", "options": options, "cache-ttl": timedelta(0)}
    )


def test_the_first_that_fails_does_not_keep_the_second_from_being_asked(write: Write) -> None:
    failing = write("class Guest:\n    def __init__(self, options): ...\n    def authenticate(self, offered): 1 / 0")

    async def test(server: Server) -> None:
        assert (await who(server, "jane")).status == 201

    in_server_with(
        test,
        {"name": "failing", "class": f"{failing}:Guest"},
        {"name": "company", "class": f"{write(DIRECTORY)}:Blocking", "options": {"users": ["jane"]}},
    )


def test_what_others_know_is_not_shown_to_it(write: Write) -> None:
    module = write(DIRECTORY)

    async def test(server: Server) -> None:
        guest = instance_of(module)
        token = await server.bootstrap_token()
        assert (await server.get("/version", token=token)).status == 200
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        assert (await server.get("/version", token=wrong)).status == 401
        assert (await server.get("/version")).status == 200
        assert (await server.get("/version", via=connection())).status == 200
        assert guest.asked == 0

    in_server_with(test, {"name": "company", "class": f"{module}:Blocking", "options": {"users": []}})
