"""Simulated KMS v2 plugin: a gRPC server on a Unix socket that can be slow, unhealthy, wrong or gone.

Rules kept here: key ids name keys that never change, so that a plugin that was replaced still decrypts old data keys. The plugin
runs on threads of the test's process, and ends with the block.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.apimachinery.codec.protobuf import ValueBudget, fields, put_bytes
from mooring.trust.encryption.encryptedobject import decode_map_entry, encode_map_entry

ANNOTATION = "plugin.example.com"


def sealed(key_id: str, plain: bytes) -> bytes:
    """Return a data key as the plugin encrypts it with the key `key_id`."""
    nonce = os.urandom(12)
    return nonce + AESGCM(hashlib.sha256(key_id.encode()).digest()).encrypt(nonce, plain, None)


def opened(key_id: str, ciphertext: bytes) -> bytes:
    """Return the data key that `sealed` encrypted."""
    return AESGCM(hashlib.sha256(key_id.encode()).digest()).decrypt(ciphertext[:12], ciphertext[12:], None)


def message(*parts: tuple[int, bytes]) -> bytes:
    """Return a protobuf message of fields of bytes."""
    out = bytearray()
    for number, value in parts:
        put_bytes(out, number, value)
    return bytes(out)


class LostKeyError(Exception):
    """The key of a value was destroyed."""


class SimulatedPlugin:
    """State of a plugin, which a test changes."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.key_id = "key-1"
        self.encrypts_with = ""
        """Another key id in the answers to Encrypt; "" for the one of the status."""
        self.healthz = "ok"
        self.version = "v2"
        self.annotations = {ANNOTATION: b"note"}
        self.calls: Counter[str] = Counter()
        self.reply: Callable[[str, bytes], bytes | None] = lambda method, request: None
        """Returns an answer of the test's own, None for the right one."""
        self.lost: set[str] = set()
        """Ids of keys that were destroyed: Decrypt fails for them."""
        self.answers = threading.Event()
        self.answers.set()

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def answer(self, method: str, request: bytes) -> bytes:
        """Return the answer to a call."""
        self.calls[method] += 1
        self.answers.wait(30)
        own = self.reply(method, request)
        if own is not None:
            return own
        given = {number: value for number, _, value in fields(request, ValueBudget())}
        if method == "Status":
            texts = (self.version, self.healthz, self.key_id)
            return message(*((number, text.encode()) for number, text in enumerate(texts, 1)))
        if method == "Encrypt":
            key_id = self.encrypts_with or self.key_id
            notes = [(3, encode_map_entry(name, value)) for name, value in self.annotations.items()]
            return message((1, sealed(key_id, given[1])), (2, key_id.encode()), *notes)
        if given[3].decode() in self.lost:
            raise LostKeyError
        if self.annotations:
            assert decode_map_entry(given[4], ValueBudget()) == (ANNOTATION, b"note")
        return message((1, opened(given[3].decode(), given[1])))


@contextmanager
def serving(plugin: SimulatedPlugin) -> Iterator[SimulatedPlugin]:
    """Serve on the plugin's socket until the block ends."""
    import grpc

    def handler(method: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: plugin.answer(method, request))

    server = grpc.server(ThreadPoolExecutor(8))
    methods = {name: handler(name) for name in ("Status", "Encrypt", "Decrypt")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v2.KeyManagementService", methods),))
    server.add_insecure_port(f"unix:{plugin.socket}")
    server.start()
    try:
        yield plugin
    finally:
        plugin.answers.set()
        server.stop(0).wait()
