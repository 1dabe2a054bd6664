"""Compilation through a cache in a real builder container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.docker.client import run_docker
from accel_ci.errors import BuildError
from accel_ci.wheels.front_end import Builder
from accel_ci.wheels.uv_environment import PackageSource

SOURCES = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "toy"\nversion = "1.0"\n',
    "setup.py": "from setuptools import Extension, setup\nsetup(ext_modules=[Extension('own', ['own.c'])])\n",
    "own.c": '#include <Python.h>\nstatic struct PyModuleDef own = {PyModuleDef_HEAD_INIT, "own", 0, -1, 0};\n'
    "PyMODINIT_FUNC PyInit_own(void) { return PyModule_Create(&own); }\n",
}


@pytest.fixture(scope="module")
def compilers(base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a C compiler and both caches for it."""
    folder = tmp_path_factory.mktemp("compilers")
    (folder / "Dockerfile").write_text(
        f"FROM {base}\nRUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "
        "gcc libc6-dev python3-dev ccache sccache\n"
    )
    try:
        done = run_docker(["build", "--iidfile", str(folder / "id"), str(folder)], timeout_s=200)
    except BuildError as error:
        pytest.skip(f"the image of the compilers cannot be built: {error}")
    if done.status != 0:
        pytest.skip(f"the image of the compilers cannot be built: {done.tail[-300:]}")
    return (folder / "id").read_text()


@pytest.mark.parametrize("kind", ["ccache", "sccache"])
def test_unchanged_code_comes_from_the_compiler_cache(tmp_path: Path, compilers: str, kind: str) -> None:
    rules = Wheels.model_validate({"compiler_cache": kind})
    packages = PackageSource.from_settings(None, dict(os.environ))
    builder = Builder(compilers, rules, packages, tmp_path / "cache", 300, tmp_path / "scratch")
    compiled = []
    for turn in ("first", "second", "changed"):
        sources = tmp_path / turn
        sources.mkdir()
        for name, text in SOURCES.items():
            (sources / name).write_text(text.replace("1.0", f"1.{turn == 'second':d}"))
        if turn == "changed":
            (sources / "own.c").write_text(SOURCES["own.c"] + "int changed;\n")
        done = builder.build(sources, tmp_path / f"{turn}-out", "3.11", {})
        assert done.status == 0, done.output
        assert len(list((tmp_path / f"{turn}-out").glob("toy-*-cp311-*.whl"))) == 1
        named_by_hash = {file.name for file in builder.cache.rglob("*") if len(file.name) > 20}
        compiled.append({name for name in named_by_hash if not name.endswith("M")})  # ccache's notes on command lines
    assert compiled[0]
    assert compiled[0] == compiled[1] < compiled[2]
