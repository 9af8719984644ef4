"""Which servers a run uses and which of their tools: reading, merging, filtering. Pure; connects to nothing.

Merging: environment servers first, a request's server of the same folded name in their place.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.secrets import Secret
from app.domain.spec import Protocol, ServerSpec


@dataclass(frozen=True, slots=True)
class NarrowedServer(ServerSpec):
    """A server of the environment that a request selected and asked to see less of."""

    also_allowed: tuple[str, ...] | None = None
    """The request's `allowed_tools`: a tool must pass both lists, so a request can only narrow the operator's."""


def fold_name(name: str) -> str:
    """Make names comparable: NFKC, case folded, trimmed."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def merge_servers(
    environment: Sequence[ServerSpec], requested: Sequence[ServerSpec], names: Sequence[str] | None
) -> tuple[ServerSpec, ...]:
    """Merge the environment's servers with a request's and keep those that are named (None: all, empty: none).

    Environment servers keep their place, also when replaced; new ones follow in the request's order. Of two entries in
    a request with equal folded names the later one counts, in the place of the first.
    """
    known: dict[str, ServerSpec] = {}
    for server in environment:
        known.setdefault(fold_name(server.name), server)
    wanted = {fold_name(server.name): server for server in requested}
    merged = dict(known)
    for folded, server in wanted.items():
        base = known.get(folded)
        merged[folded] = _narrow(base, server) if base is not None and _selects(server, base) else server
    if names is None:
        return tuple(merged.values())
    chosen = {fold_name(name) for name in names}
    return tuple(server for folded, server in merged.items() if folded in chosen)


def _selects(server: ServerSpec, base: ServerSpec) -> bool:
    return server.url == base.url and not server.headers


def _narrow(base: ServerSpec, wish: ServerSpec) -> ServerSpec:
    """Select the environment's server as it is; a request may ask for less of it, never for more."""
    if wish.allowed_tools is None and not (wish.blocked_tools or wish.timeout_seconds or wish.required):
        return base
    limits = [seconds for seconds in (base.timeout_seconds, wish.timeout_seconds) if seconds is not None]
    return NarrowedServer(
        name=base.name,
        url=base.url,
        trust=base.trust,
        headers=base.headers,
        allowed_tools=base.allowed_tools,
        blocked_tools=(*base.blocked_tools, *wish.blocked_tools),
        timeout_seconds=min(limits, default=None),
        protocol=base.protocol,
        required=base.required or wish.required,
        session=base.session,
        allow_plain_http_public=base.allow_plain_http_public,
        names_caller=base.names_caller,
        also_allowed=wish.allowed_tools,
    )


def tool_allowed(server: ServerSpec, tool_name: str) -> bool:
    """Tell whether the server's lists let a tool through, by its original name and with case. Blocked wins."""
    if _matches(server.blocked_tools, tool_name):
        return False
    lists = [server.allowed_tools, server.also_allowed if isinstance(server, NarrowedServer) else None]
    return all(patterns is None or _matches(patterns, tool_name) for patterns in lists)


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(_compiled(pattern).fullmatch(name) for pattern in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a wildcard pattern: `*` any text, `?` one character, all else literal.

    Requests bring patterns, so each `*` but the last gives up its choice once its next piece was found (atomic groups);
    plain `.*` would try exponentially many.
    """
    first, *rest = (re.escape(piece).replace(r"\?", ".") for piece in pattern.split("*"))
    if not rest:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    return re.compile(f"{first}{middle}.*{rest[-1]}", re.DOTALL)


KEYS = frozenset(
    (
        *("name", "url", "headers", "allowed_tools", "blocked_tools"),
        *("timeout_ms", "protocol", "required", "session", "allow_plain_http_public", "names_caller"),
    )
)
_LONGEST_TIMEOUT_MS = 86_400_000


def servers_from_json(text: str) -> tuple[tuple[ServerSpec, ...], tuple[str, ...]]:
    """Read the operator's `MCP_SERVERS`: the usable servers, and a warning for each entry or key that is passed over.

    Blank text means no servers, a null the same as no key. Of two entries with equal folded names the first stays.
    Warnings name an entry by its name or position and never quote URLs or headers.

    Raises:
        ValueError: The text is not a JSON list. The message quotes nothing of it.
    """
    servers: dict[str, ServerSpec] = {}
    warnings: list[str] = []
    for position, raw in enumerate(_list_from_json(text), start=1):
        entry: JsonObject = {key: value for key, value in raw.items() if value is not None} if is_object(raw) else {}
        label = _label(entry, position)
        unknown = [_shown(key) for key in entry if key not in KEYS]
        if unknown:
            warnings.append(f"{label} has unknown keys, which are ignored: {', '.join(unknown)}.")
        fault = _fault(entry) if is_object(raw) else "it is not a JSON object."
        if fault is None and fold_name(entry["name"]) in servers:
            fault = "an earlier entry has the same name."
        if fault is None:
            servers[fold_name(entry["name"])] = _server_from_entry(entry)
        else:
            warnings.append(f"{label} is skipped: {fault}")
    return tuple(servers.values()), tuple(warnings)


def _list_from_json(text: str) -> list[Json]:
    try:
        entries: Json = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        # The decoder's error carries the whole text, secrets included: it must not be the cause.
        raise ValueError("It is not valid JSON.") from None
    if not is_array(entries):
        raise ValueError("It must be a JSON list of servers.")
    return entries


def _label(entry: JsonObject, position: int) -> str:
    name: Json = entry.get("name")
    return f"Server {_shown(name)}" if isinstance(name, str) and fold_name(name) else f"Server number {position}"


def _shown(text: str) -> str:
    """Quote an operator's word for a log line: one line, nothing unprintable, not endless."""
    return repr(text[:64])


def _fault(entry: JsonObject) -> str | None:
    name: Json = entry.get("name")
    url: Json = entry.get("url")
    checks = {
        "name": isinstance(name, str) and fold_name(name) != "",
        "url": isinstance(url, str) and url != "",
        "headers": _is_headers(entry.get("headers", {})),
        "allowed_tools": _is_patterns(entry.get("allowed_tools", [])),
        "blocked_tools": _is_patterns(entry.get("blocked_tools", [])),
        "timeout_ms": _is_timeout(entry.get("timeout_ms", 1)),
        "protocol": entry.get("protocol", "auto") in get_args(Protocol),
        "required": isinstance(entry.get("required", False), bool),
        "session": entry.get("session", "run") in ("run", "shared"),
        "allow_plain_http_public": isinstance(entry.get("allow_plain_http_public", False), bool),
        "names_caller": isinstance(entry.get("names_caller", False), bool),
    }
    wrong = [key for key, right in checks.items() if not right]
    return f"missing or wrong: {', '.join(wrong)}." if wrong else None


def _is_headers(value: Json) -> bool:
    return is_object(value) and all(isinstance(item, str) for item in value.values())


def _is_patterns(value: Json) -> bool:
    return is_array(value) and all(isinstance(item, str) for item in value)


def _is_timeout(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LONGEST_TIMEOUT_MS


def _server_from_entry(entry: JsonObject) -> ServerSpec:
    """Build an operator's server from an entry that has no fault."""
    headers: Mapping[str, str] = entry.get("headers", {})
    return ServerSpec(
        name=entry["name"],
        url=entry["url"],
        trust="operator",
        headers={name: Secret(value) for name, value in headers.items()},
        allowed_tools=tuple(entry["allowed_tools"]) if "allowed_tools" in entry else None,
        blocked_tools=tuple(entry.get("blocked_tools", ())),
        timeout_seconds=entry["timeout_ms"] / 1000 if "timeout_ms" in entry else None,
        protocol=entry.get("protocol", "auto"),
        required=entry.get("required", False),
        session=entry.get("session", "run"),
        allow_plain_http_public=entry.get("allow_plain_http_public", False),
        names_caller=entry.get("names_caller", False),
    )
