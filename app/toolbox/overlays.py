"""The caller's token and the operator's keys, each for its one exact host. Runs after admission; knows no tools.

The hosts and how they take their key are Chat UI's rules, read more narrowly: the default port only, and never over a
credential that the entry brings itself.
"""

from dataclasses import replace
from urllib.parse import parse_qsl, quote

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.addresses import Refused, UrlParts, split_url
from app.toolbox.headers import is_header_value

_EXA_PARAMETER = "exaApiKey"


def overlay(
    server: ServerSpec, *, user_token: Secret | None, forward_user_token: bool, exa_api_key: Secret | None
) -> ServerSpec:
    """Return the server with the credential that belongs to its exact address, or as it is."""
    parts = split_url(server.url)
    if isinstance(parts, Refused) or parts.scheme != "https" or parts.port != 443:
        return server
    own = {name.lower() for name in server.headers}
    if _is_hugging_face_login(parts) and forward_user_token and user_token and "authorization" not in own:
        return _with_token(server, user_token)
    if parts.host == "mcp.exa.ai" and exa_api_key and own.isdisjoint({"authorization", "x-api-key"}):
        return _with_exa_key(server, parts, exa_api_key)
    return server


def _is_hugging_face_login(parts: UrlParts) -> bool:
    return (parts.host, parts.path, parts.query) == ("huggingface.co", "/mcp", "login")


def _with_token(server: ServerSpec, token: Secret) -> ServerSpec:
    value = f"Bearer {token.reveal().strip()}"
    if not is_header_value(value):
        return server
    return replace(server, headers={**server.headers, "Authorization": Secret(value)})


def _with_exa_key(server: ServerSpec, parts: UrlParts, key: Secret) -> ServerSpec:
    query = parts.query or ""
    if any(name.lower() == _EXA_PARAMETER.lower() for name, _ in parse_qsl(query, keep_blank_values=True)):
        return server
    joint = "?" if parts.query is None else "&" if query and not query.endswith("&") else ""
    return replace(server, url=f"{server.url}{joint}{_EXA_PARAMETER}={quote(key.reveal(), safe='')}")
