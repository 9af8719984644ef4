"""Log lines: which run they belong to, and what never stands in them."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import logging
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
for name in ("httpx2", "mcp.client.streamable_http", "openai", "aiohttp.client"):
    logging.getLogger(name).info("url https://a.example/?token=zzzzzz")
logging.getLogger("mcp.client.sse").error("what a server sent")
"""


@pytest.fixture(scope="module")
def lines() -> list[dict[str, str]]:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  # our own script
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_each_line_is_one_json_object_with_time_level_and_logger(lines: list[dict[str, str]]) -> None:
    assert [(line["level"], line["logger"]) for line in lines] == [
        ("info", "app.test"),
        ("warning", "app.test"),
        ("error", "app.test"),
    ]
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_lines_name_the_run_that_the_task_works_for(lines: list[dict[str, str]]) -> None:
    assert [line.get("run_id") for line in lines] == [None, "run_1", "run_1"]


def test_secrets_stand_in_no_line_and_no_traceback(lines: list[dict[str, str]]) -> None:
    text = json.dumps(lines)
    assert "hunter2" not in text
    assert "abcdef" not in text
    assert "x marks it" in text
    assert "ValueError" in lines[2]["traceback"]


def test_talk_of_libraries_is_not_written(lines: list[dict[str, str]]) -> None:
    assert "zzzzzz" not in json.dumps(lines)
    assert "what a server sent" not in json.dumps(lines)
