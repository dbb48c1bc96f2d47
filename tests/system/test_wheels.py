"""What would be published: built, looked into, and installed from a folder of wheels."""

from __future__ import annotations

import configparser
import email
import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import yaml

import guard.version
import spamdetect.version
from guard.version import DISTRIBUTION, __version__
from tests.support.programs import ROOT, environment

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
STEM = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
BRINGS = {
    "agents": "agents", "all": "redis", "gateway": "genai_prices", "langgraph": "langgraph",
    "oidc": "authlib",
    "postgres": "psycopg", "redis": "redis", "replicas": "psycopg", "spam": "numpy",
    "spam-train": "sklearn",
}  # fmt: skip
"""Maps an extra to a module that it brings and that is not there without it."""

long = pytest.mark.long


def run(*command: str | Path, code: int = 0, **env: str) -> str:
    """Run a command outside of the checkout's reach; return what it prints."""
    kept = {name: text for name, text in environment(env).items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), env=kept, cwd="/", capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    tools = tmp_path_factory.mktemp("tools")
    venv.create(tools, with_pip=True)
    run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "build")
    run(tools / "bin" / "python", "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (found,) = built.glob("*.whl")
    assert found.name.startswith(STEM)
    return zipfile.ZipFile(found)


@pytest.fixture(scope="module")
def index(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels with everything that the distribution can need."""
    folder = tmp_path_factory.mktemp("index")
    (found,) = built.glob("*.whl")
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder,
        "--find-links", built, f"{found}[all,spam-train]",
    )  # fmt: skip
    return folder


def _metadata(wheel: zipfile.ZipFile) -> Message:
    return email.message_from_bytes(wheel.read(f"{STEM}.dist-info/METADATA"))


def test_its_name_and_version_stand_in_one_place_each() -> None:
    for module in (guard.version, spamdetect.version):
        assert PROJECT["name"] == module.DISTRIBUTION
        assert module.__version__ == __version__
        assert module.installs("gateway") == f"pip install '{PROJECT['name']}[gateway]'"


def test_no_text_tells_to_install_the_name_of_another_project() -> None:
    told = re.compile(r"pip install ['\"]?guard\b|['\"`]guard\[")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.y*ml")]
    code = [*(ROOT / "guard").rglob("*.py"), *(ROOT / "spamdetect").rglob("*.py")]
    for path in (*pages, *code):
        if path.name.startswith(("changelog", "0046-")) or "_build" in path.parts:
            continue
        assert not told.search(path.read_text("utf-8")), path


def test_each_extra_is_tried() -> None:
    assert sorted(BRINGS) == EXTRAS


def test_all_is_what_one_runs_and_not_what_trains_a_model() -> None:
    [all_of] = PROJECT["optional-dependencies"]["all"]
    named = all_of.partition("[")[2].removesuffix("]").split(",")
    below = {"postgres", "redis"}  # which `replicas` brings
    assert sorted({*named, *below, "all", "spam-train"}) == EXTRAS


def test_the_readme_names_this_version() -> None:
    assert f"badge/version-{__version__}-" in (ROOT / "README.md").read_text("utf-8")


@long
def test_what_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"guard", "spamdetect", f"{STEM}.dist-info"}
    assert {
        "guard/py.typed",
        "spamdetect/py.typed",
        "spamdetect/engine/spam.model",
        "spamdetect/engine/SHA256SUMS",
        f"{STEM}.dist-info/licenses/LICENSE",
    } <= set(names)
    assert not [name for name in names if name.endswith((".c", ".pyc", ".sqlite3"))]
    assert not [name for name in names if name.startswith("spamdetect/training/notices/")]
    assert "spamdetect/engine/concepts.tsv" not in names
    packaged = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("py", "toml")
        for path in (ROOT / "guard").rglob(f"*.{suffix}")
    }
    assert packaged <= set(names)


@long
def test_the_facts_are_read_from_the_wheel(built: Path) -> None:
    (found,) = built.glob("*.whl")
    say = """import sys; sys.path.insert(0, sys.argv[1])
from guard.core.vendors import VENDORS, bodies
known = [len(each.known) > 2 for each in bodies.BODIES.values()]
print(bodies.__file__, len(VENDORS) > 25, *known)"""
    said = run(sys.executable, "-c", say, found).split()
    assert said[0].startswith(str(found))
    assert said[1:] == ["True"] * len(said[1:]) != []


@long
def test_what_the_wheel_says_of_itself(wheel: zipfile.ZipFile) -> None:
    about = _metadata(wheel)
    assert (about["Name"], about["Version"]) == (DISTRIBUTION, __version__)
    assert (about["License-Expression"], about["License-File"]) == ("Apache-2.0", "LICENSE")
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert sorted(about.get_all("Provides-Extra", [])) == EXTRAS
    points = configparser.ConfigParser()
    points.read_string(wheel.read(f"{STEM}.dist-info/entry_points.txt").decode())
    assert dict(points["console_scripts"]) == {
        "guard": "guard.__main__:main",
        "spamdetect": "spamdetect.__main__:main",
    }


@long
def test_what_is_in_the_sdist(built: Path) -> None:
    with tarfile.open(built / f"{STEM}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".nox", "docs/_build"))]


@long
@pytest.mark.generator("installations from a folder of wheels")
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_it_installs_from_a_folder_of_wheels(extra: str, index: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    wanted = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    run(
        programs / "python", "-m", "pip", "install", "--quiet", "--no-index",
        "--find-links", index, wanted,
    )  # fmt: skip
    say = "import guard, spamdetect; print(guard.__file__, spamdetect.__version__)"
    said = run(programs / "python", "-c", say)
    assert str(tmp_path) in said
    assert __version__ in said
    has_gateway, has_spam = extra in ("gateway", "all"), extra in ("spam", "spam-train", "all")
    if has_gateway:
        assert __version__ in run(programs / "guard", "--version")
        assert "serve" in run(programs / "guard", "gateway", "--help")
    else:
        said = run(programs / "guard", "gateway", "serve", "--port", "0", code=1)
        assert f"pip install '{DISTRIBUTION}[" in said
        assert "Traceback" not in said
    if has_spam:
        assert "SPAM" in run(programs / "spamdetect", "predict", "WIN a FREE prize now, claim it!")
    else:
        said = run(programs / "spamdetect", "predict", "x", code=1)
        assert f"pip install '{DISTRIBUTION}[spam]'" in said
        assert "Traceback" not in run(programs / "spamdetect", "doctor", code=1)
    module = BRINGS.get(extra, "click")
    run(programs / "python", "-c", f"import {module}", code=0 if extra else 1)


def test_the_checksums_of_the_models() -> None:
    folder = ROOT / "spamdetect" / "engine"
    noted = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    models = {path.name: path for path in folder.glob("*.model")}
    assert noted.keys() == models.keys()
    for name, path in models.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == noted[name], name


def test_workflows_of_a_forge_do_what_anybody_can_do_anywhere() -> None:
    """They call what CI is or a session of nox, with actions that nobody can exchange."""
    sessions = set(re.findall(r"^@nox\.session.*\n(?:.*\n)*?def (\w+)", _nox(), re.MULTILINE))
    known = {"bash .ci/run", "python -m pip install nox", *(f"nox -s {each}" for each in sessions)}
    paths = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(paths) == 2
    for path in paths:
        document = yaml.safe_load(path.read_text("utf-8"))
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        assert {step["run"] for step in steps if "run" in step} <= known, path
        used = [step["uses"] for step in steps if "uses" in step]
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in used), path


def _nox() -> str:
    return (ROOT / "noxfile.py").read_text("utf-8")


def test_forms_of_a_forge_can_be_read() -> None:
    forms = list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 3
    for path in forms:
        document = yaml.safe_load(path.read_text("utf-8"))
        if path.name != "config.yml":
            assert document["name"]
            assert all(each["type"] for each in document["body"])
