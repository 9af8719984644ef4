"""A string that must not show up: not in a repr, not in an error, not in a log line."""

import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from itertools import islice
from typing import final
from urllib.parse import quote, quote_plus
from weakref import WeakValueDictionary

_SHORTEST = 6
"""A shorter value is no secret worth the name, and replacing it would garble every line."""
_SHORTEST_WORD = 8
"""The same for a part of a value, where it is one word of several."""
_MOST_WORDS = 16
"""Of one value: each is looked for in every line."""
_SCHEMES = frozenset({"bearer", "basic", "digest", "apikey"})


@final
class Secret:
    """Wraps a credential. Only `reveal` gives it out, at the one place that puts it on the wire."""

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: str) -> None:
        self._value = value
        _living[id(self)] = self

    def reveal(self) -> str:
        """Return the plain value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(_bytes_of(self), _bytes_of(other))

    def __hash__(self) -> int:
        return hash(self._value)


# By identity: of two that are equal one may go while the other is still in use.
_living: WeakValueDictionary[int, Secret] = WeakValueDictionary()


def living_secrets() -> list[Secret]:
    """List every secret that anything in this process still holds, whoever brought it."""
    # The references first, in one step: other threads may make secrets meanwhile.
    return [secret for reference in _living.valuerefs() if (secret := reference()) is not None]


def _bytes_of(secret: Secret) -> bytes:
    # What cannot be encoded would be quoted by the error.
    return secret.reveal().encode(errors="surrogatepass")


def forms_from_secret(secret: Secret) -> tuple[str, ...]:
    """List how a secret may stand in a line: whole and in its words, each as it is and as libraries write it.

    The longest come first, so that none leaves the rest of another.
    """
    forms = {form for word in islice(words_from_secret(secret), _MOST_WORDS) for form in _written(word)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def words_from_secret(secret: Secret) -> Iterator[str]:
    """Take a value apart: a header's scheme and fields are no secrets, a password is one without its user too."""
    value = secret.reveal()
    if len(value) >= _SHORTEST:
        yield value
    scheme, _, rest = value.partition(" ")
    inside = [value]
    if scheme.lower() == "basic":
        inside.append(_from_base64(rest))
    for text in inside:
        for word in re.split(r"[\s;,:]+", text):
            for part in (word, word.partition("=")[2].strip('"')):
                if len(part) >= _SHORTEST_WORD and part.lower() not in _SCHEMES:
                    yield part


def _from_base64(text: str) -> str:
    try:
        return b64decode(text, validate=True).decode(errors="replace")
    except ValueError:
        return ""


def _written(word: str) -> Iterator[str]:
    yield word
    yield from (quote(word, safe="", errors="replace"), quote(word, errors="replace"))
    yield quote_plus(word, errors="replace")
    yield from (repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1])
    data = word.encode(errors="replace")
    for shift in range(3):
        # What stands before it moves the bits; the outermost characters hold some of its neighbours'.
        whole = (shift + len(data)) * 8 // 6
        inner = b64encode(bytes(shift) + data).decode()[(shift * 8 + 5) // 6 : whole]
        yield from (inner, inner.translate(_URL_SAFE))


_URL_SAFE = str.maketrans("+/", "-_")
