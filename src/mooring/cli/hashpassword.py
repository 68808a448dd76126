"""`mooring auth hash-password`: print the hash of a password for --basic-auth-file.

Rules kept here: the password comes from a prompt, twice, or from standard input, never from the command line, which every user of
the machine can read. The output is one field of the file, in quotes, because a hash has commas. No request is sent.
"""

from __future__ import annotations

import secrets
import sys

import click

from mooring.authn.passwordhash import SALT_BYTES, hash_password
from mooring.cli.printing import echo
from mooring.errors import ConfigError
from mooring.secret import Secret

MAX_PASSWORD = 4096
"""Bytes: with a user name, in base64, it fits into a header."""


@click.command("hash-password")
def hash_password_command() -> None:
    """Print the scrypt hash of a password for --basic-auth-file.

    The password is prompted for on a terminal, and otherwise read from standard input. Put user name and uid after the output:
    "$scrypt$…",jane,42,"developers,on-call"
    """
    echo(f'"{hash_password(_read_password(), secrets.token_bytes(SALT_BYTES)).text()}"')


def _read_password() -> Secret:
    if sys.stdin.isatty():
        data = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True, type=str).encode()
    else:
        data = sys.stdin.buffer.read(MAX_PASSWORD + 2).removesuffix(b"\n").removesuffix(b"\r")
    if not data:
        raise ConfigError("the password is empty")
    if len(data) > MAX_PASSWORD:
        raise ConfigError(f"the password is longer than {MAX_PASSWORD} bytes; is it the right file?")
    if b"\0" in data:
        raise ConfigError("the password holds a zero byte, which scrypt does not tell from none; choose another")
    if b"\n" in data:
        raise ConfigError("the password has more than one line; give it alone")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ConfigError("the password is not UTF-8; a client would have to send exactly these bytes") from None
    return Secret(data)
