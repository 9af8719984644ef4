"""Log lines: which run they belong to, and what never stands in them."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

SCRIPT = """
import base64, json, logging
from urllib.parse import quote
from app.domain.current import run_id
from app.domain.secrets import Secret
from app.logs import configure_logging

configure_logging("DEBUG", secrets=[Secret("hunter2-and-more"), Secret("x")])
log = logging.getLogger("app.test")
log.info("key is %s, x marks it", "hunter2-and-more")
run_id.set("run_1")
log.warning("sent Authorization: Bearer abcdef123456 to https://a.example/mcp?api_key=abcdef and sk-abcdef123")
try:
    raise ValueError("hunter2-and-more")
except ValueError:
    log.exception("broke")
for name in ("httpx2", "mcp.client.streamable_http", "openai", "aiohttp.client", "of.tomorrow", "uvicorn.error"):
    logging.getLogger(name).debug("url https://a.example/?token=zzzzzz")
    logging.getLogger().setLevel("DEBUG")
logging.getLogger("mcp.client.sse").error("what a server sent")
"""


def lines_of(script: str, code: int = 0) -> list[dict[str, str]]:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603  # our own script
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.fixture(scope="module")
def lines() -> list[dict[str, str]]:
    return lines_of(SCRIPT)


def test_each_line_is_one_json_object_with_time_level_and_logger(lines: list[dict[str, str]]) -> None:
    assert [(line["level"], line["logger"]) for line in lines[:3]] == [
        ("info", "app.test"),
        ("warning", "app.test"),
        ("error", "app.test"),
    ]
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_lines_name_the_run_that_the_task_works_for(lines: list[dict[str, str]]) -> None:
    assert [line.get("run_id") for line in lines[:3]] == [None, "run_1", "run_1"]


def test_secrets_stand_in_no_line_and_no_traceback(lines: list[dict[str, str]]) -> None:
    text = json.dumps(lines)
    assert "hunter2" not in text
    assert "abcdef" not in text
    assert "x marks it" in text
    assert "ValueError" in lines[2]["traceback"]


def test_talk_of_libraries_is_not_written_even_if_the_root_logger_is_turned_up(lines: list[dict[str, str]]) -> None:
    """Of one that nobody knows, what would be written is without its query then."""
    assert "zzzzzz" not in json.dumps(lines)
    assert "what a server sent" not in json.dumps(lines)
    assert [(line["logger"], line["message"]) for line in lines[3:]] == [("of.tomorrow", "url https://a.example/…")]


OF_A_REQUEST = """
held = [Secret("Bearer zqSecret-of/a+user"), Secret("Basic " + base64.b64encode(b"u:zqSecret-2").decode())]
for form in (
    "zqSecret-of/a+user",
    repr({"authorization": held[0].reveal()}),
    repr([(b"authorization", held[1].reveal().encode())]),
    quote("zqSecret-of/a+user"), quote("zqSecret-of/a+user", safe=""),
    json.dumps({"a": ["zqSecret-of/a+user"]}),
    base64.b64encode(b".zqSecret-of/a+user.").decode(),
    "u and zqSecret-2",
):
    log.info("said %s.", form)
try:
    try:
        raise ValueError("zqSecret-of/a+user")
    except ValueError as error:
        error.add_note("zqSecret-2")
        raise ExceptionGroup("two", [error, KeyError("zqSecret-2")]) from error
except ExceptionGroup:
    log.exception("broke")
"""


def test_secrets_that_came_with_a_request_are_known_as_long_as_it_holds_them() -> None:
    lines = lines_of(SCRIPT.partition("log.info")[0] + OF_A_REQUEST)
    assert not re.search("zqSecret|enFTZWNyZXQ|xU2VjcmV0|cVNlY3JldC", json.dumps(lines))
    assert [line["message"][:5] for line in lines] == ["said "] * 8 + ["broke"]
    assert "KeyError" in lines[-1]["traceback"]


SHAPES = {
    "https://user:zqSecret@a.example/mcp": "https://…@a.example/…",
    "https://a.example/s/zqSecret/mcp is away": "https://a.example/… is away",
    "'https://a.example?zqValue', 1": "'https://a.example?…', 1",
    "GET /mcp?a=zqSecret&b=zqSecret2 HTTP/1.1": "GET /mcp?a=…&b=… HTTP/1.1",
    "{'X-User-Token': 'zqSecret', 'a': 1}": "{'X-User-Token': '…', 'a': 1}",
    "[(b'x-api-key', b'zqSecret'), 1]": "[(b'x-api-key', b'…'), 1]",
    "Cookie: zqSecret=zqSecret; path=/": "Cookie: …; path=/",
    "password=zqSecret and client_secret: zqSecret": "password=… and client_secret: …",
    "Basic dXNlcjp6cVNlY3JldA==": "Basic …",
    "tf_zqSecret-and-more": "tf_…",
    "eyJhbGciOi.eyJzdWIiOi.zqSecret": "eyJ…",
    "a basic thing, no tokens: 3 runs, key 'a' is fine": "a basic thing, no tokens: 3 runs, key 'a' is fine",
    "Toolferry listens on http://127.0.0.1:8000 (Ctrl-C stops it)": (
        "Toolferry listens on http://127.0.0.1:8000 (Ctrl-C stops it)"
    ),
    "one line\nand no other\x1b[31m\x9b": "one line\\nand no other\\x1b[31m\\x9b",
}


def test_what_looks_like_a_secret_is_replaced_and_the_rest_stays() -> None:
    script = f"{SCRIPT.partition('log.info')[0]}for text in {list(SHAPES)!r}:\n    log.info('%s', text)"
    assert {said: line["message"] for said, line in zip(SHAPES, lines_of(script), strict=True)} == SHAPES


def test_error_that_nobody_catches_is_a_line_like_all_others() -> None:
    started = SCRIPT.partition("log.info")[0]
    (line,) = lines_of(f"{started}raise OSError('hunter2-and-more')", code=1)
    assert (line["level"], "OSError: …" in line["traceback"]) == ("critical", True)
    thread = "import threading; thread = threading.Thread(target=int, args=('hunter2-and-more',)); thread.start()"
    (line,) = lines_of(f"{started}{thread}")
    assert "ValueError" in line["traceback"]
    assert "hunter2" not in line["traceback"]


def test_line_that_cannot_be_made_is_named_and_not_shown() -> None:
    command = [sys.executable, "-c", f"{SCRIPT.partition('log.info')[0]}log.info('%d runs', 'hunter2-and-more')"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  # our own script
    assert re.fullmatch(r"a log line of app\.test at \d+ could not be written\n", done.stderr)


def test_terminal_gets_lines_of_text_under_the_same_rules() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, stdout=subprocess.PIPE) as process:  # noqa: S603  # our own script
        os.close(theirs)
        told = b""
        try:
            while data := os.read(ours, 4096):
                told += data
        except OSError:  # how a terminal says that the other side has gone
            pass
        assert process.wait(60) == 0
    os.close(ours)
    text = told.decode()
    assert re.search(r"^\d\d:\d\d:\d\d info    app\.test: key is …, x marks it\r$", text, re.MULTILINE)
    assert re.search(r"warning app\.test: .* \[run_1\]\r$", text, re.MULTILINE)
    assert not re.search("hunter2|abcdef|zzzzzz|what a server sent", text)
