"""Published MCP servers as programs: installed once, in environments of their own, and run on free loopback ports.

Their environments are kept in `build/published`, which git ignores, one for each list of requirements beside this file;
a list that has changed is installed anew. Knows nothing of MCP.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "published"
_READY_SECONDS = 60
_END_SECONDS = 10


def installed(requirements: str) -> Path:
    """Install a list of requirements, unless that is done already; returns the folder of its programs."""
    wanted = (HERE / requirements).read_bytes() + sys.version.encode()
    home = CACHE / f"{Path(requirements).stem}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    programs = home / "bin"
    done = home / "installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)  # what an interrupted installation has left
        venv.create(home, with_pip=True)
        pip = [programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", HERE / requirements], check=True)  # noqa: S603  # our own arguments
        done.touch()
    return programs


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass
class Program:
    """A server as a process of ours. `arguments` are the command and what follows it."""

    arguments: list[str | Path]
    port: int
    home: Path
    """Its working folder and home; `log` is written there."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        return self.home / f"{self.port}.log"

    def start(self) -> None:
        """Start it, with nothing of our environment but where programs are; `wait` tells when it answers."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  # our own arguments
                self.arguments, cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Wait until it takes connections.

        Raises:
            AssertionError: It has ended, or takes none in time; with what it wrote.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.arguments} does not listen:\n{self.log.read_text()}")

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        """Ask it to end, and see that it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
