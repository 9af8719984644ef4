"""Servers as they are spoken to on a caller's behalf: whose they are, and what the operator has them told. Pure."""

import re
from dataclasses import replace
from urllib.parse import quote

from app.domain.secrets import Secret
from app.domain.spec import RunSpec, ServerSpec

_PLACE = re.compile(r"\{(user|conversation_id|request_id)\}")


def for_caller(server: ServerSpec, spec: RunSpec) -> ServerSpec:
    """Return a server as a run speaks to it.

    Where the operator's entry says `names_caller`, its headers have the run's end user, conversation and request in
    place of `{user}`, `{conversation_id}` and `{request_id}`. A header that names what this run does not have is left
    out, so that no server takes nobody for somebody.
    """
    if server.trust != "operator" or not server.names_caller:
        return replace(server, principal=spec.principal)
    said = {"user": spec.principal.user, "conversation_id": spec.conversation_id, "request_id": spec.request_id}
    headers: dict[str, Secret] = {}
    for name, value in server.headers.items():
        text = value.reveal()
        if all(said[place] for place in _PLACE.findall(text)):
            headers[name] = Secret(_PLACE.sub(lambda match: _safe(said[match[1]] or ""), text))
    told = tuple(_safe(word) for word in said.values() if word)
    return replace(server, principal=spec.principal, headers=headers, told=told)


def _safe(text: str) -> str:
    """Write a stranger's word so that it can end no header and start no other field of one: percent-encoded."""
    return quote(text, safe="@", errors="surrogatepass")
