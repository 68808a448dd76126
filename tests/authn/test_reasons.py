"""The table of reason codes is closed: every code that the program gives has a row, and no row is without a code."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import mooring
from mooring.authn.claims.reasons import REASONS as OF_CLAIMS
from mooring.authn.table import REASONS, reason_of
from mooring.pki.errors import PeerCertificateError, TokenRefusedError
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.k3s import acceptedtokens, identity
from tests.support.rows import each_row

ROOT = Path(mooring.__file__).parent
PLACES = (
    *(path for path in sorted((ROOT / "authn").rglob("*.py")) if path.name != "reasons.py"),
    ROOT / "server/authentication/secondstage.py",
    ROOT / "server/pipeline.py",
)
GIVERS = frozenset({"NotMine", "Rejected", "ClaimsRefusedError", "TokenRefusedError", "Offered", "Refusal"})
"""What is called with a code."""


def given(path: Path) -> Iterator[str]:
    """The codes that a file gives: texts that `GIVERS` are called with, and every constant of a table of reasons that it uses."""
    tree = ast.parse(path.read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".reasons"):
            module = importlib.import_module(str(node.module))
            values = (getattr(module, one.name) for one in node.names if (one.asname or one.name) in used)
            yield from (value for value in values if isinstance(value, str))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GIVERS and node.args:
            code = node.args[0]
            if isinstance(code, ast.Constant) and code.value:
                yield str(code.value)


NOT_CODES = frozenset({"may-speak"})
"""Verdict between two functions of one file."""


def every_code() -> dict[str, str]:
    """Code → a place that gives it."""
    found = {code: str(path.relative_to(ROOT)) for path in PLACES for code in given(path)}
    found |= dict.fromkeys(PeerCertificateError.CODES, "pki/x509/verify.py")
    found |= dict.fromkeys(TokenRefusedError.CODES, "pki/jwt/token.py")
    found |= dict.fromkeys(OF_CLAIMS, "authn/claims/mapping.py")
    found |= dict.fromkeys(set(tokensecret.REASONS) - {tokensecret.OK}, "trust/bootstraptoken/tokensecret.py")
    judgements = (acceptedtokens.WRONG, acceptedtokens.ROTATED, acceptedtokens.ROTATED_AGENT)
    found |= dict.fromkeys(judgements, "trust/k3s/acceptedtokens.py")
    levels = (identity.NOT_AUTHENTICATED, identity.WRONG_GROUP, identity.IMPERSONATES, identity.NO_NODE)
    found |= dict.fromkeys(levels, "trust/k3s/identity.py")
    return {code: place for code, place in found.items() if code not in NOT_CODES}


def test_every_code_has_a_row() -> None:
    assert {code: place for code, place in every_code().items() if code not in REASONS} == {}


def test_no_row_is_without_a_code() -> None:
    assert set(REASONS) - set(every_code()) == set()


@each_row("code", REASONS)
def test_a_row_is_whole_sentences(code: str) -> None:
    row = reason_of(code)
    assert row is not None
    assert code == code.lower().strip()
    assert " " not in code
    for sentence in filter(None, (row.meaning, row.remedy)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_a_code_of_somebody_elses_has_no_row() -> None:
    assert reason_of("moon-in-the-wrong-house") is None
