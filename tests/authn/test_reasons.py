"""The table of reason codes is closed: every code that the program gives has a row, and no row is without a code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mooring
from mooring.authn.claims.mapping import REASONS as OF_CLAIMS
from mooring.authn.reasons import REASONS, reason_of
from mooring.pki.errors import PeerCertificateError, TokenRefusedError
from mooring.trust.bootstraptoken import tokensecret

ROOT = Path(mooring.__file__).parent
PLACES = (
    *sorted((ROOT / "authn").rglob("*.py")),
    ROOT / "server/authentication/secondstage.py",
    ROOT / "server/pipeline.py",
)
GIVERS = frozenset({"NotMine", "Rejected", "ClaimsRefusedError", "TokenRefusedError", "Offered"})
"""What is called with a code, in the modules whose constants are looked at."""
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
NOT_CODES = frozenset({"may-speak", "impersonate-user", "impersonate-group", "impersonate-uid"})
"""What has the form of a code: between two functions of one file, or the name of a header."""


def given(path: Path) -> Iterator[str]:
    """The codes that a file gives: what `GIVERS` are called with, and every constant of the form of a code."""
    tree = ast.parse(path.read_text())
    constants = dict(_constants(tree))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GIVERS
    ]
    arguments = [call.args[0] for call in calls if call.args]
    if calls:
        yield from (value for value in constants.values() if CODE.fullmatch(value))
    for argument in arguments:
        if isinstance(argument, ast.Constant):
            yield str(argument.value)
        elif isinstance(argument, ast.Name) and argument.id in constants:
            yield constants[argument.id]  # a code of one word


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield ast.unparse(node.targets[0]), node.value.value


def every_code() -> dict[str, str]:
    """Code → a place that gives it."""
    found = {code: str(path.relative_to(ROOT)) for path in PLACES for code in given(path)}
    found |= dict.fromkeys(PeerCertificateError.CODES, "pki/x509/verify.py")
    found |= dict.fromkeys(TokenRefusedError.CODES, "pki/jwt/token.py")
    found |= dict.fromkeys(OF_CLAIMS, "authn/claims/mapping.py")
    found |= dict.fromkeys(set(tokensecret.REASONS) - {tokensecret.OK}, "trust/bootstraptoken/tokensecret.py")
    return {code: place for code, place in found.items() if code not in NOT_CODES}


def test_every_code_has_a_row() -> None:
    assert {code: place for code, place in every_code().items() if code not in REASONS} == {}


def test_no_row_is_without_a_code() -> None:
    assert set(REASONS) - set(every_code()) == set()


@pytest.mark.parametrize("code", REASONS)
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
