"""What is imported, when, and in which direction (architecture: Map, Invariants)."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import guard
from tests.support.programs import environment

ROOT: Final = Path(__file__).parents[2]

# --- the public surface (spec part 4, SDK interface; part 7) --------------------------------------

NONE = inspect.Parameter.empty
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY
REST = inspect.Parameter.VAR_KEYWORD

INIT = [("api_key", POSITIONAL, None), ("api_url", POSITIONAL, None), ("debug", POSITIONAL, False)]
SURFACE: dict[str, list[tuple[str, Any, Any]]] = {
    "init": INIT,
    "init_or_die": INIT,
    "protect": [("function", POSITIONAL, None)],
    "sensitive": [("function", POSITIONAL, NONE)],
    "guarded": [("function", POSITIONAL, NONE)],
    "handle": [("exit_code", KEYWORD, 1)],
    "workflow": [("name", POSITIONAL, None)],
    "chain": [("name", POSITIONAL, None), ("op", KEYWORD, "auto")],
    "span": [("name", POSITIONAL, None)],
    "agent": [("name", POSITIONAL, None)],
    "set_call_context": [("model", POSITIONAL, None), ("tools", POSITIONAL, None)],
    "on_error": [("hook", POSITIONAL, NONE)],
    "track_llm": [
        ("input_tokens", POSITIONAL, NONE), ("output_tokens", POSITIONAL, 0),
        ("model", KEYWORD, None), ("latency_ms", KEYWORD, None), ("metadata", KEYWORD, None),
    ],
    "track_tool": [
        ("tool_name", POSITIONAL, NONE), ("duration_ms", POSITIONAL, None),
        ("is_retry", KEYWORD, False), ("metadata", KEYWORD, None),
    ],
    "track_event": [("event_type", POSITIONAL, NONE), ("kwargs", REST, NONE)],
    "format_user_message": [("exc", POSITIONAL, NONE), ("locale", POSITIONAL, "en")],
    "set_user_message": [("code", POSITIONAL, NONE), ("text", POSITIONAL, NONE)],
    "get_user_message": [("code", POSITIONAL, NONE)],
    "shutdown": [("timeout", POSITIONAL, 2.0), ("flush", POSITIONAL, True)],
    "status": [],
}  # fmt: skip
EXCEPTIONS = [
    "GuardError", "GuardAuthError", "GuardConfigError", "GuardBackendError", "GuardBudgetError",
    "GuardToolBlockedError", "WorkflowKilledInterrupt",
]  # fmt: skip
UNLISTED = [
    "WorkflowPausedException", "WorkflowKilledException", "GuardAuthenticationError",
    "GuardBlockedException", "GuardRuntime", "GuardStatus", "ErrorContext",
    "GuardTransportError", "RateLimitError", "Spend", "spend",
    "SDK_MIN_VERSION_FOR_V3", "__version__",
]  # fmt: skip


def test_the_listing_is_exactly_the_curated_surface() -> None:
    assert len(SURFACE) == 20
    assert len(EXCEPTIONS) == 7
    assert dir(guard) == sorted([*SURFACE, *EXCEPTIONS])
    assert sorted(guard.__all__) == dir(guard)


@pytest.mark.parametrize(("name", "parameters"), SURFACE.items())
def test_each_signature_is_the_specs(name: str, parameters: list[tuple[str, Any, Any]]) -> None:
    found = inspect.signature(getattr(guard, name)).parameters.values()
    assert [(each.name, each.kind, each.default) for each in found] == parameters


@pytest.mark.parametrize("name", [*SURFACE, *EXCEPTIONS, *UNLISTED])
def test_each_name_is_importable_by_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"from guard import {name}", namespace)
    assert namespace[name] is getattr(guard, name)


def test_a_star_import_gives_the_listing() -> None:
    namespace: dict[str, Any] = {}
    exec("from guard import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == dir(guard)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        guard.nonsense  # noqa: B018  # reading it is the test


def test_public_names_stay_functions_after_their_modules_are_imported() -> None:
    """No module may carry the name of a public function: the import would shadow it."""
    script = (
        "import pkgutil, importlib, guard\n"
        "names = [m.name for m in pkgutil.iter_modules(guard.__path__)]\n"
        "assert not set(names) & set(dir(guard)), names"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


# --- what `import guard` loads --------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    script = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    return set(done.stdout.split())


def test_import_guard_loads_nothing_but_itself() -> None:
    loaded = loaded_by("import guard")
    foreign = {
        name
        for name in loaded
        if name.partition(".")[0] not in sys.stdlib_module_names and name != "guard"
    }
    assert not foreign, "no vendor, framework or server code, not even httpx, websockets, msgspec"
    assert "asyncio" not in loaded


def test_listing_the_names_loads_nothing() -> None:
    assert loaded_by("import guard; dir(guard); guard.__all__") == loaded_by("import guard")


VENDORS = {
    "openai", "anthropic", "langgraph", "langchain_core", "agents", "mcp", "litellm", "aiohttp",
    "requests", "botocore", "google", "starlette", "uvicorn", "jinja2",
    "psycopg", "redis", "click", "rich", "argon2", "genai_prices", "prometheus_client", "numpy",
    "spamdetect", "telegram", "opentelemetry",
}  # fmt: skip


def test_using_the_whole_surface_loads_no_vendor_framework_or_server() -> None:
    uses = "\n".join(f"guard.{name}" for name in [*SURFACE, *EXCEPTIONS, *UNLISTED])
    loaded = {name.partition(".")[0] for name in loaded_by(f"import guard\n{uses}")}
    assert not loaded & VENDORS
    assert "guard" in loaded


def test_a_handler_of_errors_needs_no_http_client() -> None:
    loaded = loaded_by("from guard.breaker.exceptions import GuardError")
    assert not loaded & {"httpx", "websockets", "msgspec", "asyncio"}


def test_a_protected_function_loads_no_http_client_before_its_first_call() -> None:
    loaded = loaded_by("import guard, guard.runtime.runtime\nguard.protect(print)")
    assert not loaded & {"httpx", "httpcore", "websockets"}


def test_a_session_with_the_gateway_loads_no_command_line_and_no_httpx_of_the_programs() -> None:
    """httpx loads rich, click and pygments where they are installed; that takes longer than it."""
    loaded = loaded_by("import guard.session.session")
    assert "guard.transport.own_httpx.httpx" in loaded
    libraries = {name.partition(".")[0] for name in loaded}
    assert not libraries & {"httpx", "httpcore", "anyio", "trio", "rich", "click", "pygments"}
    assert "websockets" not in loaded, "only an open socket needs it"


def test_the_programs_httpx_is_whole_whatever_guard_loads() -> None:
    """Another thread may import it at any moment: no part of it is hidden at any."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["[]", "True", "False"]


HIDDEN = """
import sys

class Watch:
    hidden = []

    def find_spec(self, name, path=None, target=None):
        self.hidden += [m for m in list(sys.modules) if m.startswith("httpx") and
                        sys.modules[m] is None]

sys.meta_path.insert(0, Watch())
import guard.session.session
import httpx, httpx._main
from guard.transport import own_httpx
print(Watch.hidden, httpx.main is httpx._main.main, own_httpx.httpx is httpx)
"""


def test_a_program_that_has_loaded_httpx_shares_it() -> None:
    loaded = loaded_by(
        "import httpx\nfrom guard.transport import own_httpx\nassert own_httpx.httpx is httpx"
    )
    assert not {name for name in loaded if name.startswith("guard.transport.own_httpx.")}


def test_import_spamdetect_loads_neither_classifier_nor_service() -> None:
    loaded = loaded_by("import spamdetect")
    assert not {name for name in loaded if name.startswith(("spamdetect.engine", "numpy"))}
    assert not {name.partition(".")[0] for name in loaded} & (VENDORS - {"spamdetect"})


# --- the arrows -----------------------------------------------------------------------------------


@attrs.frozen
class Arrow:
    """One import statement's target, from one module."""

    source: str
    target: str
    line: int
    lazy: bool
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: str) -> dict[str, Path]:
    return {module_name(path): path for path in sorted((ROOT / package).rglob("*.py"))}


ALL: Final = modules("guard") | modules("spamdetect")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def arrows_of(source: str, path: Path) -> Iterator[Arrow]:
    def walk(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Arrow]:
        for child in ast.iter_child_nodes(node):
            targets: list[str] = []
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{source}:{child.lineno}: relative imports are not used"
                base = child.module or ""
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    targets.append(whole if whole in ALL else base)
            for target in dict.fromkeys(targets):
                yield Arrow(source, target, child.lineno, lazy, typing_only)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, lazy or inside, typing_only or is_type_checking(child))

    yield from walk(ast.parse(path.read_text()), False, False)


@functools.cache
def arrows() -> list[Arrow]:
    return [arrow for name, path in ALL.items() for arrow in arrows_of(name, path)]


def inner(package: str) -> list[Arrow]:
    """The arrows inside one package, whatever it is that they point to there."""
    return [
        arrow
        for arrow in arrows()
        if arrow.source.partition(".")[0] == arrow.target.partition(".")[0] == package
    ]


def component(module: str, depth: int = 1) -> str:
    """``guard.core.wire`` belongs to ``core``; the package itself is ``(root)``."""
    return ".".join(module.split(".")[1 : 1 + depth]) or "(root)"


GUARD_LEVELS: Final = {
    "version": 0, "core": 0, "loop": 0, "local_gateway": 0, "tls": 0, "telemetry": 0,
    "local_runs": 1, "breaker": 1, "scope": 1, "messages": 1,
    "settings": 2, "hooks": 2, "state": 2, "last_words": 2,
    "transport": 3,
    "delivery": 4,
    "instrumentation": 5, "control": 5,
    "session": 6,
    "asking": 7,
    "runtime": 9,
    "facade": 10, "handling": 10, "serverless": 10,
    "contexts": 11, "protected_call": 11, "spending": 11,
    "aio": 12, "context": 12, "decorators": 12,
    "(root)": 13,
    "integrations": 14,
    "gateway": 15,  # beside the SDK; its own rules are below
    "demo": 16, "doctor": 16, "login": 16, "running": 16, "testing": 16,
    "proxy": 17,
    "cli": 18,
    "__main__": 19,
}  # fmt: skip
SPAM_LEVELS: Final = {
    "errors": 0, "thresholds": 0, "_version": 0, "version": 0,
    "engine": 1, "links": 1,
    "models": 2, "settings": 2, "_retry": 2,
    "_messages": 3, "_answers": 3,
    "_exchange": 4,
    "_calls": 5, "_http": 5, "_local": 5,
    "client": 6,
    "sync": 7,
    "(root)": 8,
    "files": 9, "service": 9, "training": 9,
    "testing": 10,
    "cli": 11,
    "__main__": 12,
}  # fmt: skip
TABLES: Final = [("guard", GUARD_LEVELS), ("spamdetect", SPAM_LEVELS)]


@pytest.mark.parametrize(("package", "levels"), TABLES)
def test_every_module_has_its_place(package: str, levels: dict[str, int]) -> None:
    """A new module is put into the table above, so that somebody thinks of its arrows."""
    assert {component(module) for module in modules(package)} <= levels.keys()


@pytest.mark.parametrize(("package", "levels"), TABLES)
def test_no_arrow_points_up(package: str, levels: dict[str, int]) -> None:
    found = inner(package)
    assert len(found) > 50
    up = [
        str(arrow)
        for arrow in found
        if component(arrow.source) != component(arrow.target)
        and levels[component(arrow.target)] >= levels[component(arrow.source)]
        and not (component(arrow.source) == "(root)" and arrow.typing_only)
    ]
    assert not up


def circles(arrows: list[Arrow]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    imports: dict[str, set[str]] = {}
    for arrow in arrows:
        if arrow.source != arrow.target and arrow.target in ALL:
            imports.setdefault(arrow.source, set()).add(arrow.target)

    def reached_from(module: str) -> set[str]:
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            for target in imports.get(waiting.pop(), ()):
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        return reached

    reached = {module: reached_from(module) for module in imports}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in reached
    }
    return [list(group) for group in sorted(groups) if group]


_MEETING = """
import importlib.machinery, sys, threading, time
import guard

held, comes = threading.Event(), threading.Event()
main = threading.main_thread()

class Loader(importlib.machinery.SourceFileLoader):
    def create_module(self, spec):
        if spec.name == "importlib.resources" and threading.current_thread() is not main:
            held.set()
            comes.wait(10)
            time.sleep(0.5)  # until the other waits, which shows nowhere

    def exec_module(self, module):
        if module.__name__ == "importlib.abc" and threading.current_thread() is main:
            held.wait(2)
            comes.set()
        super().exec_module(module)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("importlib.resources", "importlib.abc"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)
guard.init()
import importlib.abc
"""
"""The loop's thread imports a package while the program's imports one of its modules."""

_WHO_LOADS = """
import sys, threading
import guard

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        outer = frame.f_globals["__name__"]
        if name.startswith(f"{outer}.") and threading.current_thread().name == "guard-loop":
            loaded.add(outer)

loaded = set()
sys.meta_path.insert(0, Finder)
guard.init()
guard.protect(lambda: None)()
guard.shutdown(60)
print(*sorted(each for each in loaded if "own_httpx" not in each))
"""
"""Prints the packages that load modules of their own when the loop's thread imports them."""


def _initialised(script: str, tenant: Any) -> str:
    env = environment({"GUARD_API_URL": tenant.url, "GUARD_API_KEY": tenant.key})
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, text=True, capture_output=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loop_imports_beside_the_program(tenant: Any) -> None:
    """Python 3.11 ended one of the imports with an error, and with it ``init``."""
    _initialised(_MEETING, tenant)


def test_what_the_loop_imports_others_do_not_import_in_part(tenant: Any) -> None:
    """Each of these packages begins with modules of its own that others do not import by name."""
    assert set(_initialised(_WHO_LOADS, tenant).split()) <= {
        "certifi", "guard.core.bounds", "h11", "idna", "sniffio", "tomllib", "websockets",
        "websockets.extensions",
        "hpack",  # h2 imports its modules by name, and holds its own lock meanwhile, here as there
    }  # fmt: skip
    imports_in_part = [
        arrow for arrow in inner("guard")
        if arrow.target.startswith("guard.core.bounds.") and "core.bounds" not in arrow.source
    ]  # fmt: skip
    assert not imports_in_part


def test_no_modules_import_each_other() -> None:
    """Also not inside one room, not inside of functions, and not for types."""
    assert not circles(inner("guard"))


def test_the_observers_do_not_know_each_other_even_by_their_types() -> None:
    found = [arrow for arrow in inner("guard") if component(arrow.source) == "instrumentation"]
    assert len(found) > 20
    assert not circles(found)


def test_a_circle_is_found() -> None:
    def arrow(source: str, target: str) -> Arrow:
        return Arrow(f"guard.{source}", f"guard.{target}", 1, False, False)

    three = [arrow("facade", "context"), arrow("context", "hooks"), arrow("hooks", "facade")]
    assert circles(three) == [["guard.context", "guard.facade", "guard.hooks"]]
    assert circles(three[:2]) == []


PACKAGES: Final = {"guard", "spamdetect"}


def test_guard_and_spamdetect_do_not_know_each_other() -> None:
    """Except the demo: an application over both, which the command line loads when it is run."""
    crossing = [
        str(arrow)
        for arrow in arrows()
        if {arrow.source.partition(".")[0], arrow.target.partition(".")[0]} == PACKAGES
        and component(arrow.source) != "demo"
    ]
    assert not crossing


def test_only_the_command_line_loads_the_demo_and_only_when_it_is_run() -> None:
    callers = [
        arrow
        for arrow in arrows()
        if arrow.target.startswith("guard.demo") and not arrow.source.startswith("guard.demo")
    ]
    assert {arrow.source for arrow in callers} <= {"guard.cli"}
    assert all(arrow.lazy for arrow in callers)


def test_the_gateway_knows_of_the_sdk_only_the_core() -> None:
    """It speaks the protocol; it never sees the SDK's runtime, its errors or its settings.

    Both sides know the files by which programs find the local gateway, how a certificate is
    checked, and the copy of httpx that loads quickly.
    """
    known = "gateway", "core", "version", "local_gateway", "local_runs", "tls"
    wrong = [
        str(arrow)
        for arrow in inner("guard")
        if component(arrow.source) == "gateway"
        and component(arrow.target) not in known
        and arrow.target != "guard.transport.own_httpx"
    ]
    assert not wrong


def test_the_sdk_does_not_know_the_gateway() -> None:
    wrong = [
        str(arrow)
        for arrow in inner("guard")
        if component(arrow.target) == "gateway"
        and component(arrow.source)
        not in ("gateway", "cli", "doctor", "demo", "proxy", "running", "testing")
    ]
    assert not wrong


def test_in_the_gateway_only_the_composition_root_names_a_concrete_store() -> None:
    """api, dashboard -> services -> storage/port."""
    wrong = [
        str(arrow)
        for arrow in inner("guard")
        if arrow.target.startswith("guard.gateway.storage.")
        and arrow.target not in ("guard.gateway.storage.port", "guard.gateway.storage")
        and not arrow.source.startswith("guard.gateway.storage")
        and arrow.source not in ("guard.gateway.app", "guard.gateway.databases")
    ]
    assert not wrong


def test_in_the_gateway_services_do_not_know_the_web_nor_the_domain_the_services() -> None:
    order = {"domain": 0, "unit": 1, "ledger": 2, "storage": 3, "services": 4, "api": 5,
             "dashboard": 6}  # fmt: skip
    wrong = [
        str(arrow)
        for arrow in inner("guard")
        if arrow.source.startswith("guard.gateway.")
        and arrow.target.startswith("guard.gateway.")
        and (source := component(arrow.source, 2).partition(".")[2]) in order
        and (target := component(arrow.target, 2).partition(".")[2]) in order
        and order[target] > order[source]
    ]
    assert not wrong


def test_the_ledgers_rules_know_no_store_and_no_loop() -> None:
    """They run on a unit of work, whatever opens its transaction."""
    wrong = [
        str(arrow)
        for arrow in arrows()
        if arrow.source.startswith(("guard.gateway.ledger", "guard.gateway.domain"))
        and arrow.target in ("sqlite3", "asyncio", "threading", "time")
    ]
    wrong += [
        str(arrow)
        for arrow in arrows()
        if arrow.source.startswith("guard.gateway.unit")
        and arrow.target.split(".")[0] in ("sqlite3", "psycopg", "asyncio", "threading")
    ]
    assert not wrong


PROTOCOLS: Final = {
    "Peers": "only PostgreSQL has replicas, and services name no concrete store",
    "LinePeers": "as Peers",
    "FrameReader": "the requests in frames, in a module that imports the socket",
    "Socket": "the API does not know the server, which imports it; tests have their own",
    "HttpConnection": "the places for connections do not know the server, which imports them",
    "Reader": "connections of HTTP and WebSockets",
    "Cursor": "the drivers of both engines", "Connection": "as Cursor",
    "WritingConnection": "as Cursor", "Pooled": "as Cursor",
    "_Reading": "a unit of work and a connection that only reads",
    "Writer": "who only decides needs nothing else of a storage; tests have their own",
    "Migrator": "both engines",
    "Placed": "calls, events and counts of either",
    "Limits": "in memory, in the store and on Redis",
    "TextEngine": "the service starts without the engine's modules; tests have their own",
}  # fmt: skip
"""Protocols of the gateway and of spamdetect: what implements each, or why it has to be."""


def test_a_protocol_has_several_classes_or_a_reason() -> None:
    """What is declared again beside its only class has to be changed twice."""
    found = {
        node.name
        for folder in ("guard/gateway", "spamdetect")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0] == "Protocol" for base in node.bases)
    }
    assert found == set(PROTOCOLS)


COLLABORATORS_MAX: Final = 6
MORE_COLLABORATORS: Final = {
    "Courier": 8,  # it carries out what the desk decides, which reaches all that asks or is paid
    "Exchange": 10,  # one request of the proxy: what comes in, what goes out, and what counts it
    "LlmRequests": 7,
    "Session": 8,  # composes everything that talks to the gateway
    "Subscriber": 9,  # five are what the session and the leases do with a frame of the socket
    "ToolPolicy": 8,
}
"""Constructors of the SDK with more than six collaborators: none is added, and none grows."""
_VALUES: Final = {
    "str", "int", "float", "bool", "None", "bytes", "Path", "os", "PathLike", "Sequence", "Mapping",
    "Any", "Collection", "frozenset", "tuple",
}  # fmt: skip
"""Types of arguments that are values."""


def collaborators(init: ast.FunctionDef) -> int:
    """Return how many arguments of a constructor are objects or functions that it works with."""
    found = 0
    for each in [*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs][1:]:
        words = re.findall(r"\w+", ast.unparse(each.annotation) if each.annotation else "")
        found += "Callable" in words or not set(words) <= _VALUES
    return found


def test_a_constructor_takes_at_most_six_collaborators() -> None:
    """A class with more of them knows too much, and a test has to make all of them."""
    found = {
        node.name: collaborators(init)
        for path in (ROOT / "guard").rglob("*.py")
        if "gateway" not in path.parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        for init in node.body
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
    }
    assert len(found) > 150
    assert {name: count for name, count in found.items() if count > COLLABORATORS_MAX} == (
        MORE_COLLABORATORS
    )


TALKS: Final = {
    "__main__.py", "cli.py", "login/command.py", "messages.py", "proxy/__main__.py",
    "proxy/command.py", "running/hook/sitecustomize.py", "running/report.py",
}  # fmt: skip
"""What writes to the terminal: the commands, and one function for programs that guard is part of.
The rest logs, as ``guard`` or below it, and the program decides where that goes."""


def test_only_commands_and_one_function_write_to_the_terminal() -> None:
    """A library that prints cannot be silenced by the program that it is part of."""
    found = {
        path.relative_to(ROOT / "guard").as_posix()
        for path in (ROOT / "guard").rglob("*.py")
        if not {"gateway", "demo"} & set(path.parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"print|click\.echo|sys\.std(err|out)\.write", ast.unparse(node.func))
    }
    assert found == TALKS


def test_each_public_class_of_guard_has_a_name_of_its_own() -> None:
    """A reader who meets a name knows which class it is."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "guard").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert not {name: found for name, found in places.items() if len(found) > 1}


WEB: Final = {
    "starlette", "uvicorn", "httpx", "httpx2", "websockets", "anyio", "socket", "http",
    "urllib.request", "telegram", "aiogram", "psycopg", "redis", "prometheus_client",
    "click", "rich",
}  # fmt: skip


def test_the_engine_imports_no_service_and_no_web_code() -> None:
    wrong = [
        str(arrow)
        for arrow in arrows()
        if arrow.source.startswith("spamdetect.engine")
        # The pool of worker processes is connected to them by socket pairs.
        and (arrow.source, arrow.target) != ("spamdetect.engine.pool", "socket")
        and (
            arrow.target in WEB
            or arrow.target.partition(".")[0] in WEB
            or (
                arrow.target.startswith("spamdetect")
                and component(arrow.target) not in ("engine", "errors", "thresholds")
            )
        )
    ]
    assert not wrong


def test_the_clients_never_import_the_engine_except_the_local_backend_lazily() -> None:
    clients = {"client", "sync", "_exchange", "_http", "_retry", "_messages", "models", "settings",
               "errors", "(root)"}  # fmt: skip
    to_engine = [
        str(arrow)
        for arrow in inner("spamdetect")
        if component(arrow.target) == "engine" and component(arrow.source) in clients
    ]
    assert not to_engine
    to_local = [
        arrow
        for arrow in inner("spamdetect")
        if component(arrow.target) == "_local" and component(arrow.source) != "_local"
    ]
    assert to_local
    assert all(arrow.lazy or arrow.typing_only for arrow in to_local)


IMPURE: Final = {
    "asyncio", "socket", "ssl", "time", "random", "logging", "subprocess", "pathlib",
    "tempfile", "sqlite3", "http", "urllib.request", "signal", "selectors", "concurrent",
    "multiprocessing",
    "httpx", "httpx2", "websockets", "anyio", "wrapt",
}  # fmt: skip


def test_the_core_is_pure() -> None:
    """No asyncio, no I/O, no clock, nothing of guard: time and chance are arguments."""
    wrong = [
        str(arrow)
        for arrow in arrows()
        if arrow.source.startswith("guard.core")
        and (
            (arrow.target in IMPURE or arrow.target.partition(".")[0] in IMPURE)
            or (arrow.target.startswith("guard") and component(arrow.target) != "core")
        )
    ]
    assert not wrong


def test_the_loop_knows_nothing_of_guard() -> None:
    wrong = [
        str(arrow)
        for arrow in inner("guard")
        if component(arrow.source) == "loop" and component(arrow.target) != "loop"
    ]
    assert not wrong


SDK_LIBRARIES: Final = {
    "attrs",
    "attr",
    "msgspec",
    "httpx",
    "websockets",
    "anyio",
    "wrapt",
    "guard",
}


def test_the_sdk_imports_its_own_dependencies_only() -> None:
    """Transports of others (aiohttp, requests, ...) are reached when the user has loaded them."""
    foreign = [
        str(arrow)
        for arrow in arrows()
        if arrow.source.partition(".")[0] == "guard"
        and component(arrow.source)
        not in (
            "gateway",
            "demo",
            "cli",
            "doctor",
            "integrations",
            "login",
            "proxy",
            "running",
            "testing",
            "__main__",
        )
        and not arrow.lazy
        and not arrow.typing_only
        and arrow.target.partition(".")[0] not in SDK_LIBRARIES | sys.stdlib_module_names
    ]
    assert not foreign


def test_the_arrow_reader_sees_what_python_sees() -> None:
    """The reader above is not blind: a module's eager arrows are what its import really loads."""
    importlib.import_module("guard.transport.http")
    eager = {
        arrow.target
        for arrow in arrows()
        if arrow.source == "guard.transport.http" and not arrow.lazy and not arrow.typing_only
    }
    assert {"ssl", "attrs", "guard.transport.own_httpx"} <= eager
    assert eager - {"__future__"} <= sys.modules.keys()
