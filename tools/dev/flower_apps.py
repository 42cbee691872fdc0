"""Complete Flower apps, run by Flower's own processes on a separate server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(sys.executable).parent
STARTED = 30.0  # seconds for Flower's server to answer


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has now."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def make_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: a home of their own, no telemetry, no
    network.
    """
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "engine/alias"))),
        "PATH": os.pathsep.join([str(BINARIES), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "UV_OFFLINE": "1",
    }


@contextlib.contextmanager
def process(words: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of Flower; at the end stop it and its children.

    words: its command, which lies beside the interpreter.  log: the file of what it prints.
    """
    command = [str(BINARIES / words[0]), *words[1:]]
    with log.open("wb") as out:
        started = subprocess.Popen(
            command, env=make_environment(home), stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=home,
        )  # fmt: skip
        try:
            yield started
        finally:
            stop(started)


def stop(started: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a process of `process`, and whatever is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait(patience)


def wait_for(port: int, started: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process listens at a port of 127.0.0.1.

    Raises:
        RuntimeError: it has ended, or does not listen in time.
    """
    end = time.monotonic() + STARTED
    while time.monotonic() < end and started.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"no program listens at port {port}:\n{log.read_text(errors='replace')}")


def run_app(app: Path, clients: int | None = None, config: str = "", limit: float = 150.0) -> str:
    """Run an app as `flwr run --stream` does, with simulated clients; what it prints.

    app: the folder of the app; Flower's home is made beside it.
    clients: None: as many as the app's federation.toml says.
    config: overrides of the app's configuration.  limit: seconds for all of it.

    Raises:
        RuntimeError: Flower's server does not start.
        AssertionError: the command fails.
    """
    home, port = app.parent / f"{app.name}-flower", free_port()
    home.mkdir()
    server = f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(f"{server}insecure = true\n")
    log = home / "superlink.log"
    words = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
    with process([*words, "--port", str(port)], home, log) as started:
        wait_for(port, started, log)
        size = f"num-supernodes={clients} client-resources-num-cpus=1"
        size = "federation.toml" if clients is None else size
        command = ["flwr", "run", ".", "test", "--stream", "--federation-config", size]
        done = subprocess.run(
            [str(BINARIES / command[0]), *command[1:], *(["-c", config] if config else [])],
            cwd=app, env=make_environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=limit,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout
