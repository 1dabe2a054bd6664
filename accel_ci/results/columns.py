"""Columns of Arrow tables: the few things that every module here does with them.

`kernels` are Arrow's own compute functions without their stubs, which know fewer kinds of arguments than the functions take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute

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


def counted(length: int) -> pa.Array[Any]:
    """A column that counts from 0."""
    return pa.array(range(length), pa.int32())


def counts_of(column: Column) -> dict[Any, int]:
    """How often each value is in a column."""
    return {row["values"]: row["counts"] for row in cast(Any, kernels.value_counts(column)).to_pylist()}


def in_order(table: pa.Table, *names: str) -> pa.Table:
    """The table sorted by columns, in one chunk; rows that are equal in them stay in their order."""
    return table.take(kernels.sort_indices(table, [(name, "ascending") for name in names])).combine_chunks()


def taken(columns: dict[str, Column], order: pa.Array[Any]) -> pa.Table:
    """These rows of the columns, in one chunk. `columns` is emptied meanwhile, so that only one of them is there twice."""
    return pa.table({name: columns.pop(name).take(order) for name in list(columns)}).combine_chunks()


def pairs(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def repeats(column: pa.Array[Any]) -> pa.Array[Any]:
    """Of all values but the first: whether each equals the one before it."""
    return cast("pa.Array[Any]", kernels.equal(column[1:], column[:-1]))
