"""Every error that may leave the service, each with its stable code.

```
FerryError
├── RequestError            the caller's; answered with a status before the first byte
│   ├── InvalidRequest      invalid_request
│   ├── MalformedRequest    invalid_request (not JSON at all)
│   ├── ModelRequired       model_required
│   ├── ModelNotFound       model_not_found
│   ├── NotFound            not_found
│   ├── Gone                not_found (retention cut what was asked for)
│   ├── Conflict            conflict
│   ├── BodyTooLarge        body_too_large
│   ├── BodyTooSlow         invalid_request
│   ├── WrongMediaType      invalid_request
│   ├── Unauthorized        unauthorized
│   ├── TooManyRuns         too_many_runs
│   └── ShuttingDown        shutting_down
└── RunError                ends a run with `status: error`
    ├── UpstreamUnreachable upstream_unreachable
    ├── UpstreamAuth        upstream_auth
    ├── UpstreamRateLimited upstream_rate_limited
    ├── UpstreamRefused     upstream_refused
    ├── UpstreamFailed      upstream_failed
    ├── UpstreamIncomplete  upstream_incomplete
    ├── ContextLengthExceeded context_length_exceeded
    └── DeadlineExceeded    deadline_exceeded
```

Anything else is a fault of ours: it is logged with its traceback and leaves as `internal` without detail. The texts are
for the caller: they hold no address of the inside, no header, no secret. Tool trouble is no exception but a
`ToolOutcome`, with one of `CALL_CODES`.
"""

from typing import ClassVar

CALL_CODES = frozenset(
    {
        "tool_failed",
        "tool_unknown",
        "tool_arguments_invalid",
        "tool_timeout",
        "tool_outcome_unknown",
        "tool_changed",
        "approval_declined",
        "skipped",
        "cancelled",
        "connection_lost",
        "server_unreachable",
    }
)
"""How a call can fail."""


class FerryError(Exception):
    """The root. `code` is stable; `str(error)` is a sentence for the caller."""

    code: ClassVar[str] = "internal"


class RequestError(FerryError):
    """The request cannot be served as it is. `param` names the field at fault, as a dotted path."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A field is unknown, missing or wrong."""


class MalformedRequest(RequestError):
    """The body, a header or a cursor cannot be read at all."""


class ModelRequired(RequestError):
    """No model was named and none can be found."""

    code: ClassVar[str] = "model_required"


class ModelNotFound(RequestError):
    """`MODELS` is set and does not list the model."""

    code: ClassVar[str] = "model_not_found"


class NotFound(RequestError):
    """No such run (or it has expired), no such server, no such route."""

    code: ClassVar[str] = "not_found"


class Gone(RequestError):
    """Retention has cut the events that were asked for."""

    code: ClassVar[str] = "not_found"


class Conflict(RequestError):
    """The same `Idempotency-Key` came with another body, or a question was answered before."""

    code: ClassVar[str] = "conflict"


class BodyTooLarge(RequestError):
    """The body is over `TOOLFERRY_MAX_BODY_BYTES`."""

    code: ClassVar[str] = "body_too_large"


class BodyTooSlow(RequestError):
    """The body did not come within `TOOLFERRY_BODY_READ_MS`."""


class WrongMediaType(RequestError):
    """The body is not declared as JSON."""


class Unauthorized(RequestError):
    """What was shown does not open this."""

    code: ClassVar[str] = "unauthorized"


class TooManyRuns(RequestError):
    """As many runs as allowed are under way."""

    code: ClassVar[str] = "too_many_runs"


class ShuttingDown(RequestError):
    """The process drains and takes no new runs."""

    code: ClassVar[str] = "shutting_down"


class RunError(FerryError):
    """Ends a run with `status: error`; what was streamed stays."""


class UpstreamUnreachable(RunError):
    """The model endpoint cannot be connected to, or the connection was lost before the first byte."""

    code: ClassVar[str] = "upstream_unreachable"


class UpstreamAuth(RunError):
    """The model endpoint refused our credentials (401, 403)."""

    code: ClassVar[str] = "upstream_auth"


class UpstreamRateLimited(RunError):
    """The model endpoint asks to wait (429), for longer or more often than we do."""

    code: ClassVar[str] = "upstream_rate_limited"


class UpstreamRefused(RunError):
    """The model endpoint will not take this request (another 4xx)."""

    code: ClassVar[str] = "upstream_refused"


class UpstreamFailed(RunError):
    """The model endpoint failed (5xx, an error inside the stream, no event stream at all)."""

    code: ClassVar[str] = "upstream_failed"


class UpstreamIncomplete(RunError):
    """The stream ended without its end: no finish reason, no `[DONE]`."""

    code: ClassVar[str] = "upstream_incomplete"


class ContextLengthExceeded(RunError):
    """The conversation is longer than the model takes."""

    code: ClassVar[str] = "context_length_exceeded"


class DeadlineExceeded(RunError):
    """The run as a whole, or a silence of the model, took longer than allowed."""

    code: ClassVar[str] = "deadline_exceeded"
