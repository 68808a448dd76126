"""Client of a KMS v2 plugin: gRPC over its Unix socket.

Source: docs/protocol/encryption-at-rest.md#kms-v2.

Rules kept here:
* Every call ends within the timeout of the provider: a plugin that hangs delays a caller by no more.
* An error names the code of gRPC, and nothing that the plugin sent.
* gRPC is imported when the first plugin is used. It starts threads, so nothing forks after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mooring.apimachinery.codec.protobuf import (
    BYTES,
    MessageError,
    ValueBudget,
    expect_wire_type,
    fields,
    put_bytes,
    utf8_text,
)
from mooring.errors import ApiError, ConfigError, PeerError
from mooring.secret import Secret
from mooring.trust.encryption.configuration import KmsPlugin
from mooring.trust.encryption.encryptedobject import (
    EncryptedDataKey,
    decode_map_entry,
    encode_map_entry,
    sorted_annotations,
)
from mooring.trust.encryption.transformer import PluginStatus

SERVICE = "/v2.KeyManagementService/"
MAX_REPLY = 64 << 10
"""Bytes of an answer: 32 KiB of annotations, and a kilobyte for each of the others."""
RECONNECT_MILLISECONDS = 1000
"""Longest pause between two attempts to connect. gRPC's own grows to two minutes."""

T = TypeVar("T")


class PluginError(PeerError):
    """A call that a plugin did not answer, or answered with an error."""


class UnansweredError(PluginError):
    """A call that a plugin did not answer: the failure is that of the plugin, and not of what it was asked."""


class KmsPluginClient:
    """One plugin. Calls may run concurrently."""

    def __init__(self, plugin: KmsPlugin) -> None:
        """Raises ConfigError when gRPC is not installed."""
        try:
            import grpc
            import grpc.aio
        except ImportError:
            raise ConfigError(
                "encryption-provider-config: KMS plugins need gRPC: install the extra, pip install 'mooring[etcd]'"
            ) from None
        socket = plugin.socket
        target = f"unix-abstract:{socket[1:]}" if socket.startswith("@") else f"unix:{socket}"
        self._name = plugin.name
        self._timeout = plugin.timeout.total_seconds()
        self._error = grpc.aio.AioRpcError
        self._unanswered = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        self._channel: Any = grpc.aio.insecure_channel(
            target,
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_receive_message_length", MAX_REPLY),
                ("grpc.min_reconnect_backoff_ms", RECONNECT_MILLISECONDS),
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MILLISECONDS),
            ),
        )

    async def close(self) -> None:
        """End the connection and the calls under way."""
        await self._channel.close()

    async def status(self) -> PluginStatus:
        """Return the health of the plugin and the id of its key. Raises PluginError."""
        texts = await self._call("Status", b"", _read_status)
        return PluginStatus(texts[1], texts[2], texts[3])

    async def encrypt(self, plain: Secret, uid: str) -> EncryptedDataKey:
        """Have a seed encrypted. Raises PluginError."""
        request = bytearray()
        put_bytes(request, 1, plain.reveal())
        put_bytes(request, 2, uid.encode())
        return await self._call("Encrypt", bytes(request), _read_encrypted)

    async def decrypt(self, key: EncryptedDataKey, uid: str) -> Secret:
        """Have a data key decrypted. Raises PluginError."""
        request = bytearray()
        put_bytes(request, 1, key.ciphertext)
        put_bytes(request, 2, uid.encode())
        put_bytes(request, 3, key.key_id.encode())
        for name, value in key.annotations:
            put_bytes(request, 4, encode_map_entry(name, value))
        return await self._call("Decrypt", bytes(request), _read_plain)

    async def _call(self, method: str, request: bytes, read: Callable[[bytes], T]) -> T:
        call = self._channel.unary_unary(SERVICE + method)
        try:
            reply: bytes = await call(request, timeout=self._timeout, wait_for_ready=True)
        except self._error as error:
            kind = UnansweredError if error.code() in self._unanswered else PluginError
            raise kind(f"KMS plugin {self._name}: {method} failed: {error.code().name}") from None
        try:
            return read(reply)
        except (MessageError, ApiError):
            raise PluginError(f"KMS plugin {self._name}: the answer to {method} is not a message of KMS v2") from None


def _read_status(reply: bytes) -> dict[int, str]:
    found = {1: "", 2: "", 3: ""}
    for number, wire, value in fields(reply, ValueBudget()):
        if number in found:
            expect_wire_type(wire, BYTES)
            found[number] = utf8_text(value)
    return found


def _read_encrypted(reply: bytes) -> EncryptedDataKey:
    ciphertext, key_id, annotations = b"", "", {}
    budget = ValueBudget()
    for number, wire, value in fields(reply, budget):
        if number in (1, 2, 3):
            expect_wire_type(wire, BYTES)
        if number == 1:
            ciphertext = value
        elif number == 2:
            key_id = utf8_text(value)
        elif number == 3:
            name, annotation = decode_map_entry(value, budget)
            annotations[name] = annotation
    return EncryptedDataKey(ciphertext, key_id, sorted_annotations(annotations))


def _read_plain(reply: bytes) -> Secret:
    plain = b""
    for number, wire, value in fields(reply, ValueBudget()):
        if number == 1:
            expect_wire_type(wire, BYTES)
            plain = value
    return Secret(plain)
