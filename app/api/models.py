"""Models over HTTP, in OpenAI's list form, with what each can do."""

from fastapi import APIRouter, Response

from app.api.answers import JsonAnswer
from app.api.doors import OpenDoors
from app.api.openapi import answers
from app.domain.jsontypes import JsonObject
from app.domain.ports import ModelFacts

router = APIRouter(tags=["models"], default_response_class=Response)


@router.get("/v1/models", responses=answers("ModelList", "The models."))
async def list_models(doors: OpenDoors) -> Response:
    """List the models that a run can ask for; the first is the default unless the operator named another."""
    data = [_model_json(facts) for facts in await doors.catalogue.models()]
    return JsonAnswer({"object": "list", "data": data})


def _model_json(facts: ModelFacts) -> JsonObject:
    data: JsonObject = {
        "id": facts.id,
        "object": "model",
        "created": facts.created,
        "owned_by": facts.owned_by,
        "supportsTools": facts.supports_tools,
        "multimodal": bool(facts.multimodal),
        "preservesReasoning": facts.preserves_reasoning,
        "parameters": dict(facts.parameters),
    }
    if facts.name is not None:
        data["name"] = facts.name
    if facts.context_length is not None:
        data["contextLength"] = facts.context_length
    return data
