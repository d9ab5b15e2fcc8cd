"""A run's metrics as one long table: a row a metric of a codec, in total, of one tensor or of one layer."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields

import pyarrow as pa
import pyarrow.parquet as pq

from tqcli.report.run import RunResult
from tqcli.report.schema import Metrics

UNCOMPRESSED = "uncompressed"
"""The codec of a model's own figures."""


@dataclass(frozen=True)
class TidyRow:
    """One number with its interval (95 %) and what it was resampled over."""

    measure: str
    codec: str
    layer: int | None
    """None in totals."""
    tensor: str
    """keys, values, or both for what comes of both."""
    metric: str
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    unit: str


COLUMNS = tuple(field.name for field in fields(TidyRow))
_SCHEMA = pa.schema(
    [
        ("measure", pa.string()),
        ("codec", pa.string()),
        ("layer", pa.int32()),
        ("tensor", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),
        ("unit", pa.string()),
    ]
)


def codec_rows(result: RunResult) -> Iterator[TidyRow]:
    """Totals of every codec, those of keys and of values alone, and the uncompressed model's own figures."""
    for measure, of in result.measures.items():
        yield from _rows(measure, UNCOMPRESSED, None, "both", of.baseline)
        for codec in of.codecs:
            yield from _rows(measure, codec.codec, None, "both", codec.total)
            for tensor, metrics in codec.by_tensor.items():
                yield from _rows(measure, codec.codec, None, tensor, metrics)


def layer_rows(result: RunResult) -> Iterator[TidyRow]:
    """Every layer of every codec."""
    for measure, of in result.measures.items():
        for codec in of.codecs:
            for layer in codec.layers:
                yield from _rows(measure, codec.codec, layer.layer, layer.tensor, layer.metrics)


def csv_text(rows: Iterable[TidyRow]) -> str:
    """A header and a line a row, lines ended by one newline; empty where there is no value, inf and nan as such."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(astuple, rows))
    return out.getvalue()


def parquet_bytes(rows: Iterable[TidyRow]) -> bytes:
    """The same as a Parquet file, zstd-compressed."""
    records = [dict(zip(COLUMNS, astuple(row), strict=True)) for row in rows]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema=_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def _rows(measure: str, codec: str, layer: int | None, tensor: str, metrics: Metrics) -> Iterator[TidyRow]:
    for name, of in metrics.items():
        yield TidyRow(measure, codec, layer, tensor, name, of.value, of.ci_low, of.ci_high, of.n, of.unit)
