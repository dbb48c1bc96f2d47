"""The recipes for Ray and Spark in the documentation, on the local mode of each."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "spamdetect" / "engine.md"

RAY = """
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
chunks = [[f"message {n} {m}" for m in range(5)] for n in range(4)]
scores = classify_corpus(chunks, workers=2)
engine = Engine.load()
assert scores == [engine.predict(text).prediction.spam_score for chunk in chunks for text in chunk]
ray.shutdown()
"""
SPARK = """
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
texts = [f"message {n}" for n in range(20)]
scores = classify_corpus(spark, texts, partitions=2)
from spamdetect.engine import Engine
engine = Engine.load()
assert scores == [engine.predict(text).prediction.spam_score for text in texts]
spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "module", "program"), [("ray", "ray", RAY), ("spark", "pyspark", SPARK)]
)
def test_recipe(name: str, module: str, program: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    found = re.search(
        rf"<!-- recipe: {name} -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert found is not None
    script = tmp_path / "recipe.py"
    script.write_text(found.group(1) + program, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(PAGE.parents[2]),
            "PYSPARK_PYTHON": sys.executable,
            "RAY_AUTH_MODE": "disabled",
        },
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
