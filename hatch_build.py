"""Builds `spamdetect.engine.speedups` where there is a C compiler; without one the wheel is pure.

The module keeps to the stable ABI, so one wheel serves every supported CPython of its platform.
``CC`` and ``CFLAGS`` have their usual meaning.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "spamdetect/engine/c"
MODULE = "spamdetect/engine/speedups.abi3.so"
# Results must not depend on whether a processor can multiply and add in one step.
FLAGS = ("-std=c99", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC")


class SpeedupsHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, or puts it beside its sources for an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless this is no wheel."""
        if self.target_name != "wheel":
            return
        if version == "editable":
            compile_speedups(Path(self.root), Path(self.root) / MODULE)
            return
        # Removed with the object, after the wheel is written.
        self.folder = tempfile.TemporaryDirectory()
        module = Path(self.folder.name) / "speedups.abi3.so"
        if compile_speedups(Path(self.root), module):
            build_data["force_include"][str(module)] = MODULE
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"


def compile_speedups(root: Path, module: Path) -> bool:
    """Compile the module; False where that is impossible, and then no module is left."""
    module.unlink(missing_ok=True)
    if os.name != "posix" or sys.implementation.name != "cpython":
        return False
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    shared = ["-shared"]
    if sys.platform == "darwin":
        shared = ["-bundle", "-undefined", "dynamic_lookup"]
    new = module.with_name(f"{module.name}.{os.getpid()}")
    command = [
        *shlex.split(compiler), *FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), *shared,
        f"-I{sysconfig.get_path('include')}",
        *sorted(str(source.relative_to(root)) for source in (root / SOURCES).glob("*.c")),
        "-o", str(new), "-lm",
    ]  # fmt: skip
    try:
        subprocess.run(command, cwd=root, check=True, capture_output=True)
        new.replace(module)  # a process may have the old one loaded
    except (OSError, subprocess.SubprocessError):
        new.unlink(missing_ok=True)
        return False
    return True
