"""pi."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Final

import attrs

from guard.running.program_settings import StartPlace, mapping, object_in
from guard.running.routes import UpstreamNames
from guard.running.rows.providers import PROVIDERS, base_url, with_keys
from guard.running.rows.redirect import Redirect, UnroutableError

_PI: Final = PROVIDERS | {
    name: attrs.evolve(PROVIDERS[name], path="") for name in ("anthropic", "mistral")
}


def pi(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point pi, with a copy of its settings without credentials: keys must be in variables."""
    own = place.path("PI_CODING_AGENT_DIR", place.home / ".pi/agent")
    keyed = with_keys(_PI, place.environ)
    models = object_in(place.read(own / "models.json"))
    said = mapping(models.get("providers"))
    if not keyed and not said:
        raise UnroutableError("it has no key in the environment, and accounts are not copied")
    providers: dict[str, Any] = {}
    for name in {**dict.fromkeys(keyed), **said}:
        settings = mapping(said.get(name))
        key = settings.get("apiKey")
        if isinstance(key, str) and key.lstrip("$") not in place.environ:
            raise UnroutableError(f"{own / 'models.json'} holds a key, and keys are not copied")
        led = functools.partial(base_url, place, upstreams, _PI, name)
        source = f"baseUrl in {own / 'models.json'}"
        told = [
            {**model, "baseUrl": led(model["baseUrl"], source)} if model.get("baseUrl") else model
            for model in map(mapping, settings.get("models") or ())
        ]
        providers[name] = {**settings, "baseUrl": led(settings.get("baseUrl"), source)}
        if told:
            providers[name]["models"] = told
    files = {"models.json": json.dumps({**models, "providers": providers})}
    for name in ("settings.json", "AGENTS.md", "keybindings.json"):
        text = place.read(own / name)
        if text is not None:
            files[name] = text
    return Redirect(copied={"PI_CODING_AGENT_DIR": files})
