"""Settings from the environment, or `.env` where present; read once, then frozen. Imported by main and cli only.

Names that Chat UI or everybody knows are bare, ours start with `TOOLFERRY_`; times end in `_MS`, sizes in `_BYTES`.
What cannot be read stops the start with a message that names the setting and does not repeat its value.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from dotenv import dotenv_values
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from typing_extensions import override

from app.api.access import Access, access_to, hosts_from_text, is_loopback, origins_from_text
from app.api.keys import entry_from_key, keys_from_text
from app.domain.limits import RequestLimits, RunLimits
from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.journal import memory
from app.model_settings import DOTENV, ModelSettings
from app.setting_types import (
    Count,
    Key,
    Milliseconds,
    Optional,
    SettingsError,
    Switch,
    UpToAWeek,
    lower,
    parsed,
    refuse_unknown,
)
from app.toolbox import grants
from app.toolbox.admission import Policy
from app.toolbox.dialling import ssl_context
from app.toolbox.grants import EgressProxy
from app.toolbox.line import ConnectionLimits
from app.toolbox.listing import ListingLimits
from app.toolbox.options import Options as ServerOptions
from app.toolbox.pool import PoolLimits
from app.toolbox.results import ResultLimits
from app.toolbox.selection import servers_from_json
from app.toolbox.wire import EgressLimits
from app.upstream import endpoint
from app.upstream.catalogue import ListedModel, models_from_json
from app.upstream.router import Router

_Some = TypeVar("_Some", bound="Settings")


class Settings(ModelSettings):
    """All settings. Each field's alias is its name in the environment; `.env.example` explains them all."""

    host: str = Field("127.0.0.1", alias="HOST")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, alias="PORT")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = Field(
        "info", alias="LOG_LEVEL"
    )

    auth: Literal["required", "none"] = Field("required", alias="TOOLFERRY_AUTH")
    api_keys: Optional = Field(None, alias="TOOLFERRY_API_KEYS", repr=False)
    allowed_hosts: Optional = Field(None, alias="TOOLFERRY_ALLOWED_HOSTS")
    cors_origins: Optional = Field(None, alias="TOOLFERRY_CORS_ORIGINS")

    mcp_servers: str = Field("[]", alias="MCP_SERVERS", repr=False)
    mcp_tool_timeout_ms: Milliseconds = Field(120_000, alias="MCP_TOOL_TIMEOUT_MS")
    tool_max_ms: Milliseconds = Field(1_800_000, alias="TOOLFERRY_TOOL_MAX_MS")
    mcp_list_wait_ms: Milliseconds = Field(3000, alias="MCP_LIST_WAIT_MS")
    mcp_allow_insecure_urls: Switch = Field(False, alias="MCP_ALLOW_INSECURE_URLS")
    mcp_forward_hf_user_token: Switch = Field(False, alias="MCP_FORWARD_HF_USER_TOKEN")
    exa_api_key: Key = Field(None, alias="EXA_API_KEY")
    user_servers: Literal["off", "listed", "public"] = Field("public", alias="TOOLFERRY_USER_SERVERS")
    user_server_hosts: Optional = Field(None, alias="TOOLFERRY_USER_SERVER_HOSTS")
    user_server_nets: Optional = Field(None, alias="TOOLFERRY_USER_SERVER_NETS")
    user_server_ports: str = Field("443,1024-65535", alias="TOOLFERRY_USER_SERVER_PORTS")
    deny_hosts: Optional = Field(None, alias="TOOLFERRY_DENY_HOSTS")
    deny_nets: Optional = Field(None, alias="TOOLFERRY_DENY_NETS")
    egress_proxy: Optional = Field(None, alias="TOOLFERRY_EGRESS_PROXY", repr=False)
    ca_file: Optional = Field(None, alias="TOOLFERRY_CA_FILE")
    dns_threads: Count = Field(16, alias="TOOLFERRY_DNS_THREADS")
    dns_timeout_ms: Milliseconds = Field(5000, alias="TOOLFERRY_DNS_TIMEOUT_MS")
    show_server_urls: Switch = Field(False, alias="TOOLFERRY_SHOW_SERVER_URLS")
    connect_ms: Milliseconds = Field(10_000, alias="TOOLFERRY_CONNECT_MS")

    heartbeat_ms: Milliseconds = Field(15_000, alias="TOOLFERRY_HEARTBEAT_MS")
    run_timeout_ms: Milliseconds = Field(1_800_000, alias="TOOLFERRY_RUN_TIMEOUT_MS")
    input_timeout_ms: UpToAWeek = Field(600_000, alias="TOOLFERRY_INPUT_TIMEOUT_MS")
    retention_ms: Milliseconds = Field(600_000, alias="TOOLFERRY_RETENTION_MS")

    max_body_bytes: Count = Field(10 * 1024 * 1024, alias="TOOLFERRY_MAX_BODY_BYTES")
    body_read_ms: Milliseconds = Field(30_000, alias="TOOLFERRY_BODY_READ_MS")
    max_json_depth: Annotated[int, Field(ge=4, le=500)] = Field(64, alias="TOOLFERRY_MAX_JSON_DEPTH")
    max_servers: Count = Field(16, alias="TOOLFERRY_MAX_SERVERS")
    max_server_headers: Count = Field(32, alias="TOOLFERRY_MAX_SERVER_HEADERS")
    max_runs_per_user: Count = Field(8, alias="TOOLFERRY_MAX_RUNS_PER_USER")
    max_runs_per_key: Count = Field(512, alias="TOOLFERRY_MAX_RUNS_PER_KEY")
    max_calls_per_round: Count = Field(64, alias="TOOLFERRY_MAX_CALLS_PER_ROUND")
    max_calls_at_once: Count = Field(8, alias="TOOLFERRY_MAX_CALLS_AT_ONCE")
    max_sessions_per_key: Count = Field(256, alias="TOOLFERRY_MAX_SESSIONS_PER_KEY")
    max_sessions: Count = Field(1024, alias="TOOLFERRY_MAX_SESSIONS")
    max_tools_per_server: Count = Field(256, alias="TOOLFERRY_MAX_TOOLS_PER_SERVER")
    max_list_pages: Count = Field(20, alias="TOOLFERRY_MAX_LIST_PAGES")
    max_schema_bytes: Count = Field(64 * 1024, alias="TOOLFERRY_MAX_SCHEMA_BYTES")
    max_reply_bytes: Count = Field(4 * 1024 * 1024, alias="TOOLFERRY_MAX_REPLY_BYTES")
    max_event_bytes: Count = Field(1024 * 1024, alias="TOOLFERRY_MAX_EVENT_BYTES")
    max_model_text_bytes: Count = Field(64 * 1024, alias="TOOLFERRY_MAX_MODEL_TEXT_BYTES")
    max_client_result_bytes: Count = Field(1024 * 1024, alias="TOOLFERRY_MAX_CLIENT_RESULT_BYTES")
    max_run_bytes: Count = Field(16 * 1024 * 1024, alias="TOOLFERRY_MAX_RUN_BYTES")
    max_journal_bytes: Count = Field(256 * 1024 * 1024, alias="TOOLFERRY_MAX_JOURNAL_BYTES")

    @classmethod
    def read(cls, **chosen: Any) -> Self:
        """Read the environment and `.env`; what is chosen on the command line wins.

        Raises:
            SettingsError: A value cannot be read, or a `TOOLFERRY_` name is not known.
        """
        try:
            in_file = dotenv_values(DOTENV)
        except (OSError, UnicodeDecodeError):
            raise SettingsError(f"{DOTENV}: cannot be read; it must be a text file in UTF-8") from None
        refuse_unknown([*os.environ, *in_file], known=setting_names())
        return _make(cls, chosen)

    @classmethod
    def for_demo(cls, **chosen: Any) -> "Settings":
        """Make settings for the demo: nothing is read from anywhere, what is not chosen has its default."""
        return _make(_UnreadSettings, chosen)

    @property
    def is_in_need_of_a_key(self) -> bool:
        """Whether callers must show a key and none is configured, on a listener that only this machine can reach."""
        return self.auth == "required" and self.api_keys is None and is_loopback(self.host)

    def rooms(self, extra_servers: Sequence[ServerSpec] = (), *, one_time_key: str | None = None) -> "Rooms":
        """Make the options of each room; `extra_servers` join those of `MCP_SERVERS`, the key those that let in.

        Raises:
            SettingsError: `MODELS`, `MCP_SERVERS`, `OPENAI_BASE_URL`, `TOOLFERRY_DEFAULT_MODEL` or one of the router's
                cannot be used.
        """
        try:
            models = models_from_json(self.models or "")
        except ValueError as error:
            raise SettingsError(str(error)) from None
        router = self.router_options(models)
        known = {*(model.id for model in models), *([router.alias] if router else [])}
        if models and self.default_model and self.default_model not in known:
            raise SettingsError("TOOLFERRY_DEFAULT_MODEL: MODELS does not list it")
        try:
            environment, warnings = servers_from_json(self.mcp_servers)
        except ValueError as error:
            raise SettingsError(f"MCP_SERVERS: {error}") from None
        return Rooms(
            access=self._access(one_time_key),
            endpoint=self.endpoint_options(),
            models=models,
            default_model=self.default_model,
            router=router,
            servers=self._servers((*extra_servers, *environment)),
            run=RunLimits(
                self.max_calls_per_round,
                self.max_calls_at_once,
                run_seconds=self.run_timeout_ms / 1000,
                input_seconds=self.input_timeout_ms / 1000,
                reasoning_as_answer=self.reasoning_as_answer,
            ),
            request=self._request(),
            journal=memory.Options(self.max_run_bytes, self.max_journal_bytes, self.retention_ms / 1000),
            heartbeat_seconds=self.heartbeat_ms / 1000,
            warnings=(*self._warnings(), *(f"MCP_SERVERS: {warning}" for warning in warnings)),
        )

    def _warnings(self) -> Iterator[str]:
        if self.mcp_allow_insecure_urls:
            yield "MCP_ALLOW_INSECURE_URLS: requests may reach loopback and private networks, over plain http too."
        if self.egress_proxy is not None:
            yield "TOOLFERRY_EGRESS_PROXY: the proxy looks up names itself, so it must filter where they lead as well."
        if self.auth == "none":
            yield "TOOLFERRY_AUTH: everybody on this machine can call, without a key."

    def secrets(self, servers: Iterable[ServerSpec]) -> list[Secret]:
        """List every value that must not be written anywhere."""
        keys = [key for key in (self.openai_api_key, self.hf_token, self.exa_api_key) if key]
        headers = [value for server in servers for value in server.headers.values()]
        return [*(Secret(key.get_secret_value()) for key in keys), *headers]

    def _access(self, one_time_key: str | None) -> Access:
        keys = parsed("TOOLFERRY_API_KEYS", self.api_keys, keys_from_text)
        if one_time_key is not None:
            keys = (*keys, *keys_from_text(entry_from_key("one-time", one_time_key)))
        try:
            return access_to(
                self.host,
                needs_key=self.auth == "required",
                keys=keys,
                hosts=parsed("TOOLFERRY_ALLOWED_HOSTS", self.allowed_hosts, hosts_from_text),
                origins=parsed("TOOLFERRY_CORS_ORIGINS", self.cors_origins, origins_from_text),
            )
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def _servers(self, environment: tuple[ServerSpec, ...]) -> ServerOptions:
        connect = self.connect_ms / 1000
        return ServerOptions(
            environment=environment,
            policy=self._policy(),
            egress=self._egress(),
            connection=ConnectionLimits(
                connect_seconds=connect,
                list_seconds=connect,
                call_seconds=self.mcp_tool_timeout_ms / 1000,
                call_total_seconds=self.tool_max_ms / 1000,
                tools=self.max_tools_per_server,
                pages=self.max_list_pages,
                schema_bytes=self.max_schema_bytes,
            ),
            pool=PoolLimits(self.max_sessions, self.max_sessions_per_key),
            listing=ListingLimits(seconds=connect),
            results=ResultLimits(self.max_model_text_bytes, self.max_client_result_bytes),
            list_wait_seconds=self.mcp_list_wait_ms / 1000,
            shows_hosts=self.show_server_urls,
            forward_user_token=self.mcp_forward_hf_user_token,
            exa_api_key=Secret(self.exa_api_key.get_secret_value()) if self.exa_api_key else None,
        )

    def _policy(self) -> Policy:
        hosts = parsed("TOOLFERRY_USER_SERVER_HOSTS", self.user_server_hosts, grants.hosts_from_text)
        if self.user_servers == "listed" and not hosts:
            raise SettingsError("TOOLFERRY_USER_SERVER_HOSTS: is needed where TOOLFERRY_USER_SERVERS is listed")
        return Policy(
            allow_insecure_urls=self.mcp_allow_insecure_urls,
            max_headers=self.max_server_headers,
            user_servers=self.user_servers,
            user_hosts=hosts,
            user_nets=parsed("TOOLFERRY_USER_SERVER_NETS", self.user_server_nets, grants.granted_nets_from_text),
            user_ports=parsed("TOOLFERRY_USER_SERVER_PORTS", self.user_server_ports, grants.ports_from_text),
            deny_hosts=parsed("TOOLFERRY_DENY_HOSTS", self.deny_hosts, grants.hosts_from_text),
            deny_nets=parsed("TOOLFERRY_DENY_NETS", self.deny_nets, grants.nets_from_text),
        )

    def _egress(self) -> EgressLimits:
        if self.ca_file is not None:
            parsed("TOOLFERRY_CA_FILE", self.ca_file, ssl_context)
        return EgressLimits(
            reply_bytes=self.max_reply_bytes,
            event_bytes=self.max_event_bytes,
            dns_threads=self.dns_threads,
            dns_seconds=self.dns_timeout_ms / 1000,
            proxy=self._proxy(),
            ca_file=self.ca_file,
        )

    def _proxy(self) -> EgressProxy | None:
        text = self.egress_proxy
        return None if text is None else parsed("TOOLFERRY_EGRESS_PROXY", text, grants.proxy_from_text)

    def _request(self) -> RequestLimits:
        return RequestLimits(
            body_bytes=self.max_body_bytes,
            json_depth=self.max_json_depth,
            servers=self.max_servers,
            server_headers=self.max_server_headers,
            body_seconds=self.body_read_ms / 1000,
            runs_per_key=self.max_runs_per_key,
            runs_per_user=self.max_runs_per_user,
        )


class _UnreadSettings(Settings):
    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Rooms:
    """The options of each room."""

    access: Access
    endpoint: endpoint.Options
    models: tuple[ListedModel, ...]
    default_model: str | None
    router: Router | None
    servers: ServerOptions
    run: RunLimits
    request: RequestLimits
    journal: memory.Options
    heartbeat_seconds: float
    warnings: tuple[str, ...]
    """What was left out of the settings and why, and what is less safe than it could be; for the log."""


def setting_names() -> frozenset[str]:
    """List the name of every setting as it stands in the environment."""
    return frozenset(str(field.alias) for field in Settings.model_fields.values())


def _make(cls: type[_Some], chosen: Mapping[str, Any]) -> _Some:
    try:
        return cls(**chosen)
    except ValidationError as error:
        faults = (f"{item['loc'][0]}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors())
        raise SettingsError("; ".join(faults)) from None
