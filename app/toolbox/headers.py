"""Which headers a server's entry may carry. Knows names and values as text; sends nothing.

Names are compared without case, and with `_` as `-`, because CGI-style back
ends read them that way.
"""

import re
from collections.abc import Mapping

from app.domain.secrets import Secret

MAX_NAME_CHARACTERS = 128
MAX_VALUE_CHARACTERS = 8192
MAX_TOTAL_CHARACTERS = 16384

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")

_RESERVED = frozenset(
    (
        # overrides the vetted host
        "host",
        # belong to one hop
        *("connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings"),
        # message framing
        *("transfer-encoding", "expect"),
        # owned by the transport
        *("accept", "accept-encoding", "range", "if-range", "last-event-id"),
        # identity and routing that back ends believe of proxies
        *("forwarded", "x-forwarded", "via", "max-forwards", "cdn-loop"),
        *(
            "x-real-ip",
            "x-client-ip",
            "true-client-ip",
            "client-ip",
            "x-cluster-client-ip",
            "fastly-client-ip",
            "x-originating-ip",
        ),
        *(
            "cf-connecting-ip",
            "cf-connecting-ipv6",
            "cf-pseudo-ipv4",
            "cf-access-jwt-assertion",
            "cf-ipcountry",
            "cf-visitor",
        ),
        *("x-azure-clientip", "x-azure-socketip", "x-proxyuser-ip", "proxy-client-ip", "wl-proxy-client-ip"),
        *("x-host", "x-http-method", "x-http-method-override", "x-method-override", "x-lighttpd-send-file"),
        *("remote-user", "x-webauth-user", "x-client-cert"),
        # unlock a cloud's metadata service
        *("metadata", "x-google-metadata-request", "x-identity-header"),
        # tracing is the service's own
        *(
            "traceparent",
            "tracestate",
            "baggage",
            "b3",
            "x-amzn-trace-id",
            "x-cloud-trace-context",
            "uber-trace-id",
            "sentry-trace",
        ),
    )
)
_RESERVED_PREFIXES = (
    "proxy-",
    "content-",  # describes the body, which the transport makes
    "mcp-",
    "x-forwarded-",
    "x-original-",
    "x-rewrite-",
    "x-remote-",
    "x-auth-request-",
    "x-authenticated-",
    "x-envoy-",
    "x-accel-",
    "x-sendfile",
    "x-amzn-oidc-",
    "x-amzn-mtls-",
    "x-goog-iap-",
    "x-goog-authenticated-",
    "x-appengine-",
    "x-ms-client-principal",
    "x-ssl-client-",
    "ssl-client-",
    "metadata-",
    "x-aws-ec2-metadata-",
    "x-aliyun-ecs-metadata-",
    "x-b3-",
    "x-datadog-",
    "toolferry-",
    "x-toolferry-",
)


def fault_of_headers(headers: Mapping[str, Secret], max_headers: int) -> str | None:
    """Say what is wrong with a server's headers in a sentence that repeats no name or value of theirs; None if nothing.

    Only a reserved name is told, as our own list spells it.
    """
    if len(headers) > max_headers:
        return f"More than {max_headers} headers are set."
    seen: set[str] = set()
    total = 0
    for position, (name, secret) in enumerate(headers.items(), start=1):
        value = secret.reveal()
        fault = _fault_of_name(name, position)
        if fault is not None:
            return fault
        folded = _fold(name)
        if folded in seen:
            return f"Header {position} repeats the name of an earlier one."
        if not is_header_value(value):
            return f"The value of header {position} is empty, too long, or not plain printable ASCII."
        seen.add(folded)
        total += len(name) + len(value)
    return "The headers are too large together." if total > MAX_TOTAL_CHARACTERS else None


def is_header_value(value: str) -> bool:
    """Tell whether a header may have this value: printable ASCII, no spaces at its ends, not too long."""
    return len(value) <= MAX_VALUE_CHARACTERS and _VALUE.fullmatch(value) is not None


def _fault_of_name(name: str, position: int) -> str | None:
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        return f"The name of header {position} is empty, too long, or not an HTTP token."
    folded = _fold(name)
    if folded in _RESERVED:
        return f"The header {folded} cannot be set; it belongs to the connection or the service."
    prefix = next((prefix for prefix in _RESERVED_PREFIXES if folded.startswith(prefix)), None)
    return prefix and f"Headers that begin with {prefix} cannot be set; they belong to the connection or the service."


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")
