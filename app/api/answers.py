"""JSON answers, encoded by the same rules as events: what an event can carry, an answer can."""

from typing import Any

from starlette.responses import JSONResponse
from typing_extensions import override

from app.domain.wire import json_from_value


class JsonAnswer(JSONResponse):
    """A JSON body; non-ASCII as it is, what UTF-8 or JSON cannot carry replaced."""

    @override
    def render(self, content: Any) -> bytes:
        return json_from_value(content)
