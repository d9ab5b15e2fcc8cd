from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.datasets import Document, Text, load_text
from tqcli.errors import InputError

PROSE = "It is a truth universally acknowledged.\n\nHowever little known: “é” — 汉字.\n"


def _refusal(spec: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        load_text(str(spec))
    message = str(caught.value)
    assert "\n" not in message
    return message


def _write_parquet(path: Path, **columns: list[Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_reads_a_text_file_as_one_document(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(PROSE, encoding="utf-8")
    text = load_text(str(path))
    assert text.spec == str(path)
    assert text.documents == (Document("book.txt", PROSE),)
    assert text.n_bytes == len(PROSE.encode())


@pytest.mark.parametrize("name", ["book.txt", "BOOK.TXT"])
def test_ignores_a_byte_order_mark_and_carriage_returns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + PROSE.replace("\n", "\r\n").encode())
    assert load_text(str(path)).documents[0].text == PROSE


def test_finds_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "book.txt").write_text(PROSE, encoding="utf-8")
    assert load_text("~/book.txt").documents[0].text == PROSE


def test_reads_jsonl_rows_as_documents(tmp_path: Path) -> None:
    # The last row is longer than the block that many readers of JSON lines take at a time.
    long = "a\u2028b " + "x" * 3_000_000
    rows = [{"text": PROSE, "id": 1}, {"text": None}, {"text": "  "}, {"text": long}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    assert load_text(str(path)).documents == (
        Document("rows.jsonl:1", PROSE),
        Document("rows.jsonl:4", long),
    )


def test_reads_parquet_rows_as_documents(tmp_path: Path) -> None:
    path = _write_parquet(tmp_path / "rows.parquet", text=[PROSE, None, "second"], id=[1, 2, 3])
    assert load_text(str(path)).documents == (Document("rows.parquet:0", PROSE), Document("rows.parquet:2", "second"))


@pytest.mark.parametrize(("suffix", "content"), [(".txt", PROSE), (".jsonl", json.dumps({"text": PROSE}))])
def test_unpacks_gzip(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"packed{suffix}.gz"
    path.write_bytes(gzip.compress(content.encode()))
    (document,) = load_text(str(path)).documents
    assert document.text == PROSE


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \n\t\r\n \xc2\xa0"])
def test_refuses_a_file_without_text(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    message = _refusal(path)
    assert f"{path} holds no text" in message
    assert "name a text that has words" in message


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_refuses_a_table_without_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text('{"text": " "}\n{"text": null}\n')
    else:
        _write_parquet(path, text=[" ", None])
    assert f"{path} holds no text" in _refusal(path)


@pytest.mark.parametrize("name", ["book.txt", "rows.jsonl", "book.txt.gz"])
def test_refuses_what_is_not_utf8(tmp_path: Path, name: str) -> None:
    content = b"caf\xe9 au lait"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    message = _refusal(path)
    assert f"{path} is not UTF-8 text (byte 3)" in message
    assert "convert it" in message


def test_refuses_half_a_surrogate_pair(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "ab\\ud800"}\n')
    assert "rows.jsonl:1 is not valid Unicode (character 2); mend it" in _refusal(path)


def test_refuses_a_missing_file_and_names_the_nearest(tmp_path: Path) -> None:
    assert f"the file {tmp_path}/nothing.txt doesn't exist; check the path" in _refusal(tmp_path / "nothing.txt")
    (tmp_path / "persuasion.txt").write_text(PROSE, encoding="utf-8")
    assert f"did you mean {tmp_path}/persuasion.txt?" in _refusal(tmp_path / "persuason.txt")
    assert "doesn't exist; check the path" in _refusal(tmp_path / "no" / "folder" / "rows.parquet")


def test_refuses_a_folder(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder; name a .txt, .jsonl or .parquet file in it" in _refusal(tmp_path)


def test_refuses_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    path.write_bytes(b"%PDF-1.7")
    message = _refusal(path)
    assert f"{path} is not a .txt, .jsonl or .parquet file" in message
    assert "convert it" in message


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("smaple", ["no data set 'smaple'", "did you mean sample?"]),
        ("wikitext", ["no data set 'wikitext'", "name sample", "org/name on a hub"]),
        ("../missing", ["no data set '../missing'", "name sample"]),
        ("", ["empty or broken: ''", "name sample"]),
        ("a\0b.txt", ["empty or broken: 'a\\x00b.txt'"]),
        ("never mind how long " * 50, ["can't look at the data set 'never mind", "too long", "name sample"]),
        ("~no-such-user-here/x.txt", ["can't look at the data set '~no-such-user-here/x.txt'", "name sample"]),
    ],
)
def test_refuses_an_unknown_name(spec: str, parts: list[str]) -> None:
    message = _refusal(spec)
    assert [part for part in parts if part not in message] == []


def test_refuses_a_table_without_the_column(tmp_path: Path) -> None:
    parquet = _write_parquet(tmp_path / "rows.parquet", content=["a"], id=[1])
    assert f"{parquet} has no column 'text', only 'content', 'id'; rename" in _refusal(parquet)
    jsonl = tmp_path / "rows.jsonl"
    jsonl.write_text('{"text": "a"}\n{"body": "b"}\n')
    assert f"line 2 of {jsonl} has no column 'text', only 'body'; rename" in _refusal(jsonl)


def test_refuses_a_column_of_something_else(tmp_path: Path) -> None:
    parquet = _write_parquet(tmp_path / "rows.parquet", text=[1, 2])
    assert f"the column 'text' in row 0 of {parquet} holds int, not text" in _refusal(parquet)
    jsonl = tmp_path / "rows.jsonl"
    jsonl.write_text('{"text": ["a", "b"]}\n')
    assert f"the column 'text' in line 1 of {jsonl} holds list, not text" in _refusal(jsonl)


@pytest.mark.parametrize("line", ["{", "It is a truth", "[" * 100_000])
def test_refuses_lines_that_are_not_json(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n')
    assert f"line 2 of {path} is not JSON; write one object a line" in _refusal(path)


def test_refuses_json_that_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('"a"\n')
    assert f"line 1 of {path} is not a JSON object; write one object a line" in _refusal(path)


def test_refuses_broken_files(tmp_path: Path) -> None:
    whole = _write_parquet(tmp_path / "whole.parquet", text=[PROSE] * 50).read_bytes()
    for name, content in {
        "cut.parquet": whole[:-20],
        "empty.parquet": b"",
        "cut.txt.gz": gzip.compress(PROSE.encode())[:-12],
        "no.txt.gz": PROSE.encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        message = _refusal(tmp_path / name)
        assert f"can't read {tmp_path / name}: " in message
        assert "; check" in message


def test_an_unreachable_hub_is_one_line(tmp_path: Path) -> None:
    code = (
        "from tqcli.datasets import load_text\nfrom tqcli.errors import InputError\n"
        "try: load_text('org/no-such-set:en:train')\nexcept InputError as e: print(e)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "can't load the data set org/no-such-set:en:train: the hub can't be reached (no network, or offline mode); "
        "name a local .txt file, or sample\n"
    )
    assert done.stderr == ""


Loader = Callable[[Callable[[], Any]], list[tuple[Any, ...]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Puts an answer in the hub's place; returns the list of what will have been asked."""
    import datasets

    def answer(make: Callable[[], Any]) -> list[tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def load_dataset(name: str, config: str | None, *, split: str) -> Any:
            asked.append((name, config, split))
            return make()

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return answer


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("org/set", ("org/set", None, "test")),
        ("org/set:en", ("org/set", "en", "test")),
        ("org/set::train", ("org/set", None, "train")),
        ("org/set:en-v1.0:train[:10%]", ("org/set", "en-v1.0", "train[:10%]")),
    ],
)
def test_reads_a_hub_data_set(hub: Loader, spec: str, asked: tuple[str, str | None, str]) -> None:
    import datasets

    calls = hub(lambda: datasets.Dataset.from_dict({"text": [PROSE, "", "second"], "id": [1, 2, 3]}))
    assert load_text(spec) == Text(spec, (Document("org/set:0", PROSE), Document("org/set:2", "second")))
    assert calls == [asked]


def test_refuses_a_hub_data_set_without_the_column(hub: Loader) -> None:
    import datasets

    hub(lambda: datasets.Dataset.from_dict({"question": ["a"]}))
    assert "org/set has no column 'text', only 'question'; rename" in _refusal("org/set")


def test_says_in_one_line_why_a_hub_data_set_fails(hub: Loader) -> None:
    def fail() -> None:
        raise ValueError("Unknown split \"test\".\nShould be one of ['train'] (https://hub.invalid/datasets/org/set).")

    hub(fail)
    message = _refusal("org/set")
    assert "can't load the data set org/set: Unknown split \"test\". Should be one of ['train']" in message
    assert "https://" not in message
    assert "name a local .txt file, or sample" in message


_documents = st.lists(st.builds(Document, st.text(max_size=4), st.text(max_size=8)), min_size=1, max_size=4)


@given(_documents, _documents)
def test_texts_have_equal_hashes_only_if_names_and_contents_are_equal(a: list[Document], b: list[Document]) -> None:
    assert (Text("x", tuple(a)).sha256 == Text("y", tuple(b)).sha256) == (a == b)


@given(_documents, st.data())
def test_the_hash_changes_with_any_character(documents: list[Document], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(documents) - 1))
    field = data.draw(st.sampled_from(["name", "text"]))
    old = getattr(documents[index], field)
    at = data.draw(st.integers(0, len(old)))
    changed = list(documents)
    changed[index] = replace(documents[index], **{field: old[:at] + "#" + old[at:]})
    assert Text("x", tuple(changed)).sha256 != Text("x", tuple(documents)).sha256


def test_the_hash_does_not_move_text_between_neighbours() -> None:
    texts = [
        Text("x", (Document("a", "bc"),)),
        Text("x", (Document("ab", "c"),)),
        Text("x", (Document("a", "b"), Document("c", ""))),
        Text("x", (Document("a", "b"), Document("", "c"))),
        Text("x", (Document("", "c"), Document("a", "b"))),
    ]
    assert len({text.sha256 for text in texts}) == len(texts)
