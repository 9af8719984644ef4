"""What models there are and which one a run gets: the operator's `MODELS`, else the endpoint's own list.

The endpoint's list is kept for five minutes, a failure is not; askers at the same time share one request. Knows
nothing of how a model is spoken to.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from app.domain.errors import ModelNotFound, ModelRequired, RunError
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.ports import ChatModel, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.asking import Candidate, Lessons, RunModel
from app.upstream.endpoint import Endpoint
from app.upstream.quirks import Quirks, quirks_from_table, quirks_with
from app.upstream.router import Router, images_in

_KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ListedModel(ModelFacts):
    """An entry of `MODELS`."""

    quirks: JsonObject = field(default_factory=dict[str, Json])
    """What its endpoint takes, by the names that `quirks_with` knows; wins over the table."""


def models_from_json(text: str) -> tuple[ListedModel, ...]:
    """Read `MODELS`: a JSON list of `{id, name?, supportsTools?, multimodal?, …}`, see `_ENTRY_KEYS`.

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
    try:
        quirks_with(Quirks(), values.get("quirks", {}))
    except ValueError as error:
        raise ValueError(f"MODELS[{position}] ({model_id}): `quirks`: {error}.") from None
    return ListedModel(id=model_id.strip(), **values)


_ENTRY_KEYS: tuple[tuple[str, str, type], ...] = (
    ("name", "name", str),
    ("supportsTools", "supports_tools", bool),
    ("multimodal", "multimodal", bool),
    ("contextLength", "context_length", int),
    ("parameters", "parameters", dict),
    ("preservesReasoning", "preserves_reasoning", bool),
    ("quirks", "quirks", dict),
)
_KIND_WORDS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object"}


class ModelCatalogue:
    """Implements `Catalogue`."""

    def __init__(
        self,
        endpoint: Endpoint,
        models: Sequence[ListedModel] = (),
        default_model: str | None = None,
        router: Router | None = None,
    ) -> None:
        """`models` are those of `MODELS`; none means that the endpoint tells.

        Raises:
            ValueError: `default_model` is not among `models`, where there are some.
        """
        self._endpoint = endpoint
        self._router = router
        self._lessons = Lessons()
        self._listed = {model.id: model for model in models}
        self._default = default_model or next(iter(self._listed), None)
        self._told: dict[str, ModelFacts] = {}
        self._told_until = 0.0
        self._question: _Question | None = None
        known = {*self._listed, router.alias} if router else set(self._listed)
        if default_model and self._listed and default_model not in known:
            raise ValueError(f"The default model {default_model!r} is not in MODELS.")

    async def choose(self, spec: RunSpec, *, wants_tools: bool) -> ModelFacts:
        if self._router and (spec.model or self._default) == self._router.alias:
            return self._routed(self._router, spec, wants_tools=wants_tools)
        if spec.model and self._listed and spec.model not in self._listed:
            raise ModelNotFound(f"The model {spec.model!r} is not offered here.", param="model")
        wanted = spec.model or self._default
        if wanted is None:
            wanted = next(iter(await self._ask_endpoint()), None)
        if wanted is None:
            raise ModelRequired("Name a model: there is no default.", param="model")
        return self._facts(wanted)

    def _routed(self, router: Router, spec: RunSpec, *, wants_tools: bool) -> ModelFacts:
        has_images = images_in(spec.messages)
        return router.route(
            has_images=has_images, wants_tools=wants_tools, facts=self._facts, force_tools=spec.force_tools
        )

    def _facts(self, model: str) -> ModelFacts:
        """Tell what is known of a model, also what its endpoint was found to refuse."""
        facts = self._listed.get(model) or self._told.get(model) or ModelFacts(id=model)
        learned = self._lessons.of(model)
        return facts if learned is None or learned.tools else replace(facts, supports_tools=False)

    async def models(self) -> Sequence[ModelFacts]:
        if self._listed:
            found = tuple(self._listed.values())
        else:
            try:
                found = tuple((await self._ask_endpoint()).values())
            except RunError:
                found = ()
        return (*found, self._alias_facts(self._router)) if self._router else found

    def _alias_facts(self, router: Router) -> ModelFacts:
        routes = [route for route in (router.default, router.agentic, router.multimodal) if route]
        models = [self._facts(model) for route in routes for model in route.models]
        return ModelFacts(
            id=router.alias,
            supports_tools=any(model.supports_tools for model in models),
            multimodal=router.multimodal is not None,
            owned_by="toolferry",
        )

    def open(self, facts: ModelFacts, spec: RunSpec) -> ChatModel:
        candidates = [Candidate(each, self._quirks(each)) for each in (facts, *facts.fallbacks)]
        return RunModel(self._endpoint, self._lessons, candidates, spec)

    def _quirks(self, facts: ModelFacts) -> Quirks:
        quirks = quirks_from_table(self._endpoint.base_url, facts.id)
        if facts.multimodal is False:
            quirks = replace(quirks, images=False)
        if facts.preserves_reasoning and quirks.reasoning == "given":
            quirks = replace(quirks, reasoning="echo")
        listed = self._listed.get(facts.id)
        return quirks_with(quirks, listed.quirks) if listed else quirks

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
        supports_tools=_takes_tools(entry),
        multimodal=_takes_images(entry),
        context_length=context if isinstance(context, int) and not isinstance(context, bool) else None,
        created=created if isinstance(created, int) else 0,
        owned_by=owner if isinstance(owner, str) else "",
    )


def _takes_tools(entry: JsonObject) -> bool:
    """Read what routers tell of a model: its parameters, or each provider's word. What is not said is hoped for."""
    parameters: Json = entry.get("supported_parameters")
    if is_array(parameters) and parameters:
        return "tools" in parameters
    providers: Json = entry.get("providers")
    words = [item.get("supports_tools") for item in providers if is_object(item)] if is_array(providers) else []
    said = [word for word in words if isinstance(word, bool)]
    return any(said) if said else True


def _takes_images(entry: JsonObject) -> bool | None:
    architecture: Json = entry.get("architecture")
    modalities = architecture.get("input_modalities") if is_object(architecture) else entry.get("input_modalities")
    return "image" in modalities if is_array(modalities) and modalities else None
