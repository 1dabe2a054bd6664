"""Tables that are made of many stored suites and kept in the store, with the suites that they cover.

They save work alone: one that is missing, damaged or of an earlier layout is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from accel_ci.storage.object_store import ObjectStore


def read_kept_table(objects: ObjectStore, name: str, layout: bytes) -> tuple[pa.Table, dict[str, str]] | None:
    """Read a table and the versions of the stored suites that it covers, by name; None if it must be made anew.

    `layout` names the columns and what they mean: change it when these change.
    """
    entry = objects.find(name)
    try:
        table = None if entry is None else pa.ipc.open_file(pa.memory_map(str(objects.fetch(entry)))).read_all()
    except (OSError, pa.ArrowException):
        return None
    if table is None or layout not in (table.schema.metadata or {}):
        return None
    return table.replace_schema_metadata(), json.loads(table.schema.metadata[layout])


def keep_table(objects: ObjectStore, name: str, layout: bytes, table: pa.Table, covers: Mapping[str, str]) -> None:
    """Keep a table of the stored suites that it covers."""
    table = table.replace_schema_metadata({layout: json.dumps(covers)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    objects.put(name, sink.getvalue())
