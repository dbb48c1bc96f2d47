"""pi."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping
from guard.running.routes import Address, UpstreamNames, address_of
from guard.running.rows.redirect import Redirect, unreadable, unroutable

_PI: Final = {
    "anthropic": ("anthropic", "", ("ANTHROPIC_API_KEY",)),
    "openai": ("openai", "/v1", ("OPENAI_API_KEY",)),
    "google": ("gemini", "/v1beta", ("GEMINI_API_KEY",)),
    "groq": ("groq", "/openai/v1", ("GROQ_API_KEY",)),
    "openrouter": ("openrouter", "/api/v1", ("OPENROUTER_API_KEY",)),
}


def pi(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point pi, with a copy of its settings without credentials: keys must be in variables."""
    own = place.path("PI_CODING_AGENT_DIR", place.home / ".pi/agent")
    keyed = [n for n, (_, _, keys) in _PI.items() if any(map(place.environ.get, keys))]
    models = next((value for _, value in place.json(own / "models.json")), {})
    said = mapping(models.get("providers"))
    if not keyed and not said:
        return unroutable("it has no key in the environment, and accounts are not copied")
    providers: dict[str, Any] = {}
    for name in {**dict.fromkeys(keyed), **said}:
        settings = mapping(said.get(name))
        key = settings.get("apiKey")
        if isinstance(key, str) and key.lstrip("$") not in place.environ:
            return unroutable(f"{own / 'models.json'} holds a key, and keys are not copied")
        vendor, path, _ = _PI.get(name, (f"custom/{name}", "", ()))
        address = Address.of(settings.get("baseUrl"))
        if address is None:
            if name not in _PI:
                return unroutable(f"its provider {name} has no baseUrl in {own / 'models.json'}")
            address = address_of(vendor, path, place.environ)
            if address is None:
                return unroutable(unreadable(vendor))
        providers[name] = {**settings, "baseUrl": upstreams.lead(vendor, address)}
    files = {"models.json": json.dumps({**models, "providers": providers})}
    for name in ("settings.json", "AGENTS.md", "keybindings.json"):
        text = place.read(own / name)
        if text is not None:
            files[name] = text
    return Redirect(copied={"PI_CODING_AGENT_DIR": files})
