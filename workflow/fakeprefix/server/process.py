"""One life of the server: a free port, a random key, health polled, killed as a group whatever happens."""

import contextlib
import ctypes
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakeprefix.errors import ServerError
from fakeprefix.machine.commands import DEVICE_VARIABLES, kept_environment
from fakeprefix.server.client import Client
from fakeprefix.server.engine_settings import EngineSettings

log = logging.getLogger(__name__)

PORT_ATTEMPTS = 5
PORT_TAKEN = ("couldn't bind", "address already in use")
# a server in the middle of a batch does not listen; it has nothing to lose
STOP_GRACE_S = 3.0
PR_SET_PDEATHSIG = 1

# threads come from the settings; what OpenMP would take from the environment is overridden,
# since Snakemake exports OMP_NUM_THREADS equal to a rule's `threads`
ENVIRONMENT_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", *DEVICE_VARIABLES)

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


@dataclass
class Server:
    """A running server.

    Attributes:
        client: sends requests to it.
        pid: process id, leader of its own group.
        log_path: its output, kept.
        arguments: the command line (without the key).
        start_s: seconds from the start of the process until it was healthy.
        exit_status: set once it has ended; negative is a signal.
    """

    client: Client
    pid: int
    log_path: Path
    arguments: list[str]
    start_s: float
    exit_status: int | None = None


@contextmanager
def running_server(
    binary: Path,
    settings: EngineSettings,
    model: Path,
    mmproj: Path | None,
    log_path: Path,
    *,
    timeout_s: float = 600.0,
    parallel: int = 1,
    extra_arguments: list[str] | None = None,
    extra_environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start the server, yield it when it is healthy, and end it with all its children.

    Raises:
        ServerError: it did not become healthy within `timeout_s`, or it died meanwhile; the message
            has the last lines of its log.
    """
    environment = kept_environment(*ENVIRONMENT_KEPT)
    environment |= {"OMP_NUM_THREADS": str(settings.threads), "LLAMA_API_KEY": secrets.token_urlsafe(32)}
    environment |= SANITIZER_OPTIONS | dict(extra_environment or {})
    log_path.parent.mkdir(parents=True, exist_ok=True)

    for attempt in range(PORT_ATTEMPTS):
        port = free_port()
        arguments = [str(binary), *settings.server_arguments(model, mmproj, port, parallel), *(extra_arguments or [])]
        started = time.monotonic()
        with log_path.open("ab") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=child_setup(),
            )
        try:
            client = Client(f"http://127.0.0.1:{port}", environment["LLAMA_API_KEY"])
            if not _wait_until_healthy(process, client, log_path, timeout_s):
                log.info("port %d was taken meanwhile, attempt %d of %d", port, attempt + 1, PORT_ATTEMPTS)
                continue
            server = Server(client, process.pid, log_path, arguments, time.monotonic() - started)
            try:
                yield server
            except BaseException:
                # a server that is dying needs a moment until its status can be read
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1.0)
                raise
            finally:
                # one that was killed a moment ago is seen to be dead only after it was waited for
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.05)
                server.exit_status = process.poll()
            return
        finally:
            _end_group(process)
    raise ServerError(f"no free port on 127.0.0.1 in {PORT_ATTEMPTS} attempts")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_lines(path: Path, n: int = 15) -> str:
    """The end of a log, for an error message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-n:])


def _wait_until_healthy(process: subprocess.Popen[bytes], client: Client, log_path: Path, timeout_s: float) -> bool:
    """True when healthy, False if another process took the port."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = process.poll()
        if status is not None:
            tail = last_lines(log_path)
            if any(sign in tail.lower() for sign in PORT_TAKEN):
                return False
            raise ServerError(f"the server ended with status {status} before it was ready; {log_path}:\n{tail}")
        if client.is_healthy():
            return True
        time.sleep(0.05)
    raise ServerError(f"the server was not ready after {timeout_s:.0f} s; {log_path}:\n{last_lines(log_path)}")


def child_setup() -> Callable[[], None]:
    """What a started process does before its program runs: it asks the kernel to kill it when this process ends.

    The kernel goes by the thread that starts it, which has to live as long.
    """
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def before_program() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # it ended before the kernel was asked
            os._exit(1)

    return before_program


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        log.warning("the server did not end within %.0f s, killing it", STOP_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
