"""Our own credentials in what a server says, taken out before anything else reads it. Pure.

A careless server repeats what it was sent: in an error, a result, the description of a tool. Whoever uses an operator's
server would read the operator's key there, and so would the model. Ordinary words of headers stay: they may be what the
talk is about.
"""

import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from app.domain.secrets import words_from_secret
from app.domain.spec import ServerSpec

_NAMED = re.compile(
    r"(?:auth|authorization|cookie|token|secret|pass|password|passphrase|key|pin|code|sid|session|session[-_]?id|"
    r"credentials?|sig|signature)$",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_WORDS = {"operator": 64, "user": 8}
"""Each costs a search of all that the server says. What users bring is theirs anyway."""
_SHORTEST = 8
_SHORTEST_LETTERS = 16
"""Of letters only it may be an ordinary word."""
_SHORTEST_ELSEWHERE = 20
"""Where a name does not say that it is a credential, it must look like one."""
_MASK = "…".encode()


def credentials_from_server(server: ServerSpec) -> tuple[bytes, ...]:
    """List the credentials that go to a server, as they may stand in JSON, the longest first."""
    words = [word for name, value in server.headers.items() for word in words_from_secret(value) if _is_one(word, name)]
    words = [word for word in words if word not in server.told]
    parts = urlsplit(server.url)
    for pair in re.split("[&;]", parts.query):
        name, _, value = pair.rpartition("=")
        words += [word for word in (value, unquote(value), unquote_plus(value)) if _is_one(word, name or "key")]
    for segment in parts.path.split("/"):
        words += [word for word in (segment, unquote(segment)) if _is_one(word, "")]
    words = sorted(set(words), key=len, reverse=True)[: _MOST_WORDS[server.trust]]
    return tuple(sorted({form for word in words for form in _forms(word)}, key=lambda form: (-len(form), form)))


def without(body: bytes, credentials: Sequence[bytes]) -> bytes:
    """Put a mark in place of each credential in the text of JSON."""
    for credential in credentials:
        body = body.replace(credential, _MASK)
    return body


def _is_one(word: str, name: str) -> bool:
    has_digits, has_letters = re.search("[0-9]", word), re.search("[A-Za-z]", word)
    if _NAMED.search(name):
        return len(word) >= (_SHORTEST if has_digits else _SHORTEST_LETTERS)
    return len(word) >= _SHORTEST_ELSEWHERE and bool(has_digits and has_letters) and not _UUID.fullmatch(word)


def _forms(word: str) -> Iterator[bytes]:
    for text in (word, quote(word, safe="", errors="replace"), quote_plus(word, errors="replace")):
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(text, ensure_ascii=False)[1:-1].encode(errors="replace")
        yield json.dumps(text)[1:-1].replace("/", "\\/").encode()
