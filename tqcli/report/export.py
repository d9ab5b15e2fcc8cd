"""Writes the reports of a run, or gives one as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tqcli.report.run import RunResult
from tqcli.storage import make_folder, write_file

FORMATS = ("html", "md", "csv", "parquet")
TEXT_FORMATS = ("md", "html", "csv", "json")


def write_reports(result: RunResult, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes report.html, report.md, layers.csv with codecs.csv, and layers.parquet, as far as they are asked for.

    Each is written whole and renamed. Returns the files. Raises `ValueError` for an unknown format, `InputError` where
    the folder can't be written to.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise ValueError(f"there is no report format {unknown[0]!r}; there are {', '.join(FORMATS)}")
    from tqcli.report.tidy import codec_rows, csv_text, layer_rows, parquet_bytes

    make_folder(folder)
    written: dict[str, bytes] = {}
    for name in dict.fromkeys(formats):
        if name == "csv":
            written["layers.csv"] = csv_text(layer_rows(result)).encode()
            written["codecs.csv"] = csv_text(codec_rows(result)).encode()
        elif name == "parquet":
            written["layers.parquet"] = parquet_bytes(layer_rows(result))
        else:
            written[f"report.{name}"] = as_text(result, name).encode()
    for file, content in written.items():
        write_file(folder / file, content)
    return [folder / file for file in written]


def as_text(result: RunResult, form: str) -> str:
    """The report as md, html, json, or csv: totals (with no layer), then layers. Raises `ValueError` for others."""
    if form == "html":
        from tqcli.report.html import to_html

        return to_html(result)
    if form == "md":
        from tqcli.report.markdown import to_markdown

        return to_markdown(result)
    if form == "csv":
        from tqcli.report.tidy import codec_rows, csv_text, layer_rows

        return csv_text(chain(codec_rows(result), layer_rows(result)))
    if form == "json":
        return result.to_json() + "\n"
    raise ValueError(f"{form!r} is no text format; there are {', '.join(TEXT_FORMATS)}")


def as_bytes(result: RunResult, form: str) -> bytes:
    """As `as_text`, in UTF-8; or parquet, with the rows of csv."""
    if form != "parquet":
        return as_text(result, form).encode()
    from tqcli.report.tidy import codec_rows, layer_rows, parquet_bytes

    return parquet_bytes(chain(codec_rows(result), layer_rows(result)))
