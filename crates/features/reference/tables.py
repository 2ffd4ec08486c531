"""Writes the tables of tests/golden/tables: one table of 12 rows, by several programs.

    python3 -m venv venv && venv/bin/pip install duckdb==2.0.0 fastparquet==2026.9.0 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 pyspark==4.3.0
    venv/bin/python crates/features/reference/tables.py crates/features/tests/golden/tables

All settings are the defaults of the programs, except where a line says otherwise. Spark needs Java
17. `spark_settings.parquet` and `spark_fastparquet.parquet` have the settings of earlier versions
of Spark (version 1 of pages, every column optional, timestamps as INT96).
"""

import sys
import tempfile
from pathlib import Path

import duckdb
import fastparquet
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
rows = range(12)
frame = pd.DataFrame(
    {
        "name": [f"row {i}" for i in rows],
        "width": [0.5 * i - 1.25 for i in rows],
        "count": np.array([i * i - 3 for i in rows], dtype=np.int64),
        "small": np.array([i for i in rows], dtype=np.uint8),
        "size": np.array([0.1 * i for i in rows], dtype=np.float32),
        "flag": [i % 3 == 0 for i in rows],
        "born": pd.to_datetime([f"2020-01-{i + 1:02}" for i in rows]),
        "kind": [["cat", "dög"][i % 2] for i in rows],
    }
)

frame.to_parquet(folder / "pandas.parquet")
frame.iloc[[3, 1, 4, 0, 5, 9, 2, 6, 8, 7, 11, 10]].to_parquet(folder / "pandas_index.parquet")
frame.set_index("name").to_parquet(folder / "pandas_named_index.parquet")
categories = frame.assign(kind=frame["kind"].astype("category"), small=frame["small"].astype("category"))
categories.to_parquet(folder / "pandas_categories.parquet", compression="zstd")
frame.to_parquet(folder / "pandas_gzip.parquet", compression="gzip", row_group_size=5)
frame.to_parquet(folder / "pandas_lz4_v2.parquet", compression="lz4", data_page_version="2.0", version="2.6")
frame.to_feather(folder / "pandas.feather")

pl.DataFrame(frame.to_dict("series")).write_parquet(folder / "polars.parquet")
pl.DataFrame(frame.to_dict("series")).write_ipc(folder / "polars.arrow")
nested = pl.DataFrame({"vector": [[float(i), 1.0] for i in rows], "width": [float(i) for i in rows], "kind": [i % 2 for i in rows]})
nested.write_parquet(folder / "polars_nested.parquet")
holes = pl.DataFrame({"a": [1.0, None, 3.0, 4.0], "b": [1, 2, None, 4], "kind": ["x", "y", "x", "y"]})
holes.write_parquet(folder / "polars_holes.parquet")

duckdb.sql(f"COPY (SELECT * FROM frame) TO '{folder / 'duckdb.parquet'}' (FORMAT parquet)")
duckdb.sql(f"COPY (SELECT *, width::DECIMAL(10, 2) AS exact FROM frame) TO '{folder / 'duckdb_zstd.parquet'}' (FORMAT parquet, COMPRESSION zstd)")

table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
spark = table.replace_schema_metadata({"org.apache.spark.version": "4.0.0"})
pq.write_table(
    spark,
    folder / "spark_settings.parquet",
    version="1.0",
    data_page_version="1.0",
    compression="snappy",
    use_deprecated_int96_timestamps=True,
    flavor="spark",
    store_schema=False,
)
fastparquet.write(str(folder / "spark_fastparquet.parquet"), frame.astype({"name": object, "kind": object}), compression="SNAPPY", times="int96", has_nulls=True, stats=False)

with pa.OSFile(str(folder / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
    for batch in table.to_batches(max_chunksize=5):
        writer.write_batch(batch)
pa.feather.write_feather(table, str(folder / "zstd.arrow"), compression="zstd")

fields = {"name": "String", "width": "Double", "count": "Long", "small": "Short", "size": "Float", "flag": "Boolean", "born": "Timestamp", "kind": "String"}
schema = spark_types.StructType([spark_types.StructField(name, getattr(spark_types, kind + "Type")()) for name, kind in fields.items()])
values = [[row[name].to_pydatetime() if name == "born" else getattr(row[name], "item", lambda x=row[name]: x)() for name in fields] for _, row in frame.iterrows()]
session = SparkSession.builder.master("local[1]").getOrCreate()
with tempfile.TemporaryDirectory() as scratch:
    session.createDataFrame(values, schema).coalesce(1).write.parquet(scratch + "/table")
    part = next(Path(scratch, "table").glob("*.parquet"))
    (folder / "spark.parquet").write_bytes(part.read_bytes())
