"""What models there are and which one a run gets: the operator's `MODELS`, else the endpoint's own list.

The endpoint's list is kept for five minutes, a failure is not; askers at the same time share one request. Knows
nothing of how a model is spoken to.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from app.domain.errors import ModelNotFound, ModelRequired, RunError
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.ports import ChatModel, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.endpoint import Endpoint

_KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ListedModel(ModelFacts):
    """An entry of `MODELS`."""

    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Request parameters of this model, below the caller's."""


def models_from_json(text: str) -> tuple[ListedModel, ...]:
    """Read `MODELS`: a JSON list of `{id, name?, supportsTools?, multimodal?, contextLength?, parameters?}`.

    Unknown keys are ignored; null means absent; a blank text is an empty list.

    Raises:
        ValueError: It is no such list; the message names the entry.
    """
    if not text.strip():
        return ()
    try:
        entries: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"MODELS is no JSON: {error}") from None
    if not is_array(entries):
        raise ValueError("MODELS must be a JSON list of objects.")
    models: dict[str, ListedModel] = {}
    for position, entry in enumerate(entries):
        model = _listed_model(entry, position)
        if model.id in models:
            raise ValueError(f"MODELS[{position}]: the id {model.id!r} is there twice.")
        models[model.id] = model
    return tuple(models.values())


def _listed_model(entry: Json, position: int) -> ListedModel:
    if not is_object(entry):
        raise ValueError(f"MODELS[{position}] must be an object.")
    model_id = entry.get("id")
    if not isinstance(model_id, str) or not model_id.strip():
        raise ValueError(f"MODELS[{position}] must have an `id`.")
    values: dict[str, Json] = {}
    for key, field_name, kind in _ENTRY_KEYS:
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"MODELS[{position}] ({model_id}): `{key}` must be {_KIND_WORDS[kind]}.")
        values[field_name] = value
    return ListedModel(id=model_id.strip(), **values)


_ENTRY_KEYS: tuple[tuple[str, str, type], ...] = (
    ("name", "name", str),
    ("supportsTools", "supports_tools", bool),
    ("multimodal", "multimodal", bool),
    ("contextLength", "context_length", int),
    ("parameters", "parameters", dict),
)
_KIND_WORDS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object"}


class ModelCatalogue:
    """Implements `Catalogue`."""

    def __init__(
        self, endpoint: Endpoint, models: Sequence[ListedModel] = (), default_model: str | None = None
    ) -> None:
        """`models` are those of `MODELS`; none means that the endpoint tells.

        Raises:
            ValueError: `default_model` is not among `models`, where there are some.
        """
        self._endpoint = endpoint
        self._listed = {model.id: model for model in models}
        self._default = default_model or next(iter(self._listed), None)
        self._told: dict[str, ModelFacts] = {}
        self._told_until = 0.0
        self._question: _Question | None = None
        if default_model and self._listed and default_model not in self._listed:
            raise ValueError(f"The default model {default_model!r} is not in MODELS.")

    async def choose(self, spec: RunSpec) -> ModelFacts:
        if spec.model and self._listed and spec.model not in self._listed:
            raise ModelNotFound(f"The model {spec.model!r} is not offered here.", param="model")
        wanted = spec.model or self._default
        if wanted is None:
            wanted = next(iter(await self._ask_endpoint()), None)
        if wanted is None:
            raise ModelRequired("Name a model: there is no default.", param="model")
        return self._listed.get(wanted) or self._told.get(wanted) or ModelFacts(id=wanted)

    async def models(self) -> Sequence[ModelFacts]:
        if self._listed:
            return tuple(self._listed.values())
        try:
            return tuple((await self._ask_endpoint()).values())
        except RunError:
            return ()

    def open(self, facts: ModelFacts, spec: RunSpec) -> ChatModel:
        listed = self._listed.get(facts.id)
        return self._endpoint.model(facts, spec, listed.parameters if listed else {})

    async def _ask_endpoint(self) -> Mapping[str, ModelFacts]:
        """Get the endpoint's models; raises RunError where it does not tell."""
        while True:
            if time.monotonic() < self._told_until:
                return self._told
            if self._question is None:
                return await self._lead()
            question = self._question
            await question.answered.wait()
            if question.failure is not None:
                raise type(question.failure)(str(question.failure))
            # Nothing was told either when the asker was cancelled: then the next one asks.

    async def _lead(self) -> Mapping[str, ModelFacts]:
        question = self._question = _Question()
        try:
            self._told = facts_from_list(await self._endpoint.list_models())
            self._told_until = time.monotonic() + _KEPT_SECONDS
        except RunError as error:
            question.failure = error
            raise
        finally:
            self._question = None
            question.answered.set()
        return self._told


class _Question:
    """One request for the list, for all who wait for it."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.failure: RunError | None = None


def facts_from_list(value: Json) -> dict[str, ModelFacts]:
    """Read `GET models`: `{data: [{id, …}]}`, or the bare list. What has no id is left out."""
    entries = value.get("data") if is_object(value) else value
    found = (_facts(entry) for entry in (entries if is_array(entries) else []) if is_object(entry))
    return {facts.id: facts for facts in found if facts.id}


def _facts(entry: JsonObject) -> ModelFacts:
    model_id, created, owner = entry.get("id"), entry.get("created"), entry.get("owned_by")
    context = entry.get("context_length") or entry.get("max_model_len")
    return ModelFacts(
        id=model_id if isinstance(model_id, str) else "",
        context_length=context if isinstance(context, int) and not isinstance(context, bool) else None,
        created=created if isinstance(created, int) else 0,
        owned_by=owner if isinstance(owner, str) else "",
    )
