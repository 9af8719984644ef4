"""Who asks: what every run, cache, connection and answer is kept apart by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of what a request makes. Two that differ in anything see nothing of each other."""

    key: str = ""
    """The id of the API key; empty where none is asked for."""
    user: str | None = None
    """The end user, as a trusted key named them."""


NOBODY = Principal()
"""The service itself, and everybody where no keys are asked for."""
