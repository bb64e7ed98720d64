import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from conftest import WORKFLOW
from fakeprefix.errors import ServerError
from fakeprefix.server import process as process_module
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import running_server

SETTINGS = EngineSettings(2, 512, 256, "on", "f16", "f16", 1024)


def fake_binary(tmp_path: Path, body: str) -> Path:
    """A stand-in for faults that the real server cannot be made to show."""
    path = tmp_path / "server"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return path


def test_a_server_that_dies_at_start_is_an_error_with_its_last_words(tmp_path):
    binary = fake_binary(tmp_path, "print('no such model'); raise SystemExit(3)")
    with pytest.raises(ServerError) as error, running_server(binary, SETTINGS, Path("m"), None, tmp_path / "log"):
        pass
    assert "status 3" in str(error.value)
    assert "no such model" in str(error.value)


def test_a_server_that_never_gets_ready_is_given_up_and_killed(tmp_path):
    binary = fake_binary(
        tmp_path, f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    server = running_server(binary, SETTINGS, Path("m"), None, tmp_path / "log", timeout_s=1)
    with pytest.raises(ServerError, match="not ready after 1 s"), server:
        pass
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_port_that_was_taken_meanwhile_is_tried_again_with_another(tmp_path, monkeypatch):
    binary = fake_binary(tmp_path, 'print("couldn\'t bind HTTP server socket"); raise SystemExit(1)')
    ports = []
    monkeypatch.setattr(process_module, "free_port", lambda: ports.append(1) or 1)
    server = running_server(binary, SETTINGS, Path("m"), None, tmp_path / "log")
    with pytest.raises(ServerError, match="no free port"), server:
        pass
    assert len(ports) == process_module.PORT_ATTEMPTS


@pytest.mark.engine
def test_the_real_server_listens_locally_with_a_key_that_nobody_sees(tmp_path, fast_server, tiny_model):
    with running_server(fast_server, SETTINGS, tiny_model, None, tmp_path / "log") as server:
        started = psutil.Process(server.pid)
        key = started.environ()["LLAMA_API_KEY"]
        assert key not in " ".join(started.cmdline())
        assert {connection.laddr.ip for connection in started.net_connections() if connection.status == "LISTEN"} == {
            "127.0.0.1"
        }
        assert server.client.props()["fake_prefix"] == 1
        server.client._session.headers["Authorization"] = "Bearer wrong"
        with pytest.raises(ServerError):
            server.client.props()
        pid = server.pid
    assert not psutil.pid_exists(pid)
    assert key not in (tmp_path / "log").read_text()


@pytest.mark.engine
def test_the_server_dies_with_the_process_that_started_it(tmp_path, fast_server, tiny_model):
    code = f"""
    import sys, time
    from pathlib import Path
    from fakeprefix.server.process import running_server
    from fakeprefix.server.engine_settings import EngineSettings
    settings = EngineSettings(2, 512, 256, "on", "f16", "f16", 1024)
    binary, model, log = (Path(name) for name in {[str(p) for p in (fast_server, tiny_model, tmp_path / "log")]!r})
    with running_server(binary, settings, model, None, log) as server:
        print(server.pid, flush=True)
        time.sleep(60)
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(WORKFLOW)},
    )
    pid = int(starter.stdout.readline())
    assert psutil.pid_exists(pid)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


@pytest.mark.engine
def test_a_server_that_is_killed_in_a_request_is_an_error_and_not_an_answer(tmp_path, fast_server, tiny_model):
    settings = EngineSettings(2, 512, 256, "on", "f16", "f16", 16_384)
    with running_server(fast_server, settings, tiny_model, None, tmp_path / "log") as server:
        import threading

        threading.Timer(0.7, lambda: os.kill(server.pid, signal.SIGKILL)).start()
        with pytest.raises(ServerError, match="no answer"):
            server.client.post("/completion", {"prompt": [100] * 16_000, "n_predict": 1})
    assert server.exit_status == -signal.SIGKILL
