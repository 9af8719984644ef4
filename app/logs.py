"""Logging: text on a terminal, else one JSON object a line, on stderr; secrets are replaced wherever they show up."""

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from app.domain.current import run_id
from app.domain.secrets import Secret

# These write addresses with their query strings, session ids or whole messages below WARNING.
_TALKATIVE = ("httpx2", "httpcore2", "httpx", "httpcore", "mcp", "openai", "aiohttp", "sse_starlette", "asyncio")

_SHAPES = re.compile(r"(?i)(bearer\s+|\bsk-|api[-_]?key=|token=)[A-Za-z0-9._~+/=-]{4,}")


def configure_logging(level: str, *, secrets: Iterable[Secret] = ()) -> None:
    """Set up the root logger, once per process.

    Args:
        level: A name of the logging module, in any case.
        secrets: Values that must never be written, wherever they come from.
    """
    out = logging.StreamHandler(sys.stderr)
    hidden = sorted({secret.reveal() for secret in secrets if len(secret.reveal()) >= _SHORTEST}, key=len, reverse=True)
    form = _TextLines(hidden) if sys.stderr.isatty() else _JsonLines(hidden)
    out.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[out], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    # It logs what servers sent that it cannot read, with a traceback; what matters of it is in our own lines.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


_SHORTEST = 6  # a shorter value is no secret worth the name, and replacing it would garble every line


class _Redacting(logging.Formatter):
    def __init__(self, hidden: list[str]) -> None:
        super().__init__()
        self._hidden = hidden

    def _clean(self, text: str) -> str:
        for value in self._hidden:
            text = text.replace(value, "…")
        return _SHAPES.sub(r"\1…", text)


class _TextLines(_Redacting):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, tz=UTC).astimezone()
        run = run_id.get()
        line = f"{when:%H:%M:%S} {record.levelname.lower():7} {record.name}: {record.getMessage()}"
        if run:
            line += f" [{run}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return self._clean(line)


class _JsonLines(_Redacting):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        if run := run_id.get():
            line["run_id"] = run
        if record.exc_info:
            line["traceback"] = self._clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
