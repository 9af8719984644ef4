"""Limits of a run. The numbers and their reasons are in `security.md`'s table and CONTRACT section 4."""

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
    """The whole run, whatever it does."""
