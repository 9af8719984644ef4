"""A string that must not show up: not in a repr, not in an error, not in a log line."""

import hmac
from typing import final


@final
class Secret:
    """Wraps a credential. Only `reveal` gives it out, at the one place that puts it on the wire."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the plain value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)
