"""Kinds of setting: how a text of the environment becomes a value, and what is wrong with it otherwise. Pure."""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

_INJECTED = re.compile(r"TOOLFERRY_(PORT|SERVICE_)")
"""What orchestrators put into the environment, by the name of the service."""
_Parsed = TypeVar("_Parsed")


class SettingsError(Exception):
    """A setting cannot be used; the text names it."""


def parsed(name: str, text: str | None, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Read a setting's text by a function that raises ValueError; raises SettingsError, which names the setting."""
    try:
        return parse(text or "")
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None


def refuse_unknown(names: Iterable[str], *, known: Collection[str]) -> None:
    """Raise SettingsError where a name looks like one of ours and is none."""
    unknown = {name for name in names if name.startswith("TOOLFERRY_") and name not in known}
    unknown = {name for name in unknown if not _INJECTED.match(name)}
    if unknown:
        raise SettingsError(f"{', '.join(sorted(unknown))}: no such setting; .env.example lists all")


def _exact_bool(value: object) -> object:
    if isinstance(value, str):
        if value not in ("true", "false"):
            raise ValueError("must be exactly true or false")
        return value == "true"
    return value


def lower(value: object) -> object:
    """Take a word in any case."""
    return value.lower() if isinstance(value, str) else value


def _blank_is_absent(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value.strip()


def _sendable(key: SecretStr | None) -> SecretStr | None:
    text = key.get_secret_value() if key else ""
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("must be printable ASCII without blanks, as it is sent in a header")
    return key


_WEEK_MS = 7 * 24 * 3600 * 1000

Switch: TypeAlias = Annotated[bool, BeforeValidator(_exact_bool)]
Optional: TypeAlias = Annotated[str | None, BeforeValidator(_blank_is_absent)]
Name: TypeAlias = Annotated[str, AfterValidator(_not_blank)]
Key: TypeAlias = Annotated[SecretStr | None, BeforeValidator(_blank_is_absent), AfterValidator(_sendable)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Milliseconds: TypeAlias = Annotated[int, Field(ge=1)]
UpToAWeek: TypeAlias = Annotated[int, Field(ge=1, le=_WEEK_MS)]
