"""PKCS#11 URIs (RFC 7512): one private key in one token, its module, and where the PIN is read."""

from __future__ import annotations

import pytest

from mooring.pki.errors import KeyRefusedError
from mooring.pki.tokenkeyuri import MAX_URI, TokenKeyUri, parse

MODULE = "?module-path=/usr/lib/token.so"


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        pytest.param(
            f"pkcs11:token=My%20token;object=ca{MODULE}",
            TokenKeyUri(token="My token", object="ca", module_path="/usr/lib/token.so"),
            'the key "ca" in the token "My token"',
            id="by labels",
        ),
        pytest.param(
            f"pkcs11:serial=1234;id=%0A%ff;type=private;manufacturer=Soft;model=v2{MODULE}&pin-source=file:/etc/pin",
            TokenKeyUri(
                serial="1234",
                id=b"\n\xff",
                manufacturer="Soft",
                model="v2",
                module_path="/usr/lib/token.so",
                pin_file="/etc/pin",
            ),
            "the key with the id 0aff in the token with the serial number 1234",
            id="by serial number and id",
        ),
        pytest.param(
            f"pkcs11:token=t;object=ca{MODULE}&pin-source=file:///etc/pin",
            TokenKeyUri(token="t", object="ca", module_path="/usr/lib/token.so", pin_file="/etc/pin"),
            'the key "ca" in the token "t"',
            id="a file as a URL",
        ),
        pytest.param(
            f"pkcs11:token=t;object=ca{MODULE}&pin-source=/etc/pin",
            TokenKeyUri(token="t", object="ca", module_path="/usr/lib/token.so", pin_file="/etc/pin"),
            'the key "ca" in the token "t"',
            id="a file as a path",
        ),
        pytest.param(
            f"pkcs11:token=t;object=ca{MODULE}&pin-source=env:HSM_PIN",
            TokenKeyUri(token="t", object="ca", module_path="/usr/lib/token.so", pin_variable="HSM_PIN"),
            'the key "ca" in the token "t"',
            id="an environment variable",
        ),
    ],
)
def test_a_uri_names_one_key(text: str, expected: TokenKeyUri, name: str) -> None:
    found = parse(text)
    assert found == expected
    assert str(found) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("file:x", "a PKCS#11 URI begins with pkcs11:", id="another scheme"),
        pytest.param("pkcs11:" + "x" * MAX_URI, "has at most 4096 characters", id="too long"),
        pytest.param("pkcs11:", "names no token", id="nothing"),
        pytest.param(f"pkcs11:token=t{MODULE}", "names no key: give object=LABEL or id=%01", id="no key"),
        pytest.param("pkcs11:token=t;object=o", "names no library: give module-path= with its whole path", id="no library"),
        pytest.param("pkcs11:token=t;object=o?module-path=x.so", "names no library", id="a path from somewhere"),
        pytest.param(f"pkcs11:token=t;object=o;type=cert{MODULE}", "names no private key", id="a certificate"),
        pytest.param(f"pkcs11:token=t;object=o;slot-id=1{MODULE}", "only token, serial,", id="an unknown attribute"),
        pytest.param(f"pkcs11:token=t;object{MODULE}", "only token, serial,", id="an attribute without value"),
        pytest.param(f"pkcs11:token=t;token=u;object=o{MODULE}", "has token twice", id="twice"),
        pytest.param(f"pkcs11:token=%ff;object=o{MODULE}", "token of the PKCS#11 URI is not UTF-8", id="no text"),
        pytest.param(f"pkcs11:token=t;object=o{MODULE}&pin-value=1234", "contains the PIN", id="the PIN itself"),
        pytest.param(f"pkcs11:token=t;object=o{MODULE}&pin-source=pin", "pin-source of the PKCS#11 URI must", id="no whole path"),
        pytest.param(f"pkcs11:token=t;object=o{MODULE}&pin-source=|cat", "pin-source of the PKCS#11 URI must", id="a program"),
    ],
)  # fmt: skip
def test_other_uris_are_refused(text: str, message: str) -> None:
    with pytest.raises(KeyRefusedError) as raised:
        parse(text)
    assert message in str(raised.value)
    assert "1234" not in str(raised.value)
