"""Settings: the example file is true, bad values stop the start with a sentence, the demo reads nothing."""

import re
from pathlib import Path

import pytest

from app.setting_types import SettingsError
from app.settings import Settings, setting_names

ROOT = Path(__file__).parents[2]


def example() -> dict[str, tuple[str, list[str]]]:
    """Read `.env.example`: each setting's default and the lines above it."""
    found: dict[str, tuple[str, list[str]]] = {}
    reason: list[str] = []
    for line in (ROOT / ".env.example").read_text().splitlines():
        setting = re.fullmatch(r"#([A-Z_]+)=(.*)", line)
        if setting:
            found[setting[1]] = (setting[2], reason)
            reason = []
        elif line.startswith("# ") and not line.startswith("# ---"):
            reason.append(line)
        else:
            reason = []
    return found


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in setting_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_example_lists_every_setting_and_no_other() -> None:
    assert set(example()) == setting_names()


def test_example_shows_the_defaults_and_a_reason_for_each() -> None:
    settings = Settings.read()
    for name, (default, reason) in example().items():
        field = next(key for key, value in Settings.model_fields.items() if value.alias == name)
        value = getattr(settings, field)
        shown = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        assert default == shown, name
        assert reason, name


def test_example_can_be_used_as_it_is(tmp_path: Path) -> None:
    text = re.sub(r"^#([A-Z_]+=)", r"\1", (ROOT / ".env.example").read_text(), flags=re.MULTILINE)
    (tmp_path / ".env").write_text(text)
    assert Settings.read() == Settings.for_demo() or Settings.read().model_dump() == Settings.for_demo().model_dump()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "70000"),
        ("MCP_ALLOW_INSECURE_URLS", "yes"),
        ("MCP_ALLOW_INSECURE_URLS", "True"),
        ("USE_USER_TOKEN", "1"),
        ("TOOLFERRY_MAX_BODY_BYTES", "0"),
        ("TOOLFERRY_MAX_BODY_BYTES", "10MB"),
        ("TOOLFERRY_INPUT_TIMEOUT_MS", "99999999999"),
        ("LOG_LEVEL", "loud"),
        ("OPENAI_API_KEY", "sk-\u2026"),
        ("HF_TOKEN", "two words"),
        ("EXA_API_KEY", "line\nbreak"),
    ],
)
def test_value_that_cannot_be_read_stops_the_start_naming_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name) as caught:
        Settings.read()
    assert value not in str(caught.value).replace("true or false", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODELS", "[{"),
        ("MODELS", '{"id":"x"}'),
        ("MODELS", '[{"supportsTools":false}]'),
        ("MCP_SERVERS", "not json SECRET"),
        ("MCP_SERVERS", '{"name":"SECRET"}'),
        ("OPENAI_BASE_URL", "not a url"),
        ("OPENAI_BASE_URL", "ftp://x.example/v1"),
        ("OPENAI_BASE_URL", "http://127.0.0.1:99999/v1"),
        ("OPENAI_BASE_URL", "http://[::1/v1"),
    ],
)
def test_lists_that_cannot_be_read_stop_the_start_naming_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name) as caught:
        Settings.read().rooms()
    assert "SECRET" not in str(caught.value)


def test_unknown_setting_of_ours_stops_the_start_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLFERRY_MAX_BODY_BYTE", "5")
    with pytest.raises(SettingsError, match="TOOLFERRY_MAX_BODY_BYTE:"):
        Settings.read()
    monkeypatch.delenv("TOOLFERRY_MAX_BODY_BYTE")
    (tmp_path / ".env").write_text("TOOLFERRY_TYPO=1\n")
    with pytest.raises(SettingsError, match="TOOLFERRY_TYPO"):
        Settings.read()


@pytest.mark.parametrize("name", ["TOOLFERRY_PORT", "TOOLFERRY_PORT_8000_TCP_ADDR", "TOOLFERRY_SERVICE_HOST"])
def test_what_orchestrators_inject_is_no_setting_and_no_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8000")
    assert Settings.read().port == 8000


def test_environment_wins_over_the_file_and_the_command_line_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("PORT=1001\nHOST=file.example\n")
    monkeypatch.setenv("PORT", "1002")
    assert (Settings.read().port, Settings.read().host) == (1002, "file.example")
    assert Settings.read(port=1003).port == 1003


@pytest.mark.parametrize("value", ["", "  "])
def test_empty_values_mean_absent(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MODELS", "EXA_API_KEY"):
        monkeypatch.setenv(name, value)
    assert Settings.read().api_key is None
    assert not Settings.read().has_upstream


def test_log_level_is_taken_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_LEVEL", "WARNING")
    assert Settings.read().log_level == "warning"


def test_empty_numbers_and_switches_mean_absent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in setting_names():
        monkeypatch.setenv(name, "")
    assert Settings.read().model_dump() == Settings.for_demo().model_dump()


def test_file_that_is_no_text_stops_the_start_naming_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"PORT=8000\nHOST=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"\.env"):
        Settings.read()


def test_openai_key_wins_over_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf")
    first = Settings.read().api_key
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    second = Settings.read().api_key
    assert first is not None
    assert second is not None
    assert (first.reveal(), second.reveal()) == ("hf", "sk")


def test_demo_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    monkeypatch.setenv("PORT", "not a port")
    monkeypatch.setenv("TOOLFERRY_NONSENSE", "1")
    (tmp_path / ".env").write_text("HOST=file.example\n")
    settings = Settings.for_demo(openai_base_url="http://127.0.0.1:1/v1")
    assert (settings.api_key, settings.host, settings.port) == (None, "127.0.0.1", 8000)


def test_no_secret_shows_in_the_repr_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "EXA_API_KEY"):
        monkeypatch.setenv(name, "SECRET")
    servers = '[{"name":"a","url":"https://a.example/mcp?key=SECRET","headers":{"Authorization":"SECRET"}}]'
    monkeypatch.setenv("MCP_SERVERS", servers)
    settings = Settings.read()
    assert "SECRET" not in f"{settings!r} {settings} {settings.rooms()!r}"
