"""Logging: text on a terminal, else one JSON object a line, on stderr; secrets are replaced wherever they show up.

Secrets are those that were given, every `Secret` in use at the moment, of whatever request, and what has the form of
one. They are found as they are and as libraries write them: quoted, percent-encoded, in base64.

Only this service's own loggers write below WARNING. Those of libraries hold addresses with their query strings, session
ids, headers and whole messages, and the next release of one may bring a logger that nobody has heard of.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO
from weakref import WeakKeyDictionary

from typing_extensions import override

from app.domain.current import run_id
from app.domain.secrets import Secret, forms_from_secret, living_secrets

_OWN = "app"
_SERVER = "uvicorn"  # says when it starts and stops; below INFO it repeats the headers of requests
_TALKATIVE = ("httpx2", "httpcore2", "httpx", "httpcore", "mcp", "openai", "aiohttp", "sse_starlette", "asyncio")
"""Held down by name too, in case someone turns the root logger up."""

_SHAPES = (
    re.compile(r"(?i)(\bbearer\s+|\bbasic\s+(?=\S{8}))[\w.~+/=-]{4,}"),
    re.compile(r"(\b(?:sk|pk|rk|hf|tf|ghp|gho)[-_])[\w.-]{6,}"),
    re.compile(r"(\beyJ)[\w-]+\.[\w-]+\.[\w-]*"),
    re.compile(
        r"""(?ix)((?:authorization|cookie|[\w-]{0,32}(?:token|api[-_]?key|secret|password))
        (?:["']?\s{0,4}[:=]\s{0,4}|["']\s{0,4},\s{0,4})b?["']?)[^\s"',;&)\]}]+"""
    ),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,15}://)[^\s/?#@\"'<>]+(?=@)"),  # userinfo
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,15}://[^\s/?#\"'<>]+[/?#])[^\s\"'<>]+"),  # whatever follows the origin
    re.compile(r"([?&][\w.~%-]{1,64}=)[^\s&\"'<>]+"),  # a query without its address
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(level: str, *, secrets: Iterable[Secret] = ()) -> None:
    """Set up the root logger, once per process.

    Args:
        level: A name of the logging module, in any case; for the lines of this service itself.
        secrets: Values that must never be written, wherever they come from.
    """
    out = _Stderr(sys.stderr)
    form = _TextLines(secrets) if sys.stderr.isatty() else _JsonLines(secrets)
    out.setFormatter(form)
    wanted = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(logging.WARNING, wanted), handlers=[out], force=True)
    logging.getLogger(_OWN).setLevel(wanted)
    logging.getLogger(_SERVER).setLevel(max(logging.INFO, wanted))
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, wanted))
    # It logs what servers sent that it cannot read, with a traceback; what matters of it is in our own lines.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    _log_the_uncaught()


def _log_the_uncaught() -> None:
    """Have exceptions that nobody catches written like all others, instead of as they are."""
    log = logging.getLogger(_OWN)
    interpreters_own = sys.excepthook

    def on_exception(*raised: *tuple[type[BaseException], BaseException, object]) -> None:
        kind, error, trace = raised
        if isinstance(error, Exception):
            log.critical("the process broke", exc_info=error)
        else:  # Ctrl-C
            interpreters_own(kind, error, trace)  # pyright: ignore[reportArgumentType] - the hook says what they are

    def on_thread(raised: threading.ExceptHookArgs) -> None:
        if raised.exc_value is not None and not isinstance(raised.exc_value, SystemExit):
            log.error("a thread broke", exc_info=raised.exc_value)

    def on_unraisable(raised: "sys.UnraisableHookArgs") -> None:
        log.error("an error nobody can be told of", exc_info=raised.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = on_exception, on_thread, on_unraisable


class _Stderr(logging.StreamHandler[TextIO]):
    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Say which line is missing. The library's own complaint repeats what was to be written."""
        sys.stderr.write(f"a log line of {record.name} at {record.lineno} could not be written\n")


class _Redacting(logging.Formatter):
    def __init__(self, given: Iterable[Secret]) -> None:
        super().__init__()
        self._given = list(given)  # holding them is what makes them known
        self._known: WeakKeyDictionary[Secret, tuple[str, ...]] = WeakKeyDictionary()

    def _clean(self, text: str) -> str:
        for secret in living_secrets():
            forms = self._known.get(secret)
            if forms is None:
                forms = self._known[secret] = forms_from_secret(secret)
            for form in forms:
                text = text.replace(form, "…")
        for shape in _SHAPES:
            text = shape.sub(r"\1…", text)
        return _UNSEEN.sub(lambda match: f"\\x{ord(match[0]):02x}", text)

    def _message(self, record: logging.LogRecord) -> str:
        # One line, so that nobody's words can look like the next one.
        return self._clean(record.getMessage()).replace("\n", "\\n")


class _TextLines(_Redacting):
    @override
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, tz=UTC).astimezone()
        run = run_id.get()
        line = f"{when:%H:%M:%S} {record.levelname.lower():7} {record.name}: {self._message(record)}"
        if run:
            line += f" [{run}]"
        if record.exc_info:
            line += "\n" + self._clean(self.formatException(record.exc_info))
        return line


class _JsonLines(_Redacting):
    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
        }
        if run := run_id.get():
            line["run_id"] = run
        if record.exc_info:
            line["traceback"] = self._clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
