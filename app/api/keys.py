"""API keys: made, read from the settings, and recognised. Pure; only digests are kept.

A key is 256 random bits, so a plain SHA-256 of it cannot be turned back and needs no salt.
"""

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

_PREFIX = "tf_"
_RANDOM_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One entry of `TOOLFERRY_API_KEYS`."""

    id: str
    digest: bytes
    """SHA-256 of the key."""
    is_trusted: bool = False
    """Whether it may say who the end user is."""


def keys_from_text(text: str) -> tuple[ApiKey, ...]:
    """Read entries `id:sha256hex[:trusted]`, separated by commas; blanks around them do not matter.

    Raises:
        ValueError: An entry cannot be read; the message names its position and quotes nothing of it.
    """
    keys: dict[str, ApiKey] = {}
    for position, entry in enumerate((entry.strip() for entry in text.split(",") if entry.strip()), start=1):
        id_, _, rest = entry.partition(":")
        digest, _, mark = rest.partition(":")
        if not _ID.fullmatch(id_) or not _DIGEST.fullmatch(digest.lower()) or mark not in ("", _TRUSTED):
            raise ValueError(
                f"entry {position} is not of the form id:sha256hex or id:sha256hex:trusted; "
                "`toolferry key NAME` makes a key and its entry"
            )
        if bytes.fromhex(digest) == sha256(b"").digest():
            raise ValueError(f"entry {position} is for no key at all")
        if id_ in keys or any(key.digest == bytes.fromhex(digest) for key in keys.values()):
            raise ValueError(f"entry {position} repeats the id or the key of an earlier one")
        keys[id_] = ApiKey(id_, bytes.fromhex(digest), is_trusted=mark == _TRUSTED)
    return tuple(keys.values())


def new_key() -> str:
    """Make a key."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def entry_from_key(id_: str, key: str, *, is_trusted: bool = False) -> str:
    """Write the entry of `TOOLFERRY_API_KEYS` that lets a key in.

    Raises:
        ValueError: The id has other characters than letters, digits, `.`, `_` and `-`, or more than 64.
    """
    if not _ID.fullmatch(id_):
        raise ValueError("a key's name has 1 to 64 letters, digits, dots, dashes or underscores")
    return f"{id_}:{sha256(key.encode()).hexdigest()}{f':{_TRUSTED}' if is_trusted else ''}"


def find_key(keys: Sequence[ApiKey], given: bytes) -> ApiKey | None:
    """Find the entry that a key belongs to. All are compared, each in constant time."""
    digest = sha256(given).digest()
    found: ApiKey | None = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found
