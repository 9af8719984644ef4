"""The published servers, started once for all tests of this folder."""

import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from tests.published.programs import HERE, Program, free_port, installed

Transport: TypeAlias = Literal["http", "sse"]


@dataclass
class Published:
    """All servers, by name and transport, and the repository that `git` works on."""

    programs: dict[tuple[str, Transport], Program]
    repository: Path

    def url(self, name: str, transport: Transport) -> str:
        path = "mcp" if transport == "http" else "sse"
        return f"http://127.0.0.1:{self.programs[name, transport].port}/{path}"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Generator[Published]:
    servers, fastmcp = installed("servers.txt"), installed("fastmcp.txt")
    home = tmp_path_factory.mktemp("published")
    repository = made_repository(home / "repository")
    bridged: dict[str, list[str | Path]] = {
        "time": [servers / "mcp-server-time", "--local-timezone", "UTC"],
        "fetch": [servers / "mcp-server-fetch", "--allow-private-ips", "--ignore-robots-txt"],
        "fetch-careful": [servers / "mcp-server-fetch", "--ignore-robots-txt"],
        "git": [servers / "mcp-server-git", "--repository", repository],
    }
    programs: dict[tuple[str, Transport], Program] = {}

    def add(name: str, transport: Transport, script: str, *arguments: str | Path) -> None:
        port = free_port()
        command = [fastmcp / "python", HERE / script, str(port), transport, *arguments]
        programs[name, transport] = Program(command, port, home)

    transports: tuple[Transport, Transport] = ("http", "sse")
    for transport in transports:
        for name, command in bridged.items():
            if (name, transport) != ("fetch-careful", "sse"):
                add(name, transport, "bridge.py", *command)
        add("awkward", transport, "awkward.py")
    add("awkward-stateless", "http", "awkward.py", "stateless")
    try:
        for program in programs.values():
            program.start()
        for program in programs.values():
            program.wait()
        yield Published(programs, repository)
    finally:
        for program in programs.values():
            program.end()


def made_repository(path: Path) -> Path:
    """Make a repository with one commit and a change that is not staged."""
    git = shutil.which("git") or "git"

    def run(*arguments: str) -> None:
        subprocess.run([git, *arguments], cwd=path, check=True, capture_output=True)  # noqa: S603  # our own arguments

    path.mkdir()
    run("init", "-q", "-b", "trunk")
    run("config", "user.name", "Test")
    run("config", "user.email", "test@example.test")
    (path / "f.txt").write_text("one\n")
    run("add", "f.txt")
    run("commit", "-q", "-m", "The first commit")
    (path / "f.txt").write_text("one\ntwo\n")
    return path
