"""The table of a build's scope: a row for each collected test, with its facts and what the scope's rules decided.

Facts are read from pytest's and PyTorch's own objects at collection; those that a test does not have are null, or an empty
list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from accel_ci.model import Artifact
from accel_ci.storage.artifacts import ArtifactStore

Status = Literal["enabled", "not_enabled", "out_of_scope"]
"""A test that runs; one in scope that does not yet; one that a rule, which has a reason, leaves out."""

SCOPE = pa.schema(
    [
        pa.field("suite", pa.string(), nullable=False),
        pa.field("test", pa.string(), nullable=False),  # the node id, as in `SelectedTest.test`
        pa.field("file", pa.string(), nullable=False),
        pa.field("class_name", pa.string()),
        pa.field("method", pa.string()),  # without the suffix of device and dtype, where PyTorch's objects tell it
        pa.field("op", pa.string()),  # the full name of its OpInfo
        pa.field("dtypes", pa.list_(pa.string()), nullable=False),
        pa.field("device", pa.string()),  # the device type
        pa.field("module", pa.string()),  # the name of its ModuleInfo
        pa.field("markers", pa.list_(pa.string()), nullable=False),
        pa.field("decorators", pa.list_(pa.string()), nullable=False),
        pa.field("group", pa.string()),  # of tests that must run together
        pa.field("status", pa.string(), nullable=False),  # `Status`
        pa.field("reason", pa.string()),  # null for an enabled test that no rule names
        pa.field("rule", pa.string()),  # identifies the rule that decided: `exclude[3]`, `skips.yaml:exclude[7]`
        pa.field("mode", pa.string(), nullable=False),  # `accel_ci.config.scope_settings.Mode`
    ]
)
FACTS = pa.schema([field for field in SCOPE if field.name not in ("suite", "status", "reason", "rule", "mode")])
"""The columns that say what a test is."""

_NAME = "scope.parquet"
_kernels: Any = pyarrow.compute


def facts_table(tests: Sequence[str], facts: Mapping[str, tuple[Sequence[Any], Sequence[int]]]) -> pa.Table:
    """A table with the columns `FACTS` of tests in their order; `facts` are as `accel_ci.runner.test_facts` has them.

    Each column has its distinct values, and of each test the index of its value, or -1. Raises `ValueError` for others.
    """
    columns: dict[str, Any] = {"test": tests, "file": [test.partition("::")[0] for test in tests]}
    for field in FACTS:
        if field.name in columns:
            continue
        values, of = facts.get(field.name, ((), [-1] * len(tests)))
        if len(of) != len(tests) or (of and not -1 <= min(of) <= max(of) < len(values)):
            raise ValueError(f"the facts {field.name!r} are not those of {len(tests)} tests")
        nothing: list[str] | None = None if field.nullable else []
        known, places = pa.array([*values, nothing], field.type), pa.array(of, pa.int32())
        columns[field.name] = known.take(_kernels.if_else(_kernels.less(places, 0), len(values), places))
    return pa.table(columns, schema=FACTS)


def write_scope(table: pa.Table, artifacts: ArtifactStore) -> Artifact:
    """Keep a table with the schema `SCOPE`."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.cast(SCOPE), sink, compression="zstd")
    return artifacts.put_bytes(sink.getvalue().to_pybytes(), _NAME)


def read_scope(artifact: Artifact, artifacts: ArtifactStore) -> pa.Table:
    """Read a table of `write_scope`. Raises `AccelCiError` when it is gone or damaged."""
    return pq.read_table(artifacts.checked_path(artifact), schema=SCOPE)
