"""PyTorch's own tests in a nightly: small files in a stand-in for its repository, and real ones.

The real ones need `ACCEL_CI_UPSTREAM`: a checkout of PyTorch, or a folder with its `test/` and `tools/`, of a version whose
files the example's PyTorch can import.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from accel_ci.model import Build, RuntimeImage, TestPlan
from accel_ci.pipelines import RUNTIME_IMAGE, TEST_PLAN
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.results.store import open_results
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import make_bench
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.plain_pytest import plain_outcomes
from accel_ci_tests.fixtures.stored_attempts import all_verdicts
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

INSTANCES = """
import os

for number in range(3):
    exec(f"def test_{number}_{os.environ['PYTORCH_TESTING_DEVICE_ONLY_FOR']}(): pass")
"""
FILES = {
    "test/conftest.py": "",
    "test/test_ops.py": INSTANCES,
    "test/nn/test_ops.py": INSTANCES,
    "test/test_dies.py": "import os\n" + INSTANCES + "def test_dies(): os._exit(3)\ndef test_z_lives(): pass\n",
    "test/test_hangs.py": "import time\n" + INSTANCES + "def test_hangs(): time.sleep(1000)\ndef test_z_lives(): pass\n",
    "test/test_missing.py": "from torch.testing import a_name_that_this_torch_has_not\n",
    "test/test_nothing.py": "TESTS = 0\n",
    "tools/__init__.py": "",
    "torch/__init__.py": "raise RuntimeError('the sources of torch hide the wheel')\n",
    "pytest.ini": "[pytest]\n",
}
DEVICE = [f"test_{number}_toy" for number in range(3)]
TOLERANCE = {"ops": ["mm"], "atol": 0.5, "rtol": 0.0, "reason": "not_implemented"}
SUITES = {
    "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
    "unit": {"source": "upstream", "paths": ["test"], "test_timeout_seconds": 12, "scope": {"tolerances": [TOLERANCE]}},
    "on_cpu": {"source": "upstream", "paths": ["test/test_ops.py"], "instances": "cpu"},
}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    folder = tmp_path_factory.mktemp("upstream")
    job = {"cron": "0 2 * * *", "suites": [*SUITES]}
    tests = {**TESTS, "backend/ci/times.json": json.dumps({"default": {"test_hangs": 500}})}
    device = {"type": "toy", "test_times": "ci/times.json"}
    night = make_toy_night(folder, tests, suites=SUITES, device=device, jobs={
        "nightly": job, "intraday": job, "main": {"suites": [*SUITES]}, "pr": {"suites": [*SUITES]},
    })  # fmt: skip
    sha = commit(folder / "upstream", FILES)
    path = night.project.config_path
    path.write_text(path.read_text().replace("upstream:\n", f"upstream:\n  tests_sha: {sha}\n", 1))
    return night


def verdicts(night: ToyNight, build: Build) -> dict[tuple[str, str], str]:
    found = all_verdicts(open_results(night.project), build)
    return {(each.suite, each.test): each.verdict for each in found if each.suite != "smoke"}


def test_files_of_upstream_run_on_the_device_and_on_the_cpu_in_one_job(night: ToyNight) -> None:
    output = night.accel_ci("run", "nightly")
    assert "the tests are of PyTorch 1 at" in output, "they are not of the commit that torch was built from"
    assert "1 file has no test" in output
    [build] = ManifestStore(night.project.home).list_builds()
    files = ("nn/test_ops.py", "test_ops.py", "test_dies.py", "test_hangs.py")
    expected = {("unit", f"upstream/test/{file}::{test}"): "passed" for file in files for test in DEVICE}
    expected |= {("unit", f"upstream/test/test_{file}.py::test_z_lives"): "passed" for file in ("dies", "hangs")}
    expected |= {("unit", f"upstream/test/test_{file}.py::test_{file}"): "failed" for file in ("dies", "hangs")}
    expected |= {("unit", "upstream/test/test_missing.py"): "failed"}
    expected |= {("on_cpu", f"upstream/test/test_ops.py::test_{number}_cpu"): "passed" for number in range(3)}
    assert verdicts(night, build) == expected
    plan = ManifestStore(night.project.home).find(TEST_PLAN, build, TestPlan)
    assert plan is not None
    assert plan.estimated_s == plan.unknown - 5 + 500, "a second each, and the time of the file whose time is known"


def test_what_is_known_is_not_collected_again(night: ToyNight) -> None:
    [build] = ManifestStore(night.project.home).list_builds()
    kept = sorted((night.project.home / "cache" / "collections").iterdir())
    assert len(kept) == 6, "all files but the one that cannot be imported"
    before = [path.stat().st_mtime_ns for path in kept]
    content = json.loads(kept[0].read_text())
    night.accel_ci("run", "manual", "--name", "again")
    assert sorted(kept[0].parent.iterdir()) == kept
    assert json.loads(kept[0].read_text()) == content
    assert all(path.stat().st_mtime_ns > time for path, time in zip(kept, before, strict=True)), "each was used"
    assert verdicts(night, Build("manual-again", build.variant)) == verdicts(night, build)


def test_a_script_reproduces_a_test_of_upstream(night: ToyNight, tmp_path: Path) -> None:
    [build, *_] = ManifestStore(night.project.home).list_builds()
    test = "upstream/test/test_dies.py::test_dies"
    script = night.accel_ci("reproduce", build.name, test)
    assert 'TORCH_TEST_DEVICES="$sources"/pytorch_tests/device_base.py' in script
    assert """ACCEL_CI_TOLERANCES='[{"ops": ["mm"], "atol": 0.5, "rtol": 0.0}]'""" in script
    report = night.accel_ci("scope", "report", build.name)
    assert "tolerances[0]" in report
    assert "matches no collected test" in report
    night.accel_ci("reproduce", build.name, test, "--run", "--folder", str(tmp_path / "dies"), status=3)
    lives = "upstream/test/nn/test_ops.py::test_1_toy"
    night.accel_ci("reproduce", build.name, lives, "--run", "--folder", str(tmp_path / "lives"))


def test_a_worker_is_replayed_on_files_of_upstream(night: ToyNight) -> None:
    [build, *_] = ManifestStore(night.project.home).list_builds()
    output = night.accel_ci("replay", build.name, "--test", "upstream/test/test_dies.py::test_dies", status=1)
    assert "crashed: upstream/test/test_dies.py::test_dies" in output
    assert "tests ran again" in output
    assert "not_run" not in output


REAL = [
    f"test/test_{name}.py"
    for name in (
        "view_ops", "indexing", "type_promotion", "sort_and_select", "shape_ops", "complex", "segment_reductions",
        "scatter_gather_ops", "masked", "tensor_creation_ops", "spectral_ops", "type_info", "dlpack", "numpy_interop",
        "native_functions", "reductions",
    )
]  # fmt: skip
LEAST = 5_000
TIMEOUT_S = 200  # the longest of the real tests takes a tenth of it
FAULTS = {
    "test_indexing.py": ("test_invalid_index", "import os; os.abort()"),
    "test_shape_ops.py": ("test_unfold_errors", "import time; time.sleep(10_000)"),
}
CRASHES, HANGS = (
    f"upstream/test/{file}::{of_class}EMU::{FAULTS[file][0]}_emu"
    for file, of_class in (("test_indexing.py", "TestIndexing"), ("test_shape_ops.py", "TestShapeOps"))
)


def put_faults_in(folder: Path) -> None:
    """Make a test in the middle of a file end its process, and one of another file hang."""
    for file, (test, fault) in FAULTS.items():
        path = folder / file
        before, line, after = path.read_text().partition(f"    def {test}(self, device):\n")
        assert line, f"{file} has no {test}"
        path.write_text(f"{before}{line}        {fault}\n{after}")


def test_pytorchs_own_files_have_the_outcomes_of_plain_pytest(tmp_path: Path) -> None:
    given = os.environ.get("ACCEL_CI_UPSTREAM")
    if not given:
        pytest.skip("ACCEL_CI_UPSTREAM is not set: a checkout of PyTorch, or a folder with its test/ and tools/")
    bench = make_bench(tmp_path)
    upstream = tmp_path / "upstream"
    for name in ("test", "tools"):
        shutil.copytree(Path(given) / name, upstream / name, symlinks=True)
    for path in Path(given).iterdir():
        if path.is_file():
            shutil.copy(path, upstream)
    put_faults_in(upstream / "test")
    git(upstream, "add", "--all", "--force")
    git(upstream, "commit", "--quiet", "-m", "tests")
    bench.configure(
        upstream={"repository": str(upstream), "tests_sha": git(upstream, "rev-parse", "HEAD")},
        variants__0__requirements=["numpy", "expecttest", "hypothesis", "pytest==7.3.2", "setuptools"],
        suites__upstream={"source": "upstream", "paths": REAL, "test_timeout_seconds": TIMEOUT_S},
        jobs__nightly__suites=["upstream"],
        pool__rounds=1,
    )
    bench.accel_ci("run", "manual", "--name", "real")
    [build] = ManifestStore(bench.project.home).list_builds()
    found = {attempt.test: attempt.outcome for attempt in bench.attempts(build)}
    image = ManifestStore(bench.project.home).find(RUNTIME_IMAGE, build, RuntimeImage)
    assert image is not None
    [root] = [path for path in (bench.project.home / "sources").iterdir() if (path / "upstream").is_dir()]
    session = worker_spec_for(bench.project.settings, image, root)
    environment = {**session.environment, **session.sessions["upstream"].environment, "EMU_VISIBLE_CARDS": "0"}
    files = session.sessions["upstream"].paths
    hangs = HANGS.removeprefix("upstream/")  # plain pytest would never end
    plain, _ = plain_outcomes(Path(image.python), root, files, environment, [f"--deselect={hangs}"])
    assert len(plain) >= LEAST
    assert plain[CRASHES] == "crashed"
    plain[HANGS] = "timeout"
    assert {test: (plain.get(test), found.get(test)) for test in plain | found if plain.get(test) != found.get(test)} == {}
