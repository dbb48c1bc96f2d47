"""Settings of an organisation: one table, and each way to read and to change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from guard.gateway.admin import AdminError
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.domain.setting_table import SETTINGS, OrganisationSetting, changed, setting

DEFAULTS = msgspec.to_builtins(OrganisationSettings())


def other(of: OrganisationSetting) -> bool | int | str:
    """Return another value than the default."""
    if of.kind == "flag":
        return not of.default
    if of.kind == "choice":
        return next(choice for choice in of.choices if choice != of.default)
    if of.kind == "zone":
        return "Asia/Tokyo"
    assert isinstance(of.default, int)
    return of.default + 1 if of.high is None or of.default < of.high else of.default - 1


def test_the_table_is_the_record() -> None:
    assert list(SETTINGS) == [field.name for field in msgspec.structs.fields(OrganisationSettings)]
    assert {name: each.default for name, each in SETTINGS.items()} == DEFAULTS
    for each in SETTINGS.values():
        assert len(each.says.split()) > 3, f"{each.name} needs a sentence in the docstring"
        assert each.says.endswith(".")


@given(text=st.text(max_size=12) | st.integers().map(str) | st.sampled_from(["true", "learned"]))
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_read_is_what_the_record_takes(name: str, text: str) -> None:
    try:
        value = SETTINGS[name].read(text)
    except ValueError:
        return
    assert getattr(changed(OrganisationSettings(), {name: value}), name) == value


@given(names=st.sets(st.sampled_from(list(SETTINGS))))
def test_a_change_changes_nothing_else(names: set[str]) -> None:
    wanted = {name: other(SETTINGS[name]) for name in names}
    assert msgspec.to_builtins(changed(OrganisationSettings(), wanted)) == DEFAULTS | wanted


def test_errors_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="chain_ttl_ms takes a whole number from 1 to"):
        SETTINGS["chain_ttl_ms"].read("soon")
    with pytest.raises(ValueError, match="did you mean strict"):
        setting("strikt")
    with pytest.raises(ValueError, match="chain_over_permille takes a whole number from 0 to"):
        changed(OrganisationSettings(), {"chain_over_permille": 10_001})
    with pytest.raises(ValueError, match="strict takes true or false"):
        changed(OrganisationSettings(), {"strict": "perhaps"})


@pytest.fixture
def invoke(tenant: Any) -> Callable[..., Any]:
    env = {
        "GUARD_API_URL": tenant.gateway.base_url,
        "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
    }

    def run(*words: str, expect: int = 0) -> Any:
        arguments = [*words, "--organisation", tenant.organisation_id]
        result = CliRunner().invoke(command, arguments, env=env)
        assert result.exit_code == expect, result.output
        return result

    return run


def test_each_setting_by_command_and_by_file(
    invoke: Callable[..., Any], tenant: Any, tmp_path: Path
) -> None:
    wanted: dict[str, Any] = {}
    for name, each in SETTINGS.items():
        value = wanted[name] = other(each)
        plain = str(value).lower() if isinstance(value, bool) else value
        said = invoke("settings", "set", f"{name}={plain}").output
        assert f"{each.written_name} is {each.write(value)}" in said
        invoke("settings", "set", f"{name}=")
        said = invoke("settings", "set", f"{each.written_name}={each.write(value)}").output
        assert f"{each.written_name} is {each.write(value)}" in said
        assert tenant.admin.settings() == DEFAULTS | wanted
    rows = json.loads(invoke("settings", "show", "--json").output)
    assert {row["setting"]: row["value"] for row in rows} == {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in wanted.items()
    }
    names = list(SETTINGS)
    invoke("settings", "set", *(f"{name.replace('_', '-')}=" for name in names))
    assert tenant.admin.settings() == DEFAULTS

    path = tmp_path / "guard.json"
    shown = invoke("settings", "show").output
    for each in SETTINGS.values():
        assert f"{each.written_name} " in shown
        assert each.write(each.default) in shown
    path.write_text(
        json.dumps({"settings": {SETTINGS[n].written_name: SETTINGS[n].write(wanted[n])
                                 if isinstance(wanted[n], int) and not isinstance(wanted[n], bool)
                                 and (SETTINGS[n].is_time or SETTINGS[n].is_money) else wanted[n]
                                 for n in names[:2]}})
    )  # fmt: skip
    assert "2 would change" in invoke("apply", str(path), "--dry-run").output
    assert tenant.admin.settings() == DEFAULTS
    assert "2 changed" in invoke("apply", str(path)).output
    assert "0 changed" in invoke("apply", str(path)).output
    tenant.admin.change_settings(**{names[2]: wanted[names[2]]})
    assert "0 changed" in invoke("apply", str(path)).output
    assert tenant.admin.settings() == DEFAULTS | {name: wanted[name] for name in names[:3]}
    assert "1 changed" in invoke("apply", str(path), "--prune").output
    assert tenant.admin.settings() == DEFAULTS | {name: wanted[name] for name in names[:2]}
    path.write_text(json.dumps({"budgets": []}))
    assert "0 changed" in invoke("apply", str(path), "--prune").output, "it names no setting"


def test_wrong_settings_are_refused_everywhere(
    invoke: Callable[..., Any], tenant: Any, tmp_path: Path
) -> None:
    for words in (["strict"], ["strikt=true"], ["strict=perhaps"], ["chain_ttl_ms=0"]):
        invoke("settings", "set", *words, expect=2)
    path = tmp_path / "guard.json"
    for body in ({"strikt": True}, {"strict": 5}, {"chain_ttl_ms": 0}, {}):
        with pytest.raises(AdminError) as failed:
            tenant.admin.request("PATCH", "/organisations/settings", body)
        assert failed.value.status == 400
        path.write_text(json.dumps({"settings": body}))
        if body:
            invoke("apply", str(path), expect=1)
    assert tenant.admin.settings() == DEFAULTS


def test_changes_at_once_do_not_undo_each_other(tenant: Any) -> None:
    wanted = {name: other(each) for name, each in SETTINGS.items()}
    with ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(lambda each: tenant.admin.change_settings(**{each[0]: each[1]}),
                      wanted.items()))  # fmt: skip
    assert tenant.admin.settings() == wanted
    changes = [entry for entry in tenant.admin.audit() if entry["action"] == "organisation.update"]
    assert len(changes) == len(wanted)


def test_a_policy_refuses_models_without_a_price(tenant: Any) -> None:
    tenant.admin.set_policy("priced", models_priced=True)
    asked: dict[str, Any] = {
        "kind": "llm", "function": "openai", "max_input_tokens": 10, "max_output_tokens": 10,
    }  # fmt: skip
    tenant.allowed(**asked, model="gpt-4o")
    tenant.refused(403, "GD-X001", **asked, model="a-model-of-nobody")
    tenant.allowed(kind="call")
    tenant.admin.set_policy("priced", models_priced=False)
    tenant.allowed(**asked, model="a-model-of-nobody")
