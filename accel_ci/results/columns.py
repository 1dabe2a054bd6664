"""Columns of Arrow tables: the operations that every module here needs.

`kernels` are Arrow's own compute functions without their stubs, which know fewer kinds of arguments than the functions take.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute

if TYPE_CHECKING:
    import duckdb

kernels: Any = pyarrow.compute

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"


def schema_of(**types: pa.DataType) -> pa.Schema:
    """A schema, in the order given."""
    return pa.schema(types.items())


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`; those that it lacks are null (files of earlier versions)."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(cast(Any, columns), schema=schema)


def constant(value: Any, length: int, kind: pa.DataType) -> pa.Array[Any]:
    """A column of one value."""
    return cast("pa.Array[Any]", pa.repeat(cast(Any, pa.scalar(value, kind)), length))


def counted(length: int, first: int = 0) -> pa.Array[Any]:
    """A column that counts from `first`."""
    return cast("pa.Array[Any]", cast(Any, pa).arange(first, first + length).cast(pa.int32()))


def counts_of(column: Column) -> dict[Any, int]:
    """Count each value of a column."""
    return {row["values"]: row["counts"] for row in cast(Any, kernels.value_counts(column)).to_pylist()}


def in_order(table: pa.Table, *names: str) -> pa.Table:
    """The table sorted by columns, in one chunk; rows that are equal in them stay in their order."""
    return table.sort_by([(name, "ascending") for name in names]).combine_chunks()


def one_chunk(column: Column) -> pa.Array[Any]:
    """The column in one piece, which is copied only if there are several."""
    if isinstance(column, pa.Array):
        return column
    return cast("pa.Array[Any]", column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def pairs(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def repeats(column: pa.Array[Any]) -> pa.Array[Any]:
    """Of all values but the first: whether each equals the one before it."""
    return cast("pa.Array[Any]", kernels.equal(column[1:], column[:-1]))


def database(**tables: pa.Table | pa.RecordBatchReader) -> duckdb.DuckDBPyConnection:
    """A fresh DuckDB that sees these tables; loaded on first use, because storing does without its 20 MB."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def literal_path(path: Path | str) -> str:
    """A path in which DuckDB sees no pattern."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def release_memory() -> None:
    """Give freed memory back to the system: a few objects on Python's free lists keep whole arenas of it."""
    gc.collect()
    pa.default_memory_pool().release_unused()
