"""Questions between the workers of one host, for what a client may see and only one worker knows.

Rules kept here:
* A question is a datagram to the worker's socket, with one end of a new stream on which it answers. So answers have any length, and
  belong to their question without numbers.
* No worker waits for longer than ANSWER_SECONDS: a worker that was stopped or is busy is left out.
* Only the workers have these sockets. They are made before the first fork, and have no name.
* Answers are computed on the event loop, and few questions are asked at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from mooring.server.sharedmemory import ALONE, Counted, WorkerMemory

log = logging.getLogger("mooring.server")

ANSWER_SECONDS = 0.5
"""A worker answers within milliseconds, unless it is stuck."""
MAX_QUESTION = 4096
"""Bytes of a question."""
MAX_ANSWER = 16 << 20
"""Bytes of an answer that are read."""
AT_ONCE = 8
"""Questions of one worker that wait for answers; the queue of a socket has room for ten."""
READ_BYTES = 64 << 10

Answers = Mapping[str, Callable[[str], bytes]]
"""Functions that answer, by the word of the question."""


class WorkerQueries:
    """The other workers of the host, as seen by one. `start` it when the worker serves, and `stop` it at the end."""

    def __init__(self, answers: Answers, share: WorkerMemory = ALONE) -> None:
        self._answers = answers
        self._share = share
        self._present = share.count(Counted.PRESENT)
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to answer."""
        if self._share.memory is not None:
            asking = self._share.memory.questions(self._share.worker)
            asyncio.get_running_loop().add_reader(asking.fileno(), self._receive, asking)
            self._present.set(1)

    async def stop(self) -> None:
        """Answer no more."""
        if self._share.memory is not None:
            self._present.set(0)
            asyncio.get_running_loop().remove_reader(self._share.memory.questions(self._share.worker).fileno())
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def present(self) -> list[int]:
        """Indices of the other workers that answer."""
        memory = self._share.memory
        if memory is None:
            return []
        here = memory.row(Counted.PRESENT).tolist()
        return [worker for worker, is_present in enumerate(here) if is_present and worker != self._share.worker]

    async def ask(self, word: str, text: str = "") -> list[bytes]:
        """Return the answers of the other workers that answer in time."""
        present = self.present
        if not present:
            return []
        question = json.dumps([word, text]).encode()
        if len(question) > MAX_QUESTION:
            return []
        async with self._asking:
            found = await asyncio.gather(*(self._ask(worker, question) for worker in present))
        return [answer for answer in found if answer is not None]

    async def _ask(self, worker: int, question: bytes) -> bytes | None:
        assert self._share.memory is not None
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            with theirs:
                socket.send_fds(self._share.memory.line_to(worker), [question], [theirs.fileno()], socket.MSG_DONTWAIT)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await _read(ours)
        except (OSError, TimeoutError):
            log.info("worker %d did not answer", worker + 1)
            return None
        finally:
            ours.close()

    def _receive(self, asking: socket.socket) -> None:
        try:
            question, descriptors, _, _ = socket.recv_fds(asking, MAX_QUESTION, 1, socket.MSG_DONTWAIT)
        except OSError:
            return
        for descriptor in descriptors:
            theirs = socket.socket(fileno=descriptor)
            theirs.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._answer(question, theirs))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: bytes, asked: socket.socket) -> None:
        try:
            word, text = json.loads(question)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await asyncio.get_running_loop().sock_sendall(asked, b"." + self._answers[word](text))
        except Exception:
            log.exception("a question of another worker was not answered")
        finally:
            asked.close()


async def _read(end: socket.socket) -> bytes | None:
    """Return everything until the other side closes, without the byte that marks an answer; None when it did not answer."""
    loop, parts, size = asyncio.get_running_loop(), [], 0
    while part := await loop.sock_recv(end, READ_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            return None
    answer = b"".join(parts)
    return answer[1:] if answer else None
