"""What is held for a request is at least what a vendor bills for it, by a price table of its own.

The table below is not ours: it is written down from the vendors' pages, in dollars, and prices an
answer in its own way. Generated requests (vendor, model, cache, tier, place, size of the prompt)
are bounded as the SDK does it, answered in any way that their limits allow, and billed.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.leases import cost_of, worst_case
from guard.core.request_bound import RequestBound
from guard.core.usage import Call, Usage, find_endpoint, read_body
from guard.gateway.domain.records import Rates
from guard.gateway.domain.request_cost import request_cost
from guard.gateway.services.pricing import PriceBook

FALLBACK = Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10)

PRICES: Final[dict[str, dict[str, Any]]] = {
    # dollars per million tokens, October and November 2026
    "gpt-4o": {"context": 128_000, "in": "2.5", "out": "10", "read": "1.25", "priority": "1.7"},
    "gpt-4.1-mini": {"context": 1_047_576, "in": "0.4", "out": "1.6", "read": "0.1",
                     "priority": "1.75"},
    "gpt-5": {"context": 400_000, "in": "1.25", "out": "10", "read": "0.125", "priority": "2"},
    "gpt-5.4": {"context": 1_050_000, "in": "2.5", "out": "15", "read": "0.25", "priority": "2",
                "long": (272_000, "5", "22.5", "0.5")},
    "o1-pro": {"context": 200_000, "in": "150", "out": "600", "read": "150"},
    "claude-sonnet-4-5": {"context": 1_000_000, "in": "3", "out": "15", "read": "0.3",
                          "long": (200_000, "6", "22.5", "0.6")},
    "claude-haiku-4-5": {"context": 200_000, "in": "1", "out": "5", "read": "0.1"},
    "claude-opus-4-6": {"context": 1_000_000, "in": "5", "out": "25", "read": "0.5", "us": "1.1"},
    "gemini-2.5-pro": {"context": 1_048_576, "in": "1.25", "out": "10", "read": "0.125",
                       "long": (200_000, "2.5", "15", "0.25")},
    "gemini-2.5-flash": {"context": 1_048_576, "in": "0.3", "out": "2.5", "read": "0.03"},
}  # fmt: skip
OPENAI_HOST, GOOGLE_HOST = "api.openai.com", "generativelanguage.googleapis.com"
OPENAI = ("gpt-4o", "gpt-4.1-mini", "gpt-5", "gpt-5.4", "o1-pro")
ANTHROPIC = ("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-6")
GEMINI = ("gemini-2.5-pro", "gemini-2.5-flash")


def bill(model: str, tokens: dict[str, int], tier: str, place: str) -> Fraction:
    """What the vendor charges, in nano-dollars."""
    price = PRICES[model]
    rate_in, rate_out, rate_read = (Fraction(price[name]) for name in ("in", "out", "read"))
    prompt = tokens["in"] + tokens["read"] + tokens["write"] + tokens["write_1h"]
    is_long = "long" in price and prompt > price["long"][0]
    if is_long:
        rate_in, rate_out, rate_read = (Fraction(x) for x in price["long"][1:])
    total = (
        tokens["in"] * rate_in
        + tokens["read"] * rate_read
        + tokens["write"] * rate_in * Fraction("1.25")
        + tokens["write_1h"] * rate_in * 2
        + tokens["out"] * rate_out
    )
    if tier == "priority" and "priority" in price and not is_long:  # not offered for those
        total *= Fraction(price["priority"])
    if place == "us":
        total *= Fraction(price.get("us", 1))
    return total * 1000


class Case:
    """One generated request and the answer to it."""

    def __init__(self, rng: random.Random) -> None:
        self.model = rng.choice(list(PRICES))
        text = "To be, or not to be. " * rng.choice([1, 20, 300, 300, 45_000])
        self.limit = rng.choice([None, 1, 500, 4096])
        self.answers = rng.choice([1, 1, 3])
        self.tier, self.place = rng.choice(["", "", "priority", "flex"]), rng.choice(["", "us"])
        self.cache = rng.choice(["", "5m", "1h"])
        self.host, self.path, self.body = getattr(self, f"_{self._vendor()}")(text)
        endpoint = find_endpoint("POST", self.host, self.path)
        assert endpoint is not None
        self.format = endpoint.format
        raw = json.dumps(self.body).encode()
        self.bound = bound_of(self.format, self.path, raw, InputRatios())
        self.tokens = self._answer(rng)

    def _vendor(self) -> str:
        return next(
            name
            for name, models in (("openai", OPENAI), ("anthropic", ANTHROPIC), ("gemini", GEMINI))
            if self.model in models
        )

    def _openai(self, text: str) -> tuple[str, str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.model, "messages": [{"role": "user", "content": text}],
        }  # fmt: skip
        if self.limit is not None:
            body["max_completion_tokens"] = self.limit
        if self.answers > 1:
            body["n"] = self.answers
        if self.tier:
            body["service_tier"] = self.tier
        self.place = ""
        return "api.openai.com", "/v1/chat/completions", body

    def _anthropic(self, text: str) -> tuple[str, str, dict[str, Any]]:
        part: dict[str, Any] = {"type": "text", "text": text}
        if self.cache:
            part["cache_control"] = {"type": "ephemeral", "ttl": self.cache}
        self.limit, self.answers, self.tier = self.limit or 8192, 1, ""
        body: dict[str, Any] = {"model": self.model, "max_tokens": self.limit,
                                "messages": [{"role": "user", "content": [part]}]}  # fmt: skip
        if self.model != "claude-opus-4-6":
            self.place = ""
        if self.place:
            body["inference_geo"] = self.place
        return "api.anthropic.com", "/v1/messages", body

    def _gemini(self, text: str) -> tuple[str, str, dict[str, Any]]:
        self.tier = self.place = ""
        config: dict[str, Any] = {}
        if self.limit is not None:
            config["maxOutputTokens"] = self.limit
        if self.answers > 1:
            config["candidateCount"] = self.answers
        body = {"contents": [{"parts": [{"text": text}]}], "generationConfig": config}
        host = "generativelanguage.googleapis.com"
        return host, f"/v1beta/models/{self.model}:generateContent", body

    def _answer(self, rng: random.Random) -> dict[str, int]:
        """Any split of the prompt into buckets, and as large an answer as the request allows."""
        most = self.bound.input_tokens
        assert most is not None
        most = min(most, PRICES[self.model]["context"])  # more is refused, and free
        left = prompt = rng.choice([most, most, rng.randrange(1, most + 1)])
        read = rng.randrange(left + 1)
        left -= read
        written = left if self.cache and self.model in ANTHROPIC and rng.random() < 0.8 else 0
        each = rng.choice([1, self.limit or 1000, self.limit or 1000])
        long_write = written if self.cache == "1h" else 0
        assert prompt == read + written + (left - written)
        return {"in": left - written, "read": read, "write": written - long_write,
                "write_1h": long_write, "out": each * self.answers}  # fmt: skip

    def usage(self) -> Usage:
        """Read the answer as the vendor writes it."""
        t = self.tokens
        if self.model in OPENAI:
            body: dict[str, Any] = {"model": self.model, "usage": {
                "prompt_tokens": t["in"] + t["read"], "completion_tokens": t["out"],
                "prompt_tokens_details": {"cached_tokens": t["read"]}}}  # fmt: skip
            # A vendor without room for the cheaper tier answers at the standard price.
            body["service_tier"] = "priority" if self.tier == "priority" else "default"
        elif self.model in ANTHROPIC:
            body = {"model": self.model, "usage": {
                "input_tokens": t["in"], "output_tokens": t["out"],
                "cache_read_input_tokens": t["read"],
                "cache_creation_input_tokens": t["write"] + t["write_1h"],
                "cache_creation": {"ephemeral_5m_input_tokens": t["write"],
                                   "ephemeral_1h_input_tokens": t["write_1h"]},
                "service_tier": "standard", "inference_geo": self.place or "global"}}  # fmt: skip
        else:
            body = {"modelVersion": self.model, "usageMetadata": {
                "promptTokenCount": t["in"] + t["read"], "cachedContentTokenCount": t["read"],
                "candidatesTokenCount": t["out"]}}  # fmt: skip
        found = read_body(self.format, json.dumps(body).encode(), Call(self.path))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def prices() -> PriceBook:
    return PriceBook([], FALLBACK)


def check(prices: PriceBook, rng: random.Random) -> None:
    case = Case(rng)
    rates = prices.model_rates(case.format.provider, case.model)
    billed = bill(case.model, case.tokens, case.tier, case.place)
    held = worst_case(rates, case.bound)
    assert held is not None
    asked = (case.model, case.tokens, case.tier, case.place, case.cache)
    assert held[0] >= billed, asked
    charged = cost_of(rates, case.usage())
    assert charged >= billed, asked
    price = PRICES[case.model]
    if case.tier != "priority" or ("priority" in price and "long" not in price):
        assert charged <= billed + 1, asked


def test_the_bound_is_at_least_the_bill(prices: PriceBook) -> None:
    rng = random.Random(11)
    for _ in range(400):
        check(prices, rng)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.generator("requests, bounded and billed")
@pytest.mark.parametrize("part", range(10))
def test_the_bound_is_at_least_the_bill_many_times(
    prices: PriceBook, part: int, proof_scale: float, count_cases: Callable[[int], None]
) -> None:
    """A million pairs at ``GUARD_PROOF_SCALE=20``, as in ``nox -s proofs``."""
    rng = random.Random(100 + part)
    number = int(5000 * proof_scale)
    for _ in range(number):
        check(prices, rng)
    count_cases(number)


class FeeCase:
    """A request with tools that its vendor runs itself, answered with as many calls as it allows.

    The fees are written down here once more, in dollars, by the vendors' pages of November 2026.
    """

    SEARCHES: Final = {"gpt-4o": "0.025", "gpt-4.1-mini": "0.025", "gpt-5": "0.01",
                       "gpt-5.4": "0.01", "o1-pro": "0.01"}  # fmt: skip
    """Of the preview tool; the other one costs a cent for every model."""
    MEMORY: Final = {"1g": "0.03", "4g": "0.12", "16g": "0.48", "64g": "1.92"}

    def __init__(self, rng: random.Random) -> None:
        self.model = rng.choice(list(PRICES))
        self.dollars = Fraction(0)
        vendor = "openai" if self.model in OPENAI else "claude" if "claude" in self.model else ""
        self.message: dict[str, Any] = {}
        make = {"openai": self._openai, "claude": self._anthropic, "": self._gemini}[vendor]
        host, self.path, body = make(rng)
        endpoint = find_endpoint("POST", host, self.path)
        assert endpoint is not None
        self.format = endpoint.format
        self.bound = bound_of(self.format, self.path, json.dumps(body).encode(), InputRatios())

    def _openai(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        most = rng.randrange(1, 30)
        is_preview = rng.random() < 0.5
        kind = "web_search_preview" if is_preview else "web_search"
        tools: list[Any] = []
        output: list[Any] = [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]
        left = most
        if rng.random() < 0.7:
            tools.append({"type": kind})
            number = rng.choice([left, rng.randrange(left + 1)])
            left -= number
            price = self.SEARCHES[self.model] if is_preview else "0.01"
            self.dollars += number * Fraction(price)
            output += [{"type": "web_search_call", "action": {"type": "search"}}] * number
            output += [{"type": "web_search_call", "action": {"type": "open_page"}}] * 2
        if rng.random() < 0.5:
            tools.append({"type": "file_search", "vector_store_ids": ["v"]})
            self.dollars += left * Fraction("0.0025")
            output += [{"type": "file_search_call"}] * left
        if rng.random() < 0.5:
            memory = rng.choice(["", *self.MEMORY])
            place = {"type": "auto", **({"memory_limit": memory} if memory else {})}
            tools.append({"type": "code_interpreter", "container": place})
            if rng.random() < 0.7:
                self.dollars += Fraction(self.MEMORY[memory or "1g"])
                output += [{"type": "code_interpreter_call", "container_id": "c"}] * 3
        body = {"model": self.model, "input": "find it", "max_output_tokens": 50,
                "max_tool_calls": most, "tools": tools}  # fmt: skip
        usage = {"input_tokens": 9, "output_tokens": 50}
        self.message = {"object": "response", "model": self.model, "tools": tools,
                        "output": output, "usage": usage}  # fmt: skip
        self.tokens = {"in": 9, "out": 50}
        return "api.openai.com", "/v1/responses", body

    def _anthropic(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        most = rng.randrange(1, 30)
        number = rng.choice([most, rng.randrange(most + 1)])
        self.dollars += number * Fraction("0.01")
        tool = {"type": "web_search_20260209", "name": "web_search", "max_uses": most}
        body = {"model": self.model, "max_tokens": 50, "tools": [tool],
                "messages": [{"role": "user", "content": "find it"}]}  # fmt: skip
        usage = {"input_tokens": 9, "output_tokens": 50,
                 "server_tool_use": {"web_search_requests": number}}  # fmt: skip
        self.message = {"type": "message", "model": self.model, "usage": usage}
        self.tokens = {"in": 9, "out": 50}
        return "api.anthropic.com", "/v1/messages", body

    def _gemini(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        candidate: dict[str, Any] = {"finishReason": "STOP"}
        if rng.random() < 0.7:
            candidate["groundingMetadata"] = {"webSearchQueries": ["a", "b", "c"]}
            self.dollars += Fraction("0.035")
        body = {"contents": [{"parts": [{"text": "find it"}]}], "tools": [{"googleSearch": {}}],
                "generationConfig": {"maxOutputTokens": 50}}  # fmt: skip
        self.message = {
            "modelVersion": self.model, "candidates": [candidate],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 50},
        }  # fmt: skip
        self.tokens = {"in": 9, "out": 50}
        path = f"/v1beta/models/{self.model}:generateContent"
        return "generativelanguage.googleapis.com", path, body


def test_what_is_held_besides_tokens_is_at_least_the_bill(prices: PriceBook) -> None:
    rng = random.Random(13)
    for _ in range(400):
        case = FeeCase(rng)
        tokens = {**dict.fromkeys(("read", "write", "write_1h"), 0), **case.tokens}
        billed = bill(case.model, tokens, "", "") + case.dollars * 10**9
        rates = prices.model_rates(case.format.provider, case.model)
        held = worst_case(rates, case.bound)  # None without a known context: the gateway decides
        assert held is None or held[0] >= billed, case.message
        asked = request_cost(
            rates, case.bound.input_tokens, case.bound.output_tokens, fees=case.bound.fees,
            assumed_input=prices.largest_prompt(case.format.provider, case.model), assumed_output=0,
            is_exact=True,
        )  # fmt: skip
        assert asked.amount >= max(billed, Fraction(0 if held is None else held[0])), case.message
        usage = read_body(case.format, json.dumps(case.message).encode(), Call(case.path))
        assert usage is not None
        assert billed <= cost_of(rates, usage) <= billed + 1, case.message


class Beside(NamedTuple):
    """A request that costs more than its tokens, its answer, and its bill in dollars."""

    host: str
    path: str
    body: dict[str, Any]
    message: dict[str, Any]
    dollars: Fraction


def sonar(rng: random.Random) -> Beside:
    """Perplexity: a fee for the request, by how much its search reads."""
    dollars = {"sonar": (1, 1, "5", "8", "12"), "sonar-pro": (3, 15, "6", "10", "14"),
               "sonar-reasoning-pro": (2, 8, "6", "10", "14")}  # fmt: skip
    model = rng.choice(list(dollars))
    size = rng.choice(["low", "medium", "high", None])
    rate_in, rate_out, *fees = dollars[model]
    options = {} if size is None else {"web_search_options": {"search_context_size": size}}
    body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": "find it"}],
            **options}  # fmt: skip
    said = size or "low"
    fee = Fraction(fees[["low", "medium", "high"].index(said)]) / 1000
    bill = Fraction(9 * rate_in + 50 * rate_out, 10**6) + fee
    usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 50,
                             "search_context_size": said}  # fmt: skip
    if rng.random() < 0.7 or size is None:
        usage["cost"] = {"request_cost": float(fee), "total_cost": float(bill)}
    message = {"model": model, "usage": usage, "choices": [{"finish_reason": "stop"}]}
    return Beside("api.perplexity.ai", "/chat/completions", body, message, bill)


def own_key(rng: random.Random) -> Beside:
    """OpenRouter with a vendor's key: the vendor's bill, and a twentieth of it."""
    upstream = Fraction(40 * 25 + 50 * 100, 10**7)  # gpt-4o
    is_own = rng.random() < 0.7
    fee = upstream / 20 if is_own else upstream
    body = {"model": "openai/gpt-4o", "max_tokens": 50,
            "messages": [{"role": "user", "content": "find it"}]}  # fmt: skip
    usage = {"prompt_tokens": 40, "completion_tokens": 50, "cost": float(fee), "is_byok": is_own,
             "cost_details": {"upstream_inference_cost": float(upstream)}}  # fmt: skip
    message = {"model": "openai/gpt-4o", "usage": usage, "choices": [{"finish_reason": "stop"}]}
    bill = fee + upstream if is_own else upstream
    return Beside("openrouter.ai", "/api/v1/chat/completions", body, message, bill)


def drawing(rng: random.Random) -> Beside:
    """Images that a response makes, with tokens of the image model beside its own."""
    model, out, image, text = rng.choice([("gpt-image-1", 40, 10, 5), ("gpt-image-2", 30, 8, 5),
                                          ("gpt-image-1-mini", 8, 2.5, 2)])  # fmt: skip
    quality, made = rng.choice([("low", 272), ("medium", 1056), ("high", 4160)])
    if model == "gpt-image-2":
        made = {"low": 196, "medium": 1756, "high": 7024}[quality]
    number, action = rng.randrange(1, 4), rng.choice(["generate", "edit", "auto"])
    tool = {"type": "image_generation", "model": model, "quality": quality, "size": "1024x1024",
            "action": action}  # fmt: skip
    shown = rng.randrange(0, 3)
    parts = [{"type": "input_image", "image_url": "https://example.org/a.png"}] * shown
    body = {
        "model": "gpt-5",
        "max_output_tokens": 50,
        "max_tool_calls": number,
        "tools": [tool],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, *parts]}],
    }
    seen = 0 if action == "generate" else sum(min(16, shown + done) for done in range(number))
    words = number * rng.randrange(1, 2_000)
    used = {
        "input_tokens": seen * 6_700 + words,
        "output_tokens": number * made,
        "input_tokens_details": {"image_tokens": seen * 6_700, "text_tokens": words},
    }
    output = [{"type": "image_generation_call", "quality": quality, "result": "aa"}] * number
    bill = Fraction(9 * Fraction("1.25") + 50 * 10) / 10**6
    bill += Fraction(seen * 6_700 * Fraction(image) + words * text + number * made * out) / 10**6
    message = {"object": "response", "model": "gpt-5", "tools": [tool], "output": output,
               "usage": {"input_tokens": 9, "output_tokens": 50}}  # fmt: skip
    if rng.random() < 0.7:
        message["tool_usage"] = {"image_gen": used}
    return Beside("api.openai.com", "/v1/responses", body, message, bill)


def grounded(rng: random.Random) -> Beside:
    """Gemini with maps, and with the search for enterprises."""
    tools: list[Any] = []
    chunks: list[Any] = []
    queries: list[str] = []
    dollars = Fraction(9 * Fraction("0.3") + 50 * Fraction("2.5")) / 10**6
    if rng.random() < 0.7:
        tools.append({rng.choice(["googleMaps", "google_maps"]): {}})
        if rng.random() < 0.8:
            chunks.append({"maps": {"uri": "m"}})
            dollars += Fraction("0.025")
    kind, price = rng.choice([("enterpriseWebSearch", "0.045"), ("googleSearch", "0.035")])
    if rng.random() < 0.7 or not tools:
        tools.append({kind: {}})
        if rng.random() < 0.8:
            chunks.append({"web": {"uri": "w"}})
            queries.append("a")
            dollars += Fraction(price)
    candidate = {
        "finishReason": "STOP",
        "groundingMetadata": {"webSearchQueries": queries, "groundingChunks": chunks},
    }
    body = {"contents": [{"parts": [{"text": "find it"}]}], "tools": tools,
            "generationConfig": {"maxOutputTokens": 50}}  # fmt: skip
    message = {"modelVersion": "gemini-2.5-flash", "candidates": [candidate],
               "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 50}}  # fmt: skip
    path = "/v1beta/models/gemini-2.5-flash:generateContent"
    return Beside(GOOGLE_HOST, path, body, message, dollars)


def spoken(rng: random.Random) -> Beside:
    """Sound in the prompt and in the answer, each at its own price."""
    models = {"gpt-4o-audio-preview": ("2.5", "10", 40, 80), "gpt-audio": ("2.5", "10", 32, 64),
              "gpt-4o-mini-audio-preview-2024-12-17": ("0.15", "0.6", 10, 20),
              "gpt-audio-mini": ("0.6", "2.4", 10, 20)}  # fmt: skip
    model = rng.choice(list(models))
    rate_in, rate_out, heard_rate, spoken_rate = models[model]
    sound = base64.b64encode(bytes(32_000)).decode()
    part = {"type": "input_audio", "input_audio": {"data": sound, "format": "mp3"}}
    body = {"model": model, "modalities": ["text", "audio"], "max_completion_tokens": 900,
            "audio": {"voice": "alloy", "format": "wav"},
            "messages": [{"role": "user", "content": [part]}]}  # fmt: skip
    heard, said = rng.choice([0, 20]), rng.choice([0, 800])
    bill = 9 * Fraction(rate_in) + 50 * Fraction(rate_out) + heard * heard_rate + said * spoken_rate
    usage = {"prompt_tokens": 9 + heard, "completion_tokens": 50 + said,
             "prompt_tokens_details": {"audio_tokens": heard, "text_tokens": 9},
             "completion_tokens_details": {"audio_tokens": said, "text_tokens": 50}}  # fmt: skip
    message = {"model": model, "usage": usage, "choices": [{"finish_reason": "stop"}]}
    return Beside(OPENAI_HOST, "/v1/chat/completions", body, message, bill / 10**6)


def listened(rng: random.Random) -> Beside:
    """Gemini with sound in the prompt, which is dearer than its words."""
    sound = {"inlineData": {"mimeType": "audio/mp3", "data": base64.b64encode(bytes(999)).decode()}}
    model, rate_in, heard_rate, rate_out = rng.choice([
        ("gemini-2.5-flash", "0.3", "1", "2.5"), ("gemini-2.0-flash", "0.1", "0.7", "0.4"),
    ])  # fmt: skip
    heard = rng.choice([0, 32])
    bill = 9 * Fraction(rate_in) + 50 * Fraction(rate_out) + heard * Fraction(heard_rate)
    body = {"contents": [{"parts": [sound, {"text": "a"}]}],
            "generationConfig": {"maxOutputTokens": 50}}  # fmt: skip
    details = [{"modality": "TEXT", "tokenCount": 9}, {"modality": "AUDIO", "tokenCount": heard}]
    message = {"modelVersion": model, "candidates": [{"finishReason": "STOP"}],
               "usageMetadata": {"promptTokenCount": 9 + heard, "candidatesTokenCount": 50,
                                 "promptTokensDetails": details}}  # fmt: skip
    path = f"/v1beta/models/{model}:generateContent"
    return Beside(GOOGLE_HOST, path, body, message, bill / 10**6)


@pytest.mark.parametrize("make", [sonar, own_key, drawing, grounded, spoken, listened])
def test_what_is_charged_beside_tokens_is_held_and_charged(
    prices: PriceBook, make: Callable[[random.Random], Beside]
) -> None:
    rng = random.Random(15)
    for _ in range(200):
        case = make(rng)
        billed = case.dollars * 10**9
        endpoint = find_endpoint("POST", case.host, case.path)
        assert endpoint is not None
        data = json.dumps(case.body).encode()
        bound = bound_of(endpoint.format, case.path, data, InputRatios())
        provider = endpoint.format.provider
        rates = prices.model_rates(provider, bound.model or "")
        assert not bound.unnumbered
        held = request_cost(
            rates, bound.input_tokens, bound.output_tokens, terms=bound.terms, fees=bound.fees,
            assumed_input=prices.largest_prompt(provider, bound.model or ""), assumed_output=0,
            is_exact=True,
        )  # fmt: skip
        assert held.amount >= billed, case
        usage = read_body(
            endpoint.format,
            json.dumps(case.message).encode(),
            Call(case.path, lambda d=data: d),  # type: ignore[misc]
        )
        assert usage is not None
        if usage.fees is None and bound.fees:  # as an observed call does
            usage = msgspec.structs.replace(usage, fees=bound.fees)
        charged = cost_of(rates, usage)
        assert charged >= billed - 1, case  # a float's cost, and our own rounding
        says_all = "cost" in usage_of(case.message) or "tool_usage" in case.message
        if says_all or make in (grounded, spoken, listened):
            assert charged <= billed + 1, case
        assert held.amount >= charged


PROMPT: Final = "To be, or not to be. "
"""Six tokens or seven; two and a half thousand of a vendor's context hold ever so many."""


def gemini_part(text: str) -> dict[str, Any]:
    return {"model": "models/gemini-embedding-001", "content": {"parts": [{"text": text}]}}


ARRAYS: Final[dict[str, tuple[str, str, str, str, int, Callable[[list[str]], dict[str, Any]]]]] = {
    # host, path, model, dollars per million tokens, the context of one prompt, body
    "texts": (OPENAI_HOST, "/v1/embeddings", "text-embedding-3-small", "0.02", 8_191,
              lambda texts: {"model": "text-embedding-3-small", "input": texts}),
    "tokens": (OPENAI_HOST, "/v1/embeddings", "text-embedding-3-small", "0.02", 8_191,
               lambda texts: {"model": "text-embedding-3-small",
                              "input": [[1820] * (len(t) // 3) for t in texts]}),
    "gemini": (GOOGLE_HOST, "/v1beta/models/gemini-embedding-001:batchEmbedContents",
               "gemini-embedding-001", "0.15", 2_048,
               lambda texts: {"requests": [gemini_part(text) for text in texts]}),
    "vertex": ("us-central1-aiplatform.googleapis.com",
               "/v1/projects/p/locations/l/publishers/google/models/gemini-embedding-001:predict",
               "gemini-embedding-001", "0.15", 2_048,
               lambda texts: {"instances": [{"content": text} for text in texts]}),
    "mistral": ("api.mistral.ai", "/v1/embeddings", "mistral-embed", "0.1", 8_192,
                lambda texts: {"model": "mistral-embed", "input": texts}),
    "cohere": ("api.cohere.com", "/v2/embed", "embed-v4.0", "0.12", 128_000,
               lambda texts: {"model": "embed-v4.0", "texts": texts}),
    "ranked": ("api.cohere.com", "/v2/rerank", "rerank-v3.5", "0.1", 4_096,
               lambda texts: {"model": "rerank-v3.5", "query": "a", "documents": texts}),
    "ollama": ("ollama.com", "/api/embed", "nomic-embed-text", "0.01", 2_048,
               lambda texts: {"model": "nomic-embed-text", "input": texts}),
    "bedrock": ("bedrock-runtime.us-east-1.amazonaws.com",
                "/model/cohere.embed-english-v3/invoke", "cohere.embed-english-v3", "0.1", 512,
                lambda texts: {"texts": texts, "input_type": "search_document"}),
    "completions": (OPENAI_HOST, "/v1/completions", "gpt-3.5-turbo-instruct", "1.5", 4_096,
                    lambda texts: {"model": "gpt-3.5-turbo-instruct", "prompt": texts,
                                   "max_tokens": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_each_prompt_of_an_array_is_held(prices: PriceBook, name: str) -> None:
    """The context bounds one prompt, not the sum of them."""
    host, path, model, dollars, context, body_of = ARRAYS[name]
    rng = random.Random(16)
    for _ in range(20):
        each = min(rng.choice([1, 100, context]), context)
        texts = [PROMPT * -(-each // 6)] * rng.choice([1, 2, 50])
        endpoint = find_endpoint("POST", host, path)
        assert endpoint is not None
        provider = endpoint.format.provider
        data = json.dumps(body_of(texts)).encode()
        bound = bound_of(endpoint.format, path, data, InputRatios())
        rates = prices.model_rates(provider, model)
        billed = len(texts) * each * Fraction(dollars) * 1000
        held = worst_case(rates, bound)
        assert held is not None
        assert held[0] >= billed
        asked = request_cost(
            rates, bound.input_tokens, bound.output_tokens, terms=bound.terms,
            assumed_input=prices.largest_prompt(provider, model), assumed_output=0, is_exact=True,
            answers=bound.answers,
        )  # fmt: skip
        assert asked.amount >= billed
        unbounded = worst_case(rates, msgspec.structs.replace(bound, input_tokens=None))
        assert unbounded is None or unbounded[0] >= billed


def usage_of(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = message.get("usage", {})
    return found


def piece(rng: random.Random) -> tuple[str, str, Any, Fraction]:
    """A request that is billed by the piece, and its bill in dollars by the vendors' pages."""
    n = rng.randrange(1, 5)
    kind = rng.choice(["image", "older image", "speech", "transcript", "groq", "sora", "imagen",
                       "veo"])  # fmt: skip
    if kind == "image":
        quality, size = rng.choice(["standard", "hd"]), rng.choice(["1024x1024", "1024x1792"])
        dollars = {("standard", "1024x1024"): "0.04", ("standard", "1024x1792"): "0.08",
                   ("hd", "1024x1024"): "0.08", ("hd", "1024x1792"): "0.12"}  # fmt: skip
        body: Any = {"model": "dall-e-3", "prompt": "a", "quality": quality, "size": size}
        return OPENAI_HOST, "/v1/images/generations", body, Fraction(dollars[quality, size])
    if kind == "older image":
        size, price = rng.choice([("256x256", "0.016"), ("512x512", "0.018"),
                                  ("1024x1024", "0.02")])  # fmt: skip
        body = {"model": "dall-e-2", "prompt": "a", "n": n, "size": size}
        return OPENAI_HOST, "/v1/images/generations", body, n * Fraction(price)
    if kind == "speech":
        model, price = rng.choice([("tts-1", "15"), ("tts-1-hd", "30")])
        text = "é" * rng.randrange(1, 4097)
        body = {"model": model, "input": text, "voice": "alloy"}
        return OPENAI_HOST, "/v1/audio/speech", body, len(text) * Fraction(price) / 10**6
    if kind in ("transcript", "groq"):
        host, path, model, hour = OPENAI_HOST, "/v1/audio/transcriptions", "whisper-1", "0.36"
        seconds = rng.randrange(1, 400)
        if kind == "groq":
            host, path = (
                "api.groq.com",
                f"/openai/v1/audio/{rng.choice(['transcript', 'translat'])}ions",
            )
            model, hour = rng.choice([("whisper-large-v3", "0.111"),
                                      ("whisper-large-v3-turbo", "0.04"),
                                      ("distil-whisper-large-v3-en", "0.02")])  # fmt: skip
        sound = bytes(seconds * rng.choice([800, 2_000, 16_000]))  # as dense as any, and denser
        form = (
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--x\r\n'
            b'Content-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n%b\r\n--x--\r\n'
        )
        billed_s = max(seconds, 10) if kind == "groq" else seconds
        return host, path, form % (model.encode(), sound), billed_s * Fraction(hour) / 3600
    if kind == "sora":
        model, size, price = rng.choice([
            ("sora-2", "1280x720", "0.1"), ("sora-2-pro", "1280x720", "0.3"),
            ("sora-2-pro", "1024x1792", "0.5"), ("sora-2-pro", "1920x1080", "0.7"),
        ])  # fmt: skip
        length = rng.choice([None, "4", "8", "12"])
        body = {"model": model, "prompt": "a", "size": size,
                **({} if length is None else {"seconds": length})}  # fmt: skip
        return OPENAI_HOST, "/v1/videos", body, int(length or 4) * Fraction(price)
    if kind == "imagen":
        model, price = rng.choice([("fast-", "0.02"), ("", "0.04"), ("ultra-", "0.06")])
        body = {"instances": [{"prompt": "a"}], "parameters": {"sampleCount": n}}
        path = f"/v1beta/models/imagen-4.0-{model}generate-001:predict"
        return GOOGLE_HOST, path, body, n * Fraction(price)
    model, size, price = rng.choice([
        ("", "720p", "0.4"), ("", "4k", "0.6"), ("fast-", "720p", "0.1"),
        ("fast-", "1080p", "0.12"), ("fast-", "4k", "0.3"), ("lite-", "720p", "0.05"),
        ("lite-", "1080p", "0.08"),
    ])  # fmt: skip
    seconds = rng.choice([4, 6, 8])
    body = {"instances": [{"prompt": "a"}],
            "parameters": {"durationSeconds": seconds, "resolution": size}}  # fmt: skip
    path = f"/v1beta/models/veo-3.1-{model}generate-preview:predictLongRunning"
    return GOOGLE_HOST, path, body, seconds * Fraction(price)


def test_what_is_held_by_the_piece_is_at_least_the_bill(prices: PriceBook) -> None:
    rng = random.Random(14)
    for _ in range(200):
        host, path, body, dollars = piece(rng)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        endpoint = find_endpoint("POST", host, path)
        assert endpoint is not None
        assert not endpoint.is_unlisted
        bound = bound_of(endpoint.format, path, data, InputRatios())
        rates = prices.model_rates(endpoint.format.provider, bound.model or "")
        held = worst_case(rates, bound)
        assert held is not None, path
        billed = dollars * 10**9
        assert held[0] >= billed, (path, body)
        if "/audio/trans" not in path:
            assert held[0] == billed, (path, body)
        usage = read_body(endpoint.format, b"{}", Call(path, lambda data=data: data))  # type: ignore[misc]
        assert usage is not None
        usage = msgspec.structs.replace(usage, fees=bound.fees)  # as an observed call does
        assert cost_of(rates, usage) == held[0]


def test_the_price_above_a_size_is_for_prompts_above_it(prices: PriceBook) -> None:
    rates = prices.model_rates("anthropic", "claude-sonnet-4-5")
    small = RequestBound("anthropic", "m", 3_000, 1_000)
    large = RequestBound("anthropic", "m", 300_000, 1_000)
    unbounded = RequestBound("anthropic", "m", None, 1_000)
    held = [worst_case(rates, bound) for bound in (small, large, unbounded)]
    assert held[0] == (3_000 * 3_750 + 1_000 * 15_000, 1_000), "with what may be written to a cache"
    assert held[1] is not None
    assert held[1][0] == 300_000 * 7_500 + 1_000 * 22_500


def test_an_older_gateways_rates_are_read(prices: PriceBook) -> None:
    from guard.core import wire

    rates = prices.model_rates("openai", "gpt-4o")
    data = json.loads(wire.encode(rates))
    assert len(data.pop("rows")) >= 1
    older = wire.decode(json.dumps(data).encode(), wire.ModelRates)
    bound = RequestBound("openai", "gpt-4o", 100, 50)
    assert older.rows == []
    assert worst_case(older, bound) == (100 * 2_500 + 50 * 10_000, 50)
    assert cost_of(older, Usage(input_tokens=100, output_tokens=50)) == 100 * 2_500 + 50 * 10_000
