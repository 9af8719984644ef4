"""What the model calls a tool. Pure, and the same in every process; knows names only.

Providers take `^[a-zA-Z0-9_-]{1,64}$`, and some want a letter or `_` first. The way back to (server, original name) is
the caller's list, by position.
"""

import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from itertools import count

from app.domain.spec import ServerSpec

MAX_NAME_CHARACTERS = 64

_OTHER = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_names(tools: Sequence[tuple[ServerSpec, str]], *, taken: Collection[str] = ()) -> list[str]:
    """Name each tool, given as (server, original name): valid, distinct, parallel to the input.

    Where names collide, the first in order keeps the plain one; each other gets its server's name as suffix, then a
    number. Names that are `taken` are given to nobody. All tools of operators are named before those of users, so what
    users bring never changes their names.
    """
    names: dict[int, str] = {}
    used = set(taken)
    numbers: dict[str, count[int]] = {}
    for trust in ("operator", "user"):
        plain = {at: _plain(name) for at, (server, name) in enumerate(tools) if server.trust == trust}
        for position, name in plain.items():
            if name not in used:
                names[position] = name
                used.add(name)
        for position in [position for position in plain if position not in names]:
            server, name = tools[position]
            suffixed = f"{plain[position]}_{_clean(server.name) or 'server'}"
            names[position] = _free(_cut(suffixed, f"{name}\n{server.name}"), used, numbers)
            used.add(names[position])
    return [names[position] for position in range(len(tools))]


def _plain(name: str) -> str:
    clean = _clean(name)
    if not name:
        return "tool"
    if not clean.strip("_-"):
        return f"tool_{_digest(name)}"
    return _cut(clean if clean[0] == "_" or clean[0].isalpha() else f"_{clean}", name)


def _clean(name: str) -> str:
    return _OTHER.sub("_", name)


def _cut(name: str, identity: str) -> str:
    """Shorten a name that is too long; a hash of what it stands for keeps two with the same beginning apart."""
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{_digest(identity)}"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def _free(name: str, used: set[str], numbers: dict[str, "count[int]"]) -> str:
    """Return the name, or it with the first number that nobody has. Counting goes on where it stopped last time."""
    candidate = name
    while candidate in used:
        suffix = f"_{next(numbers.setdefault(name, count(2)))}"
        candidate = f"{name[: MAX_NAME_CHARACTERS - len(suffix)]}{suffix}"
    return candidate
