"""Build of the C++ bridge; everything else about the package stands in pyproject.toml.

The extension is made for the torch that is installed here, and says so in `_build.py`, which the
package checks before it loads the extension.
"""

from __future__ import annotations

import os
from pathlib import Path

# Building imports torch, and torch would load whatever backend is installed: this one, half built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).parent
PACKAGE = "torch_spyre_ref"
FLAGS = ["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wno-interference-size"]


class BuildPython(build_py):
    """Writes `_build.py` before the package's modules are collected."""

    def run(self) -> None:
        write_build_record()
        super().run()


class BuildBridge(BuildExtension):
    """Writes `_build.py` also where only the extension is built."""

    def run(self) -> None:
        write_build_record()
        super().run()


def write_build_record() -> None:
    """Record the torch that the extension is built for."""
    text = '"""Written by setup.py: what the extension was built for."""\n\n'
    text += f'TORCH_VERSION = "{torch.__version__}"\n'
    (ROOT / PACKAGE / "_build.py").write_text(text)


setup(
    ext_modules=[
        CppExtension(
            f"{PACKAGE}._bridge",
            sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.cpp")),
            depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.h")),
            include_dirs=[str(Path(path) / "kineto") for path in include_paths()],
            define_macros=[("USE_KINETO", None)] if torch.autograd.kineto_available() else [],
            extra_compile_args=FLAGS,
        )
    ],
    cmdclass={"build_py": BuildPython, "build_ext": BuildBridge},
)
