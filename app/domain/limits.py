"""Limits of a request and of a run. Each is a setting, so that operators and tests can choose their own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may use."""

    calls_per_round: int = 64
    calls_at_once: int = 8
    identical_calls: int = 3
    """After so many identical calls with identical results a call is not executed again."""
    cut_off_retries: int = 2
    """How often a reply that was cut off inside its calls is answered with a request for smaller ones."""
    run_seconds: float = 1800.0
    """The whole run, whatever it does but wait for a person."""
    input_seconds: float = 600.0
    """How long a question to a person stays open."""
    reasoning_as_answer: bool = False
    """A reply that holds nothing but reasoning is an answer, and its reasoning is shown as one."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may bring, checked before it is a run."""

    body_bytes: int = 10 * 1024 * 1024
    """Pictures come inline."""
    json_depth: int = 64
    servers: int = 16
    server_headers: int = 32
    """For each server."""
    body_seconds: float = 30.0
    """From the first byte of a body to its last."""
    runs_per_key: int = 512
    """Under way at once."""
    runs_per_user: int = 8
    """Under way at once, for an end user that a key names."""
