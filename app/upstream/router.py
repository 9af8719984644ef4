"""Which model a run gets that named the router's alias: by what the run brings, in the order to try. Pure.

Reads the routes file's text. Knows neither the endpoint nor what becomes of a model that does not answer.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from app.domain.jsontypes import Json, is_array, is_object
from app.domain.messages import Message
from app.domain.ports import ModelFacts

AGENTIC = "agentic"
"""The route of runs with servers."""
MULTIMODAL = "multimodal"
"""The route of conversations with images."""
PLAIN = "default"
"""The default route's name where the routes file has none."""


@dataclass(frozen=True, slots=True)
class Route:
    """Models for one kind of run: at least one, distinct, in the order to try."""

    name: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses among routes; `router_from` makes one whose routes end with the fallback model."""

    default: Route
    agentic: Route | None = None
    """None unless enabled."""
    multimodal: Route | None = None
    """None unless enabled."""
    alias: str = "omni"
    """The model id that asks for the router."""

    def route(
        self, *, has_images: bool, wants_tools: bool, facts: Callable[[str], ModelFacts], force_tools: bool = False
    ) -> ModelFacts:
        """Choose the model of a run, with the route's name and the models to fall back on.

        Images go before tools. With images, models known not to take any are left out as long as another is there.
        With `wants_tools` models without tools are left out, unless forced; where no model has any, the order stays
        and the run is an ordinary completion. `facts` is asked once for each model of the route.
        """
        if has_images and self.multimodal is not None:
            route = self.multimodal
        elif wants_tools and self.agentic is not None:
            route = self.agentic
        else:
            route = self.default
        candidates = [dataclasses.replace(facts(model), route=route.name) for model in route.models]
        if route is self.multimodal:
            candidates = [model for model in candidates if model.multimodal is not False] or candidates
        if wants_tools and not force_tools:
            candidates = [model for model in candidates if model.supports_tools] or candidates
        return dataclasses.replace(candidates[0], fallbacks=tuple(candidates[1:]))


def router_from(
    *,
    routes: Mapping[str, Route] | None = None,
    default_route: str | None = None,
    fallback_model: str | None = None,
    enable_tools: bool = False,
    tools_model: str | None = None,
    enable_multimodal: bool = False,
    multimodal_model: str | None = None,
    alias: str = "omni",
) -> Router | None:
    """Make the router of the `LLM_ROUTER_…` settings; None where they ask for none.

    `routes` are those of the routes file in its order, None without a file. A model that is set but not enabled is
    not used, and refused where nothing else is set. An enabled route tries its own model first, then what the file
    lists under its name; either may be absent.

    Raises:
        ValueError: The settings do not fit together; the message begins with the name of the one to change.
    """
    if not (routes is not None or default_route or fallback_model or enable_tools or enable_multimodal):
        _refuse_idle({"TOOLS": tools_model, "MULTIMODAL": multimodal_model})
        return None
    listed = routes or {}
    own = {
        "LLM_ROUTER_TOOLS_MODEL": tools_model if enable_tools else None,
        "LLM_ROUTER_MULTIMODAL_MODEL": multimodal_model if enable_multimodal else None,
        "LLM_ROUTER_FALLBACK_MODEL": fallback_model,
    }
    _refuse_alias(alias, [*own.items(), *(("LLM_ROUTER_ROUTES_PATH", m) for r in listed.values() for m in r.models)])
    agentic = _route(AGENTIC, tools_model, listed) if enable_tools else None
    if agentic is not None and not agentic.models:
        raise ValueError(f"LLM_ROUTER_ENABLE_TOOLS: needs LLM_ROUTER_TOOLS_MODEL, or a route {AGENTIC!r} in the file.")
    multimodal = _route(MULTIMODAL, multimodal_model, listed) if enable_multimodal else None
    if multimodal is not None and not multimodal.models:
        raise ValueError(
            f"LLM_ROUTER_ENABLE_MULTIMODAL: needs LLM_ROUTER_MULTIMODAL_MODEL, or a route {MULTIMODAL!r} in the file."
        )
    if default_route and default_route not in listed:
        raise ValueError(f"LLM_ROUTER_DEFAULT_ROUTE: the routes file has no route {default_route!r}.")
    default = _route(default_route or next(iter(listed), PLAIN), None, listed)
    if not (default.models or fallback_model):
        raise ValueError("LLM_ROUTER_FALLBACK_MODEL: must name a model, or TOOLFERRY_DEFAULT_MODEL; no route does.")
    return Router(
        default=_ending_with(fallback_model, default),
        agentic=agentic and _ending_with(fallback_model, agentic),
        multimodal=multimodal and _ending_with(fallback_model, multimodal),
        alias=alias,
    )


def require_listed(router: Router, listed: Collection[str], settings: Mapping[str, str | None]) -> None:
    """Check the router's models against the ids of `MODELS`; `settings` are those that name one model each.

    Raises:
        ValueError: `MODELS` lacks one; the message begins with the name of the setting that brings it.
    """
    for route in (router.default, router.agentic, router.multimodal):
        for model in route.models if route else ():
            if model not in listed:
                setting = next((name for name, named in settings.items() if named == model), "LLM_ROUTER_ROUTES_PATH")
                raise ValueError(f"{setting}: MODELS does not list {model!r}.")


def _refuse_idle(models: Mapping[str, str | None]) -> None:
    for kind, model in models.items():
        if model:
            raise ValueError(f"LLM_ROUTER_{kind}_MODEL: is used only with LLM_ROUTER_ENABLE_{kind}=true.")


def _refuse_alias(alias: str, named: Iterable[tuple[str, str | None]]) -> None:
    for setting, model in named:
        if model == alias:
            raise ValueError(f"{setting}: {alias!r} is the router itself, which would ask without end.")


def _route(name: str, first: str | None, listed: Mapping[str, Route]) -> Route:
    models = listed[name].models if name in listed else ()
    return Route(name, _distinct((first, *models)))


def _ending_with(last: str | None, route: Route) -> Route:
    return Route(route.name, _distinct((*route.models, last)))


def _distinct(models: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(model for model in models if model))


def routes_from_json(text: str) -> dict[str, Route]:
    """Read the routes file: a JSON list of `{name, primary_model, fallback_models?}`, in its order.

    Unknown keys are ignored, `description` too; null means absent.

    Raises:
        ValueError: It is no such list; the message names the entry and the field.
    """
    try:
        entries: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The routes are no JSON: {error}") from None
    if not is_array(entries):
        raise ValueError("The routes must be a JSON list of objects.")
    routes: dict[str, Route] = {}
    for position, entry in enumerate(entries):
        route = _listed_route(entry, position)
        if route.name in routes:
            raise ValueError(f"routes[{position}]: the `name` {route.name!r} is there twice.")
        routes[route.name] = route
    return routes


def _listed_route(entry: Json, position: int) -> Route:
    if not is_object(entry):
        raise ValueError(f"routes[{position}] must be an object.")
    name = _named(entry.get("name"))
    if name is None:
        raise ValueError(f"routes[{position}] must have a `name`.")
    primary = _named(entry.get("primary_model"))
    if primary is None:
        raise ValueError(f"routes[{position}] ({name}): `primary_model` must name a model.")
    given: Json = entry.get("fallback_models")
    fallbacks = [_named(model) for model in given] if is_array(given) else []
    if None in fallbacks or not (given is None or is_array(given)):
        raise ValueError(f"routes[{position}] ({name}): `fallback_models` must be a list of models' names.")
    return Route(name, _distinct((primary, *fallbacks)))


def _named(value: Json) -> str | None:
    """Trim a name; None for what is none."""
    return (value.strip() or None) if isinstance(value, str) else None


def images_in(messages: Iterable[Message]) -> bool:
    """Tell whether any message of the user's, not only the newest, has an image in it."""
    return any(_has_image(message.get("content")) for message in messages if message.get("role") == "user")


def _has_image(content: Json) -> bool:
    return is_array(content) and any(is_object(part) and part.get("type") == "image_url" for part in content)
