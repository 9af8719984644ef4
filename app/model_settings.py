"""The settings of the model: its endpoint, what models there are, the router."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.secrets import Secret
from app.setting_types import Key, Milliseconds, Name, Optional, SettingsError, Switch
from app.upstream import endpoint
from app.upstream.catalogue import ListedModel
from app.upstream.router import Router, require_listed, router_from, routes_from_json

DOTENV = ".env"


class ModelSettings(BaseSettings):
    """Read as all others are, see `settings.py`."""

    model_config = SettingsConfigDict(
        env_file=DOTENV,
        env_file_encoding="utf-8",
        case_sensitive=True,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
    )

    openai_base_url: Optional = Field(None, alias="OPENAI_BASE_URL")
    openai_api_key: Key = Field(None, alias="OPENAI_API_KEY")
    hf_token: Key = Field(None, alias="HF_TOKEN")
    use_user_token: Switch = Field(False, alias="USE_USER_TOKEN")
    models: Optional = Field(None, alias="MODELS")
    default_model: Optional = Field(None, alias="TOOLFERRY_DEFAULT_MODEL")
    router_alias_id: Name = Field("omni", alias="PUBLIC_LLM_ROUTER_ALIAS_ID")
    router_routes_path: Optional = Field(None, alias="LLM_ROUTER_ROUTES_PATH")
    router_default_route: Optional = Field(None, alias="LLM_ROUTER_DEFAULT_ROUTE")
    router_fallback_model: Optional = Field(None, alias="LLM_ROUTER_FALLBACK_MODEL")
    router_enable_tools: Switch = Field(False, alias="LLM_ROUTER_ENABLE_TOOLS")
    router_tools_model: Optional = Field(None, alias="LLM_ROUTER_TOOLS_MODEL")
    router_enable_multimodal: Switch = Field(False, alias="LLM_ROUTER_ENABLE_MULTIMODAL")
    router_multimodal_model: Optional = Field(None, alias="LLM_ROUTER_MULTIMODAL_MODEL")
    reasoning_as_answer: Switch = Field(False, alias="TOOLFERRY_REASONING_AS_ANSWER")
    upstream_backoff_ms: Milliseconds = Field(500, alias="TOOLFERRY_UPSTREAM_BACKOFF_MS")
    model_silence_ms: Milliseconds = Field(300_000, alias="TOOLFERRY_MODEL_SILENCE_MS")

    @property
    def api_key(self) -> Secret | None:
        """The operator's key for the model endpoint: `OPENAI_API_KEY` wins over `HF_TOKEN`."""
        key = self.openai_api_key or self.hf_token
        return Secret(key.get_secret_value()) if key else None

    @property
    def has_upstream(self) -> bool:
        """Whether the operator named a model endpoint or a key for the default one."""
        return self.api_key is not None or self.openai_base_url is not None

    def router_options(self, models: Sequence[ListedModel]) -> Router | None:
        """Make the router of the models that are listed; raises SettingsError. None where none is wanted."""
        path, routes = self.router_routes_path, None
        if path is not None:
            try:
                routes = routes_from_json(Path(path).read_text(encoding="utf-8-sig"))
            except (OSError, UnicodeDecodeError):
                raise SettingsError("LLM_ROUTER_ROUTES_PATH: the file cannot be read as text in UTF-8") from None
            except ValueError as error:
                raise SettingsError(f"LLM_ROUTER_ROUTES_PATH: {error}") from None
        fallback = self.router_fallback_model
        listed, alias = [model.id for model in models], self.router_alias_id
        is_wanted = routes is not None or fallback or self.router_enable_tools or self.router_enable_multimodal
        if is_wanted and alias in listed:
            raise SettingsError(f"MODELS: {alias!r} is the router's name; PUBLIC_LLM_ROUTER_ALIAS_ID gives it another.")
        if is_wanted and not (routes or fallback):
            # What a run would get that names no model is what it gets where no route is special.
            is_usable = self.default_model != alias and (not listed or self.default_model in listed)
            fallback = (self.default_model if is_usable else None) or next(iter(listed), None)
        try:
            router = router_from(
                routes=routes,
                default_route=self.router_default_route,
                fallback_model=fallback,
                enable_tools=self.router_enable_tools,
                tools_model=self.router_tools_model,
                enable_multimodal=self.router_enable_multimodal,
                multimodal_model=self.router_multimodal_model,
                alias=alias,
            )
            if router and listed:
                require_listed(router, listed, self._router_models())
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return router

    def _router_models(self) -> dict[str, str | None]:
        return {
            "LLM_ROUTER_FALLBACK_MODEL": self.router_fallback_model,
            "LLM_ROUTER_TOOLS_MODEL": self.router_tools_model if self.router_enable_tools else None,
            "LLM_ROUTER_MULTIMODAL_MODEL": self.router_multimodal_model if self.router_enable_multimodal else None,
        }

    def endpoint_options(self) -> endpoint.Options:
        """Make what the model is reached by; raises SettingsError."""
        base_url = self.openai_base_url or endpoint.Options().base_url
        try:
            parts = urlsplit(base_url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            # A key in there is none that the client can send, and would be quoted by errors.
            is_plain = "@" not in parts.netloc and not (parts.query or parts.fragment)
        except ValueError:  # a port that is none, brackets that are no address
            is_url = is_plain = False
        if is_url and not is_plain:
            raise SettingsError("OPENAI_BASE_URL: must have no user, query or fragment; keys belong in OPENAI_API_KEY")
        if not is_url:
            raise SettingsError("OPENAI_BASE_URL: must be an http or https URL, such as http://127.0.0.1:8080/v1")
        return endpoint.Options(
            base_url=base_url,
            api_key=self.api_key,
            use_user_token=self.use_user_token,
            backoff_seconds=self.upstream_backoff_ms / 1000,
            idle_seconds=self.model_silence_ms / 1000,
        )
