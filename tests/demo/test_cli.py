"""The commands, as a shell runs them."""

import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from httpx_sse import connect_sse

from app import __version__
from app.api.keys import entry_from_key, find_key, keys_from_text, new_key
from app.cli import main

COMMAND = Path(sys.executable).with_name("toolferry")
GARBAGE = {
    "OPENAI_BASE_URL": "not a url",
    "OPENAI_API_KEY": "planted-secret-key",
    "HF_TOKEN": "planted-secret-token",
    "MCP_SERVERS": "{",
    "MODELS": "{",
    "PORT": "many",
    "HOST": "nowhere.invalid",
    "LOG_LEVEL": "loud",
    "USE_USER_TOKEN": "perhaps",
    "TOOLFERRY_NO_SUCH_SETTING": "1",
    "TOOLFERRY_MAX_BODY_BYTES": "-1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "SSL_CERT_FILE": "nowhere.pem",
    "COLUMNS": "wide",
    "PYTHONIOENCODING": "ascii",
}
_LINE = re.compile(r"^ *(\d+)  (\S+) +(.*)$")


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No `.env` in the working directory, none of this machine's settings, and logging as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    starts = ("OPENAI_", "MCP_", "TOOLFERRY_", "HF_", "LLM_", "SSL_CERT_")
    names = ("HOST", "PORT", "MODELS", "LOG_LEVEL", "USE_USER_TOKEN", "NO_COLOR")
    for name in list(os.environ):
        if name.startswith(starts) or name in names or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@contextmanager
def started(*arguments: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    """A command that runs; it is killed if the test leaves it running."""
    process = subprocess.Popen(  # noqa: S603  # our own command
        [COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def events_of(output: str) -> list[tuple[int, str, str]]:
    """Id, name and shown data of each event line."""
    found = (_LINE.match(line) for line in output.splitlines())
    return [(int(match[1]), match[2], match[3]) for match in found if match]


def read_until(process: subprocess.Popen[str], start: str) -> str:
    """Read a process's output up to the first line that starts so; the test's time-out bounds the wait."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    pytest.fail(f"the output ended without a line that starts with {start!r}")


def test_the_demo_completes_whatever_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TOOLFERRY_NO_SUCH_SETTING=1\nMCP_SERVERS={\n", encoding="utf-8")
    with started("demo", "--once", "--port", "0", **GARBAGE) as process:
        output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert "scripted" in output
    assert "planted-secret" not in output
    events = events_of(output)
    names = [name for _, name, _ in events]
    ids = [number for number, _, _ in events]
    assert ids == sorted(set(ids))
    assert (ids[0], names[0]) == (1, "status")
    assert '"finished"' in events[-1][2]
    assert '"completed"' in events[-1][2]
    assert names[-2:] == ["finalAnswer", "status"]
    assert names.count("tool/call") == names.count("tool/result") == 5
    assert "tool/error" not in names
    assert "tool/progress" in names
    # Side by side: all are announced before the first one ends.
    assert names.index("tool/result") > max(index for index, name in enumerate(names) if name == "tool/call")
    assert "curl" not in output


def test_the_demo_in_this_process_ends_with_zero_and_shows_a_chart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--once", "--port", "0"]) == 0
    output = capsys.readouterr().out
    assert "Completed." in output
    assert "A bar chart of 3, 5, 8" in output
    assert "\x1b[" not in output


def test_the_demo_goes_on_serving_and_its_curl_line_works() -> None:
    with started("demo", "--port", "0") as process:
        line = read_until(process, "curl -N")
        words = shlex.split(line)
        url, body = words[2], words[words.index("-d") + 1]
        with httpx.Client(trust_env=False, timeout=30, headers=headers_of(words)) as client:
            with connect_sse(client, "POST", url, content=body) as source:
                frames = [(frame.event, json.loads(frame.data)) for frame in source.iter_sse() if frame.data]
            models = client.get(url.replace("/runs", "/models")).json()["data"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert frames[-1][1]["outcome"] == "completed"
    called = [data["tool"] for name, data in frames if name == "tool/call"]
    assert called == ["dice", "chart"]  # the second one needs the first one's result
    assert any(name == "reasoning" for name, _ in frames)
    assert [model["id"] for model in models] == ["scripted-demo"]
    assert process.returncode in (0, 130)
    assert errors == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_during_the_sample_is_quiet(number: signal.Signals) -> None:
    with started("demo", "--port", "0") as process:
        read_until(process, "   1  status")
        process.send_signal(number)
        output, errors = process.communicate()
    assert process.returncode in (0, 130)
    assert errors == ""
    assert "Still serving" not in output


def headers_of(words: list[str]) -> dict[str, str]:
    """Read the headers of a curl command."""
    given = [words[position + 1] for position, word in enumerate(words) if word == "-H"]
    return {name: value.strip() for name, _, value in (header.partition(":") for header in given)}


@pytest.mark.parametrize("trusted", [False, True])
def test_a_key_is_made_with_its_entry_and_opens_the_service(trusted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "chat", *(["--trusted"] if trusted else [])]) == 0
    key, entry = (line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    (made,) = keys_from_text(entry)
    assert (made.id, made.is_trusted) == ("chat", trusted)
    assert find_key([made], key.encode()) is made
    with started("serve", "--port", "0", OPENAI_BASE_URL="http://127.0.0.1:9/v1", TOOLFERRY_API_KEYS=entry) as process:
        url = read_until(process, "Toolferry listens on ").split()[3]
        with httpx.Client(trust_env=False, timeout=30) as client:
            opened = client.get(f"{url}/v1/servers", headers={"Authorization": f"Bearer {key}"})
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert opened.status_code == 200
    assert "curl" not in output, "no further key is made"


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [
        (("TOOLFERRY_AUTH", "none"), ("--host", "0.0.0.0")),
        (("TOOLFERRY_API_KEYS", ""), ("--host", "0.0.0.0")),
        (("TOOLFERRY_ALLOWED_HOSTS", ""), ("--host", "::")),
        (("TOOLFERRY_API_KEYS", "chat:none"), ()),
        (("TOOLFERRY_CORS_ORIGINS", "*"), ()),
        (("TOOLFERRY_ALLOWED_HOSTS", "*"), ()),
    ],
)
def test_what_would_leave_the_service_open_stops_the_start(
    setting: tuple[str, str],
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    if setting[0] != "TOOLFERRY_API_KEYS":
        monkeypatch.setenv("TOOLFERRY_API_KEYS", entry_from_key("me", new_key()))
    monkeypatch.setenv(*setting)
    assert main(["serve", "--port", "0", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"toolferry: {setting[0]}: ")


def test_the_demo_takes_the_next_free_port() -> None:
    with started("demo") as first:
        url = read_until(first, "  service").split()[1]
        with started("demo") as second:
            other_url = read_until(second, "  service").split()[1]
    ports = {int(found.rpartition(":")[2]) for found in (url, other_url)}
    assert len(ports) == 2
    assert ports <= set(range(8000, 8100))


def test_a_reader_that_goes_away_ends_the_demo_quietly() -> None:
    with started("demo", "--port", "0") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait() in (0, 1)
    assert errors == ""


@pytest.mark.parametrize("command", [("demo", "--once"), ("serve",)])
def test_a_port_in_use_is_one_clear_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*command, "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(port) in line
    assert "in use" in line


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "nowhere.invalid", "x" * 80])
def test_an_address_that_cannot_be_is_one_clear_line(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("TOOLFERRY_API_KEYS", entry_from_key("me", new_key()))
    monkeypatch.setenv("TOOLFERRY_ALLOWED_HOSTS", "chat.example")
    assert main(["serve", "--host", host, "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"toolferry: cannot listen on {host}")


def test_serve_without_an_endpoint_refuses_and_names_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "toolferry demo" in line
    assert "OPENAI_BASE_URL" in line


@pytest.mark.parametrize(
    "setting",
    [
        ("PORT", "many"),
        ("USE_USER_TOKEN", "perhaps"),
        ("MCP_SERVERS", "{"),
        ("MODELS", "{"),
        ("TOOLFERRY_NO_SUCH_SETTING", "1"),
        ("TOOLFERRY_MAX_BODY_BYTES", "-1"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--demo-servers",)])
def test_a_bad_setting_is_one_line_that_names_it(
    setting: tuple[str, str],
    more: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv(*setting)
    arguments = ("serve", *more) if setting[0] == "PORT" else ("serve", "--port", "0", *more)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("toolferry: ")
    assert setting[0] in line


@pytest.mark.parametrize(("more", "names"), [((), []), (("--demo-servers",), ["Demo"])])
def test_serve_serves_until_it_is_stopped(more: tuple[str, ...], names: list[str]) -> None:
    with started("serve", "--port", "0", *more, OPENAI_BASE_URL="http://127.0.0.1:9/v1") as process:
        url = read_until(process, "Toolferry listens on ").split()[3]
        words = shlex.split(read_until(process, "curl "))
        assert words[2] == f"{url}/v1/runs"
        with httpx.Client(trust_env=False, timeout=30) as client:
            assert client.get(f"{url}/healthz").status_code == 200
            assert client.get(f"{url}/v1/servers").status_code == 401
            listed = client.get(f"{url}/v1/servers", headers=headers_of(words)).json()["data"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert [server["name"] for server in listed] == names
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, __version__),
        (["--help"], 0, "demo"),
        ([], 2, "COMMAND"),
        (["sing"], 2, "sing"),
        (["serve", "--port", "65536"], 2, "65536"),
        (["serve", "--port", "-1"], 2, "--port"),
        (["demo", "--port", "x"], 2, "'x' is no port"),
    ],
)
def test_the_command_line_explains_itself(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
