"""Credentials that are almost right: valid ones, changed as an attacker or a broken client would.

Rules kept here: every choice is drawn from the `Random` that is given, so that a run can be repeated. Callers compare the result
with the original by `same_token`, because base64 has bits without meaning.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.support.jwtsigner import encoded, key_for, public, signed_with_secret

CONTROLS = "\0\x01\t\x0b\x1b\x7f\x85\xa0"
STRANGE = (
    "",
    ".",
    "..",
    "...",
    "a.b.c",
    "null",
    "\xff\xfe",
    "é",
    "%00",
    "'\"<>&",
    "-",
    "A" * 65_535,
    ".".join("abcde"),
)
NESTED = "[" * 5_000 + "]" * 5_000
NUMBERS = ("1e400", "-1e400", "1e-400", "9" * 400, "-1", "0", "1.5", "-0.0", "253402300800", "-62135596801", "NaN", "true",
           '"1"', "null", "[]", "{}", "18446744073709551616", "1.7976931348623157e308")  # fmt: skip
HEADERS: tuple[dict[str, Any], ...] = (
    {"alg": "none"}, {"alg": "None"}, {"alg": "nOnE"}, {"alg": ""}, {"alg": None}, {"alg": 5}, {"alg": ["ES256"]}, {"alg": {}},
    {"alg": "HS256"}, {"alg": "HS512"}, {"alg": "ES384"}, {"alg": "PS256"}, {"alg": "EdDSA"}, {"alg": "dir"},
    {"kid": "../../../../dev/null"}, {"kid": "' OR 1=1 --"}, {"kid": ""}, {"kid": None}, {"kid": 7}, {"kid": ["k"]},
    {"kid": {"k": 1}}, {"kid": "k\0"}, {"kid": "K" * 400}, {"kid": "K" * 5_000}, {"kid": "|id"}, {"kid": "é"},
    {"crit": ["exp"]}, {"crit": []}, {"crit": None}, {"b64": False}, {"b64": False, "crit": ["b64"]}, {"zip": "DEF"},
    {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/x"}, {"x5c": ["AAAA"]}, {"typ": 5}, {"cty": "JWT"},
    {"jwk": {"kty": "oct", "k": "AA"}},
)  # fmt: skip


def flipped(text: str, random: Random) -> str:
    """Return the text with one character changed."""
    place = random.randrange(len(text))
    other = random.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ :,\0\x7f\xe9")
    return text[:place] + other + text[place + 1 :]


def damaged(text: str, random: Random) -> str:
    """Return the text broken in one way: cut, doubled, flipped, with odd characters."""
    place = random.randrange(len(text))
    ways = (
        lambda: text[:place],
        lambda: text[place + 1 :],
        lambda: flipped(text, random),
        lambda: flipped(flipped(text, random), random),
        lambda: text[:place] + random.choice(CONTROLS) + text[place:],
        lambda: text[:place] + random.choice(STRANGE) + text[place:],
        lambda: text + random.choice((".", "=", "==", "\0", "A", "." + text)),
        lambda: text.upper() if text != text.upper() else text.lower(),
        lambda: text[::-1],
        lambda: text * random.randrange(2, 5),
    )
    return random.choice(ways)()


def _json(segment: str) -> str:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode()


def forged(token: str, stranger: str, random: Random) -> str:
    """Return a token of the same or similar claims without a valid signature. `stranger`: the PEM of a public key that is known."""
    head, body, signature = token.split(".")
    header, claims = json.loads(_json(head)), json.loads(_json(body))

    def put(new_head: str, new_body: str, proof: str = signature) -> str:
        return f"{encoded(new_head.encode())}.{encoded(new_body.encode())}.{proof}"

    def claim() -> str:
        name = random.choice(
            ("exp", "nbf", "iat", "aud", "sub", "jti", "kubernetes.io", "mooring.dev", "groups", "iss")
        )
        number = random.choice(NUMBERS)
        text = _json(body)
        return put(
            _json(head),
            f'{{"{name}":{number},{text[1:]}' if random.random() < 0.5 else f'{text[:-1]},"{name}":{number}}}',
        )

    def members() -> str:
        return put(json.dumps({**header, **random.choice(HEADERS)}), _json(body), random.choice((signature, "AA", "_")))

    def confused() -> str:
        secret = random.choice((stranger.encode(), stranger.strip().encode(), b"", b"\0", b"secret"))
        return signed_with_secret(claims, secret, **{**header, "alg": "HS256"})

    def embedded() -> str:
        key = public(key_for("ES256"))
        return put(json.dumps({**header, "alg": "ES256", "jwk": key}), _json(body))

    def nested() -> str:
        return put(_json(head), f'{{"iss":{json.dumps(claims["iss"])},"x":{NESTED}}}')

    def proof() -> str:
        length = random.choice((1, 2, 63, 64, 65, 96, 256, 2048))
        raw = bytes(length) if random.random() < 0.3 else random.randbytes(length)
        return f"{head}.{body}.{encoded(raw)}"

    def raw() -> str:
        noise = random.randbytes(random.randrange(1, 80))
        return ".".join(random.choice(((encoded(noise), body, signature), (head, encoded(noise), signature))))

    return random.choice((claim, members, confused, embedded, nested, proof, raw, lambda: flipped(token, random)))()


def same_token(left: str, right: str) -> bool:
    """Return True when both decode to one token: unused base64 bits and text after a space are ignored."""

    def read(text: str) -> Sequence[bytes | str]:
        parts = text.strip().split(" ")[0].split(".")
        if len(parts) != 3:
            return [text.strip().split(" ")[0]]
        return [parts[0], parts[1], base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4))]

    try:
        return read(left) == read(right)
    except ValueError:
        return False


def certificates(chain: Sequence[bytes], random: Random) -> Iterator[list[bytes]]:
    """Yield, without end, chains in which the first certificate of this one is damaged."""
    leaf, *rest = chain
    while True:
        place = random.randrange(len(leaf))
        cut = leaf[:place]
        bit = leaf[:place] + bytes([leaf[place] ^ 1 << random.randrange(8)]) + leaf[place + 1 :]
        noise = leaf[:place] + random.randbytes(random.randrange(1, 9)) + leaf[place:]
        length = leaf[:2] + random.randbytes(2) + leaf[4:]
        made = random.choice(
            (cut, bit, bit, bit, noise, length, random.randbytes(random.randrange(200)), leaf + b"\0", b"")
        )
        yield [made, *random.choice(([], rest, [leaf], [leaf] * 12, [made] * 3))]
