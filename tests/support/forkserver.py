"""Processes that run `mooring`, forked from one that has imported it: this saves the second that interpreter and imports take.

Rules kept here:
* A forked process is one of its own: it has its own id, streams, environment and working directory, dies by signals and leaves an
  exit status. It ends as an interpreter does, with its threads joined and its exit handlers run.
* `Process` is used as `subprocess.Popen` is. Its parent is the fork server, which reports the status over a socket.
* `LD_PRELOAD` has an effect when an interpreter starts, and not when it is forked: each value has a fork server of its own.
* The fork server runs in one thread, opens no event loop and makes no keys: forked processes share code, not state. It ends with
  the test process, and kills what still runs then. Tests of the interpreter's own command line (`python -m`) use `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any

import mooring

MAX_MESSAGE = 1 << 20
"""Octets of one request: arguments and the environment."""
STREAMS = 3
CRASHED = 1
"""Exit status of an interpreter that prints a traceback."""


class Process:
    """A forked process. `arguments` are those of `python`: `-m MODULE …` or `-c PROGRAM …`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.args = ["python", *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ if env is None else env)
        request = {
            "arguments": list(arguments),
            "environment": environment,
            "directory": str(cwd or os.getcwd()),
        }
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._output = ""
        with theirs, contextlib.ExitStack() as opened:
            if stdout == subprocess.PIPE:
                self.stdout, stdout = _pipe(opened)
            if stderr == subprocess.PIPE:
                self.stderr, stderr = _pipe(opened)
            descriptors = [
                _descriptor(stdin, os.O_RDONLY, 0, opened),
                _descriptor(stdout, os.O_WRONLY, 1, opened),
            ]
            descriptors.append(
                descriptors[1] if stderr == subprocess.STDOUT else _descriptor(stderr, os.O_WRONLY, 2, opened)
            )
            descriptors.append(theirs.fileno())
            _send(_fork_server(environment.get("LD_PRELOAD", "")), request, descriptors)
        self.pid: int = self._received()["pid"]

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        with self._lock:
            if self.returncode is None and select.select([self._line], [], [], 0)[0]:
                self._ended()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._line], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self._ended()
            assert self.returncode is not None
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return what the process wrote to its standard output, a pipe, once it has ended. Raises subprocess.TimeoutExpired."""
        assert self.stdout is not None
        ends = None if timeout is None else time.monotonic() + timeout
        descriptor = self.stdout.fileno()
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            if not (data := os.read(descriptor, 1 << 16)):
                break
            self._output += data.decode()
        self.stdout.close()
        self.wait(timeout)
        return self._output, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(self._received()["status"])
        self._line.close()

    def _received(self) -> dict[str, int]:
        data = self._line.recv(MAX_MESSAGE)
        assert data, "the fork server ended"
        message: dict[str, int] = json.loads(data)
        return message


def run(
    arguments: Sequence[str],
    *,
    given: bytes = b"",
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end, as `subprocess.run` does with its output captured. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given)
        stdin.seek(0)
        process = Process(arguments, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


def _descriptor(stream: int | IO[Any] | None, mode: int, inherited: int, opened: contextlib.ExitStack) -> int:
    if stream is None:
        return inherited
    if stream == subprocess.DEVNULL:
        descriptor = os.open(os.devnull, mode)
        opened.callback(os.close, descriptor)
        return descriptor
    return stream if isinstance(stream, int) else stream.fileno()


def _pipe(opened: contextlib.ExitStack) -> tuple[IO[str], int]:
    """Return the end to read from, and the descriptor to write to; `opened` closes the descriptor in this process."""
    reading, writing = os.pipe()
    opened.callback(os.close, writing)
    return open(reading, encoding="utf-8"), writing


def _send(line: socket.socket, request: object, descriptors: list[int]) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())
    data = json.dumps(request).encode()
    assert len(data) < MAX_MESSAGE
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE)
    line.sendmsg([data], [rights])


@cache
def _fork_server(preloaded: str) -> socket.socket:
    """Start the fork server of this process and this `LD_PRELOAD`. It ends when the returned socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LD_PRELOAD": preloaded} if preloaded else None,
            ).returncode = 0  # it ends by itself after the last test; without a status, its finalizer warns
        except BaseException:
            ours.close()
            raise
    atexit.register(ours.close)
    return ours


def _load() -> None:
    """Import all of Mooring, also the modules that it imports only on use."""
    for module in pkgutil.walk_packages(mooring.__path__, "mooring."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("uvloop", "yaml", "rich.console", "rich.table", "rich.progress", "isal.igzip"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _serve(line: socket.socket) -> list[str]:
    """Fork for each request. Returns in each forked process with its arguments, and ends the program in the fork server."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    lines: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([line.fileno(), awake], [], [])
        if awake in readable:
            os.read(awake, 4096)
            _reap(lines)
        if line.fileno() in readable:
            data, descriptors, _, _ = socket.recv_fds(line, MAX_MESSAGE, STREAMS + 1)
            if not data:
                for pid in lines:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            request = json.loads(data)
            answer = socket.socket(fileno=descriptors.pop())
            if pid := os.fork():
                answer.send(json.dumps({"pid": pid}).encode())
                lines[pid] = answer
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (line, answer, *lines.values()):
                one.close()
            os.close(awake)
            os.close(wake)
            return _become(request, descriptors)


def _reap(lines: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with lines.pop(pid) as answer, contextlib.suppress(OSError):
                answer.send(json.dumps({"status": status}).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Take over the streams, environment and directory of a request. Returns its arguments."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in {*descriptors} - {0, 1, 2}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if "FAULTLIB_RULES" in os.environ:
        ctypes.CDLL(None).faultlib_map_rules()
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, mode, descriptor in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        errors = "backslashreplace" if name == "stderr" else "strict"
        buffer = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115 - it is the process's
        eager = mode == "w" and (buffer.isatty() or name == "stderr")
        stream = io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=eager, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    random.seed()
    arguments: list[str] = request["arguments"]
    return arguments


def _execute(arguments: list[str]) -> None:
    """Run the module or program that `python` would run with these arguments."""
    how, program, *rest = arguments
    sys.path[0] = os.getcwd() if how == "-m" else ""
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if how == "-m":
        sys.argv = [program, *rest]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    assert how == "-c", arguments
    sys.argv = ["-c", *rest]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def main() -> None:
    """Serve on the socket; its descriptor is the first argument."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    gc.collect()
    gc.freeze()
    arguments = _serve(line)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _execute(arguments)
    return


if __name__ == "__main__":
    main()
