"""The table of reason codes is closed: every code that the program gives has a row, and no row is without a code."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import mooring
from mooring.authn.reasons import reasons
from mooring.pki.errors import PeerCertificateError, TokenRefusedError
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.k3s import acceptedtokens, identity
from tests.support.rows import each_row

ROOT = Path(mooring.__file__).parent
PLACES = (*(path for room in ("authn", "server") for path in sorted((ROOT / room).rglob("*.py"))),)
GIVERS = frozenset({"NotMine", "Rejected", "ClaimsRefusedError", "TokenRefusedError", "Offered", "Refusal"})
"""What is called with a code."""


def given(trees: Iterable[ast.Module]) -> Iterator[str]:
    """The codes in files: texts that `GIVERS` are called with, and every constant made by `Code` that is used by its name."""
    names = Counter[str]()
    constants: list[tuple[str, str]] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                names[name] += 1
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="Code"), args=[ast.Constant(value)])
            ):
                constants.append((name, str(value)))
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value), *_]) if name in GIVERS and value:
                yield str(value)
    yield from (value for name, value in constants if names[name])


NOT_CODES = frozenset({"may-speak"})
"""Verdict between two functions of one file."""


def every_code() -> dict[str, str]:
    """Code → a place that gives it."""
    found = dict.fromkeys(given(ast.parse(path.read_text()) for path in PLACES), "authn or server")
    found |= dict.fromkeys(PeerCertificateError.CODES, "pki/x509/verify.py")
    found |= dict.fromkeys(TokenRefusedError.CODES, "pki/jwt/token.py")
    found |= dict.fromkeys(set(tokensecret.REASONS) - {tokensecret.OK}, "trust/bootstraptoken/tokensecret.py")
    judgements = (acceptedtokens.WRONG, acceptedtokens.ROTATED, acceptedtokens.ROTATED_AGENT)
    found |= dict.fromkeys(judgements, "trust/k3s/acceptedtokens.py")
    levels = (identity.NOT_AUTHENTICATED, identity.WRONG_GROUP, identity.IMPERSONATES, identity.NO_NODE)
    found |= dict.fromkeys(levels, "trust/k3s/identity.py")
    return {code: place for code, place in found.items() if code not in NOT_CODES}


def test_every_code_has_a_row() -> None:
    assert {code: place for code, place in every_code().items() if code not in reasons()} == {}


def test_no_row_is_without_a_code() -> None:
    assert set(reasons()) - set(every_code()) == set()


@each_row("code", reasons())
def test_a_row_is_whole_sentences(code: str) -> None:
    row = reasons()[code]
    assert code == code.lower().strip()
    assert " " not in code
    for sentence in filter(None, (row.meaning, row.remedy)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_a_code_of_somebody_elses_has_no_row() -> None:
    assert "moon-in-the-wrong-house" not in reasons()
