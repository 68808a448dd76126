"""Equal work of refusals: an unknown id and a wrong secret take the same operations.

Rules kept here: no clock is read. The counted operations depend on secrets (hashes, HMACs, decodings, comparisons, signature
checks) or look objects up; over many guesses, both kinds of refusal must have the same distribution.
"""

from __future__ import annotations

import ast
import base64
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from mooring.api.view import FixedView, View
from mooring.authn.bootstraptoken import BootstrapTokenAuthenticator
from mooring.authn.credentials import Authenticator, Basic, Credentials, bearer
from mooring.authn.lastuses import LastUses
from mooring.authn.passwordfile import PasswordFileAuthenticator
from mooring.authn.passwordhash import PasswordHash
from mooring.authn.serviceaccount import LegacyServiceAccountAuthenticator
from mooring.authn.tokenfile import TokenFileAuthenticator
from mooring.authn.verdict import Accepted, Deferred
from mooring.authn.verdictcache import VerdictCache
from mooring.pki.jwt.keyset import KeySet, key_set_of
from mooring.pki.jwt.serviceaccount import LegacyToken
from mooring.pki.jwt.token import TokenSigner
from mooring.pki.keys import generate_key
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = bytes(32)
GUESSES = 40
SOURCES = sorted((Path(__file__).parents[2] / "src/mooring").rglob("*.py"))
COUNTED = frozenset(
    (
        "compare_digest",
        "hmac_digest",
        "openssl_sha256",
        "sha256",
        "scrypt",
        "derive",
        "a2b_base64",
        "matches",
        "_verifies",
    )
)

Ask = Callable[[Credentials], object]
Guess = Callable[[Random], Credentials]


def operations(ask: Ask, credentials: Credentials) -> tuple[tuple[str, int], ...]:
    """Count each operation for these credentials; a look-up in a view counts as `get`."""
    counted: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in COUNTED:
            counted[argument.__name__] += 1
        if event == "call":
            name = frame.f_code.co_name
            view = name == "get" and isinstance(frame.f_locals.get("self"), FixedView)
            if name in COUNTED or view:
                counted[name] += 1

    sys.setprofile(seen)
    try:
        verdict = ask(credentials)
    finally:
        sys.setprofile(None)
    assert not isinstance(verdict, Accepted)
    return tuple(sorted(counted.items()))


def authenticating(authenticator: Authenticator, views: dict[str, View]) -> Ask:
    def ask(credentials: Credentials) -> object:
        verdict = authenticator.authenticate(credentials, views, NOW, ("api",))
        return verdict.compute() if isinstance(verdict, Deferred) and verdict.compute else verdict

    return ask


def letters(random: Random, number: int) -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=number))


def bootstrap() -> tuple[Ask, Guess, Guess]:
    held = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    secret = {
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in held.items()},
    }
    ask = authenticating(BootstrapTokenAuthenticator(LastUses()), {"secrets": FixedView([secret])})
    return (
        ask,
        lambda random: Credentials(bearer=bearer(f"{letters(random, 6)}.{letters(random, 16)}")),
        lambda random: Credentials(bearer=bearer(f"abcdef.{letters(random, 16)}")),
    )


def token_file() -> tuple[Ask, Guess, Guess]:
    authenticator = TokenFileAuthenticator(KEY)
    authenticator.replace(b"0123456789abcdef,jane,1\n")
    return (
        authenticating(authenticator, {}),
        lambda random: Credentials(bearer=bearer(letters(random, 16))),
        lambda random: Credentials(bearer=bearer("01234567" + letters(random, 8))),
    )


def passwords(*rows: str) -> Callable[[], tuple[Ask, Guess, Guess]]:
    def made() -> tuple[Ask, Guess, Guess]:
        authenticator = PasswordFileAuthenticator(KEY, VerdictCache(KEY, timedelta(0)))
        authenticator.replace("\n".join(rows).encode())
        return (
            authenticating(authenticator, {}),
            lambda random: Credentials(basic=Basic(letters(random, 4), Secret(letters(random, 9)))),
            lambda random: Credentials(basic=Basic(random.choice(("jane", "joey")), Secret(letters(random, 9)))),
        )

    return made


def hashed() -> str:
    one = PasswordHash(10, 1, 1, bytes(8), bytes(16))
    return f'"{PasswordHash(10, 1, 1, bytes(8), one.derive(Secret("hunter2"))).text()}"'


def legacy(signer: TokenSigner, keys: KeySet) -> Callable[[], tuple[Ask, Guess, Guess]]:
    """Return guesses for a missing Secret, and for one that holds another token."""

    def made() -> tuple[Ask, Guess, Guess]:
        views: dict[str, View] = {
            "serviceaccounts": FixedView([{"metadata": {"name": "robot", "namespace": "ns", "uid": "u"}}]),
            "secrets": FixedView(
                [{"metadata": {"name": "old", "namespace": "ns", "uid": "s"}, "data": {"token": "b3RoZXI="}}]
            ),
        }
        ask = authenticating(LegacyServiceAccountAuthenticator(keys, ("api",), LastUses()), views)

        def guess(secret: Callable[[Random], str]) -> Guess:
            return lambda random: Credentials(
                bearer=bearer(signer.sign(LegacyToken("ns", secret(random), "robot", "u").claims()))
            )

        return ask, guess(lambda random: letters(random, 3) + "x"), guess(lambda random: "old")

    return made


OURS = TokenSigner(generate_key(), "https://ours")
STRANGER = TokenSigner(generate_key(), "https://ours")
KEYS = key_set_of([OURS.public_key])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(bootstrap, {"compare_digest": 1, "a2b_base64": 1, "get": 1}, id="bootstrap tokens"),
        pytest.param(token_file, {"compare_digest": 1, "hmac_digest": 1}, id="the token file"),
        pytest.param(
            passwords("hunter2,jane,1", "hunter3,joey,2"),
            {"compare_digest": 1, "hmac_digest": 1},
            id="a file of plain passwords",
        ),
        pytest.param(
            passwords(f"{hashed()},jane,1", f"{hashed()},joey,2"),
            {"compare_digest": 2, "scrypt": 1},
            id="a file of hashed passwords",
        ),
        pytest.param(
            passwords(f"{hashed()},jane,1", "hunter3,joey,2"),
            {"compare_digest": 2, "scrypt": 1},
            id="a file of both kinds of passwords",
        ),
        pytest.param(
            legacy(OURS, KEYS),
            {"compare_digest": 1, "_verifies": 1},
            id="tokens of Secrets, whose signature is good",
        ),
        pytest.param(legacy(STRANGER, KEYS), {"get": 0, "compare_digest": 0}, id="forged tokens of Secrets"),
    ],
)
def test_an_unknown_id_and_a_wrong_secret_are_the_same_operations(
    make: Callable[[], tuple[Ask, Guess, Guess]], expected: dict[str, int]
) -> None:
    ask, unknown, wrong = make()
    ask(unknown(Random(0)))  # warms caches of the process
    ask(wrong(Random(0)))
    found = [
        Counter(operations(ask, guess(random)) for random in (Random(number) for number in range(1, GUESSES)))
        for guess in (unknown, wrong)
    ]
    assert found[0] == found[1]
    (costs,) = found[0]
    assert {name: dict(costs).get(name, 0) for name in expected} == expected


def compared_in_variable_time(tree: ast.AST) -> Iterator[int]:
    """Yield lines that compare a revealed secret or a digest with == or !=, or look it up with `in`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for one in node.ops
        ):
            for side in (node.left, *node.comparators):
                called = side.func if isinstance(side, ast.Call) else None
                name = called.attr if isinstance(called, ast.Attribute) else getattr(side, "attr", "")
                if name in ("reveal", "derive", "hexdigest", "expected"):
                    yield node.lineno


ALLOWED = {
    "passwordfile": ['b"\\0" not in password.reveal()'],
    "custom": ["secret.reveal()"],
    "sharedkeys": ["password.reveal() not in body"],
    "k3s": ["form.reveal() in comment", 'b"\\0" not in password.reveal()', "token.reveal() not in comment"],
    "datastore": ["read_limited(path) != content.reveal()"],
}
"""Comparisons that reveal nothing to a guesser: the same party supplies both sides, or no other one sees the time they take."""


def test_nothing_secret_is_compared_in_variable_time() -> None:
    found = {}
    for path in SOURCES:
        lines = path.read_text().splitlines()
        shown = [lines[number - 1] for number in compared_in_variable_time(ast.parse("\n".join(lines)))]
        if left := [
            line
            for line in shown
            if not any(one in line for one in (*ALLOWED.get(path.parent.name, ()), *ALLOWED.get(path.stem, ())))
        ]:
            found[str(path)] = left
    assert found == {}


def test_the_search_would_find_a_comparison_in_variable_time() -> None:
    for line in (
        "a.reveal() == b",
        "if b != token.reveal(): pass",
        "a.reveal() in known",
        "hashed.derive(p) == x.expected",
    ):
        assert set(compared_in_variable_time(ast.parse(line))) == {1}, line
