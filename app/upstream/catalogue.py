"""What models there are and which one a run gets: the operator's `MODELS`, else the endpoint's own list.

The endpoint's list is kept for five minutes, and longer while it cannot be had again; askers at the same time share one
request. A run that names its model waits for the list for a moment only, and not at all soon after a failure. Knows
nothing of how a model is spoken to.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

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
_MOMENT_SECONDS = 1.0  # how long a run that can do without the list waits for it
_FAILED_SECONDS = 60.0  # how long nobody asks again who can do without

_quirks_from_table = lru_cache(4096)(quirks_from_table)  # asked for every run, and for each model of a list


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
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`models` are those of `MODELS`; none means that the endpoint tells.

        Raises:
            ValueError: `default_model` is not among `models`, where there are some.
        """
        self._endpoint = endpoint
        self._router = router
        self._clock = clock
        self._lessons = Lessons()
        self._listed = {model.id: model for model in models}
        self._default = default_model or next(iter(self._listed), None)
        self._told: dict[str, ModelFacts] = {}
        self._told_until = float("-inf")
        self._failed_until = float("-inf")
        self._question: _Question | None = None
        known = {*self._listed, router.alias} if router else set(self._listed)
        if default_model and self._listed and default_model not in known:
            raise ValueError(f"The default model {default_model!r} is not in MODELS.")

    async def choose(self, spec: RunSpec, *, wants_tools: bool) -> ModelFacts:
        wanted = spec.model or self._default
        if wanted is None:
            wanted = next(iter(await self._ask_endpoint()), None)
        elif not self._listed:
            await self._ask_in_passing()
        if wanted is None:
            raise ModelRequired("Name a model: there is no default.", param="model")
        if self._router and wanted == self._router.alias:
            return self._routed(self._router, spec, wants_tools=wants_tools)
        if self._listed and wanted not in self._listed:
            raise ModelNotFound(f"The model {wanted!r} is not offered here.", param="model")
        return self._facts(wanted, spec)

    def _routed(self, router: Router, spec: RunSpec, *, wants_tools: bool) -> ModelFacts:
        has_images = images_in(spec.messages)
        return router.route(
            has_images=has_images,
            wants_tools=wants_tools,
            facts=lambda model: self._facts(model, spec),
            force_tools=spec.force_tools,
        )

    def _facts(self, model: str, spec: RunSpec | None = None) -> ModelFacts:
        """Tell what is known of a model, also what it does not take or was found to refuse this caller."""
        provider = spec.provider if spec else None
        learned = self._lessons.of(f"{model}:{provider}" if provider else model, spec.principal) if spec else None
        facts = self._listed.get(model) or self._told.get(model) or ModelFacts(id=model)
        quirks = learned or self._quirks(facts)
        if facts.supports_tools and not quirks.tools:
            facts = replace(facts, supports_tools=False)
        return facts if quirks.images else replace(facts, multimodal=False)

    async def models(self) -> Sequence[ModelFacts]:
        known: Mapping[str, ModelFacts] = self._listed
        if not known:
            try:
                known = await self._ask_endpoint()
            except RunError:
                known = {}
        found = tuple(self._facts(model) for model in known)
        return (*found, self._alias_facts(self._router)) if self._router else found

    def _alias_facts(self, router: Router) -> ModelFacts:
        routes = [route for route in (router.default, router.agentic, router.multimodal) if route]
        models = [self._facts(model) for route in routes for model in route.models]
        viewers = [self._facts(model) for model in router.multimodal.models] if router.multimodal else []
        return ModelFacts(
            id=router.alias,
            supports_tools=any(model.supports_tools for model in models),
            # A model of which nobody has said it gets the images of the route that is made for them.
            multimodal=any(model.multimodal for model in models) or any(m.multimodal is not False for m in viewers),
            owned_by="toolferry",
        )

    def open(self, facts: ModelFacts, spec: RunSpec) -> ChatModel:
        candidates = [Candidate(each, self._quirks(each)) for each in (facts, *facts.fallbacks)]
        return RunModel(self._endpoint, self._lessons, candidates, spec)

    def _quirks(self, facts: ModelFacts) -> Quirks:
        quirks = _quirks_from_table(self._endpoint.base_url, facts.id)
        if facts.multimodal is False:
            quirks = replace(quirks, images=False)
        if facts.preserves_reasoning and quirks.reasoning == "given":
            quirks = replace(quirks, reasoning="echo")
        listed = self._listed.get(facts.id)
        return quirks_with(quirks, listed.quirks) if listed else quirks

    async def _ask_in_passing(self) -> None:
        """See to it that what the endpoint tells is known, where it tells soon; never fails."""
        if self._clock() < max(self._told_until, self._failed_until):
            return
        with anyio.move_on_after(_MOMENT_SECONDS) as moment:
            try:
                await self._ask_endpoint(is_needed=False)
            except RunError:
                return
        if moment.cancelled_caught:
            self._failed_until = self._clock() + _FAILED_SECONDS

    async def _ask_endpoint(self, *, is_needed: bool = True) -> Mapping[str, ModelFacts]:
        """Get the endpoint's models, those of before where it fails now; raises RunError where it has told none."""
        while True:
            now = self._clock()
            if now < self._told_until or (now < self._failed_until and not is_needed):
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
            # A list of nothing is what a failing endpoint tells, too: what was known is worth more.
            self._told = facts_from_list(await self._endpoint.list_models()) or self._told
            self._told_until = self._clock() + _KEPT_SECONDS
        except RunError as error:
            self._failed_until = self._clock() + _FAILED_SECONDS
            if not self._told:
                question.failure = error
                raise
            self._told_until = self._failed_until
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
