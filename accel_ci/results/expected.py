"""The tests that a build is expected to run, as columns: from a selection, and from a file of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact
from accel_ci.results.columns import counts_of, database, kernels, literal_path, one_chunk
from accel_ci.storage.artifacts import ArtifactStore

_SELECTED = """
SELECT suite, test FROM read_json($file, format = 'array', auto_detect = false, maximum_object_size = 4194304,
                                  columns = {suite: 'VARCHAR', test: 'VARCHAR'})
"""


def expected_tests(selection: Artifact, artifacts: ArtifactStore) -> dict[str, pa.Array[Any]]:
    """The ids of the selected tests of each suite; `selection` is a JSON artifact, a list of `SelectedTest`."""
    file = str(artifacts.path(selection))
    with database() as connection:
        table = connection.sql(_SELECTED, params={"file": literal_path(file)}).to_arrow_table()
    return {
        suite: one_chunk(table.filter(kernels.equal(table["suite"], suite))["test"]) for suite in counts_of(table["suite"])
    }


def read_expected(path: Path) -> pa.Array[Any]:
    """The ids of a file with one a line; blank lines and those that begin with `#` do not count.

    Raises `AccelCiError` when there is none: an account of nothing would always balance.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    tests = [line for line in lines if line and not line.startswith("#")]
    if not tests:
        raise AccelCiError(f"{path} names no test; write the ids of the tests that must run, one a line")
    return pa.array(tests, pa.string())
