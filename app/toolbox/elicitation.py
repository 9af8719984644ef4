"""What an MCP server asks a person: judged, shown, and answered in MCP's words. Pure; no page is opened or fetched.

Two modes: a form that is filled in here, or a page that the person visits. Only a page of the public internet is shown,
by https, with its host beside it. A host is never decoded: one with letters of other scripts stays `xn--…`, so that a
look-alike is seen as one; an address with other than ASCII characters is refused.
"""

import re
from dataclasses import dataclass

from app.domain.errors import InvalidRequest
from app.domain.events import ElicitationAsked, InputResolved, Settler
from app.domain.jsontypes import Json, JsonObject, is_object
from app.domain.questions import InputAnswer
from app.domain.spec import ServerSpec
from app.toolbox.addresses import MAX_URL_CHARACTERS
from app.toolbox.admission import Admitted, Policy, judge_server
from app.toolbox.forms import Form, form_from_schema
from app.toolbox.lookalikes import visible_passage

_MAX_MESSAGE = 2000
_NO_MESSAGE = "The server does not say what for."
_WRITTEN = re.compile(r"[!#-;=?-_a-~]+")
"""ASCII without spaces, quotes and angle brackets, which no address holds as they are."""


@dataclass(frozen=True, slots=True)
class Elicitation:
    """One question of a server's to a person."""

    server: str
    """The server's name, for the person."""
    tool_uuid: str | None
    """The call it is asked for; None where that is not known."""
    request: JsonObject
    """`{mode: "form", message, requestedSchema}` or `{mode: "url", message, url, host}`."""
    form: Form | None
    """None for a page."""

    def asked(self, input_id: str, expires_at: str) -> ElicitationAsked:
        return ElicitationAsked(input_id, self.server, self.request, expires_at, tool_uuid=self.tool_uuid)

    def resolved(self, input_id: str, answer: InputAnswer, by: Settler) -> InputResolved:
        return InputResolved("elicitation", input_id, answer.action, by)

    def fitted(self, answer: InputAnswer) -> InputAnswer:
        """Make the content fit the form; without an accept there is none."""
        if answer.arguments is not None:
            raise InvalidRequest("`arguments` belong to an approval, and this is an elicitation.", param="arguments")
        if answer.remember == "run":
            raise InvalidRequest("Only the answer to an approval can be remembered.", param="remember")
        if answer.action != "accept":
            return InputAnswer(answer.action)
        if self.form is not None:
            return InputAnswer("accept", content=self.form.fitted(answer.content or {}))
        if answer.content:
            raise InvalidRequest("There is nothing to fill in where a page is visited.", param="content")
        return InputAnswer("accept")


def elicitation_from_params(params: Json, *, server: str, tool_uuid: str | None) -> Elicitation | str:
    """Read MCP's `elicitation/create` params of either era. A `str` is why nobody is asked, a sentence."""
    if not is_object(params):
        return "It asks in a form that is not MCP."
    url, schema = params.get("url"), params.get("requestedSchema")
    mode: Json = params.get("mode") or ("url" if url is not None and schema is None else "form")
    message = visible_passage(params.get("message"), _MAX_MESSAGE) or _NO_MESSAGE
    if mode == "form":
        form = form_from_schema(schema)
        if isinstance(form, str):
            return form
        request: JsonObject = {"mode": "form", "message": message, "requestedSchema": form.shown}
        return Elicitation(server, tool_uuid, request, form)
    if mode != "url":
        return "It asks in a way that is not offered."
    host = _host_of_page(url)
    if host is None:
        return "It sends people somewhere that is no https page of the public internet."
    return Elicitation(server, tool_uuid, {"mode": "url", "message": message, "url": url, "host": host}, None)


def result_from_answer(answer: InputAnswer) -> JsonObject:
    """Write a fitted answer as MCP's `ElicitResult`."""
    if answer.action == "accept" and answer.content is not None:
        return {"action": "accept", "content": answer.content}
    return {"action": answer.action}


def _host_of_page(url: Json) -> str | None:
    """Return the host of a page that may be shown, an IPv6 address in brackets; None where it may not be."""
    if not isinstance(url, str) or len(url) > MAX_URL_CHARACTERS:
        return None
    # A page is shown where a server from a request might be: https, and nothing that looks private.
    judged = judge_server(ServerSpec("page", url.partition("#")[0], "user"), Policy())
    if not isinstance(judged, Admitted) or not _WRITTEN.fullmatch(url):
        return None
    return f"[{judged.host}]" if ":" in judged.host else judged.host
