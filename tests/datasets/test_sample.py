from __future__ import annotations

import re
from importlib import resources

import pytest

from tqcli.datasets import Text, load_text


@pytest.fixture(scope="module")
def sample() -> Text:
    return load_text("sample")


@pytest.fixture(scope="module")
def sources() -> dict[str, list[str]]:
    """Rows of the table of sources, by document name."""
    page = (resources.files("tqcli.datasets") / "sample" / "SOURCES.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if ".txt |" in line]
    return {row[0].removesuffix(".txt"): row[1:] for row in rows}


def test_is_under_a_megabyte_and_holds_several_long_documents(sample: Text) -> None:
    assert 600_000 < sample.n_bytes < 1_000_000
    assert 6 <= len(sample.documents) <= 10
    assert min(len(document.text) for document in sample.documents) > 30_000


def test_every_document_has_its_source(sample: Text, sources: dict[str, list[str]]) -> None:
    assert [document.name for document in sample.documents] == sorted(sources)


def test_holds_fiction_and_non_fiction_in_like_amounts(sample: Text, sources: dict[str, list[str]]) -> None:
    sizes = {"fiction": 0, "non-fiction": 0}
    for document in sample.documents:
        sizes[sources[document.name][1]] += len(document.text.encode())
    assert min(sizes.values()) > 0.3 * sample.n_bytes


def test_every_author_died_long_ago(sources: dict[str, list[str]]) -> None:
    for work, _, author, published, _ in sources.values():
        died = re.search(r"-(\d{4})\)", author)
        assert died is not None, work
        assert int(died[1]) < 1900
        assert int(published[:4]) < 1900


def test_is_clean_prose(sample: Text) -> None:
    for document in sample.documents:
        assert set(re.findall(r"[^\x20-\x7e\n]", document.text)) <= {"—"}, document.name
        assert document.text.endswith("\n")
        assert not re.search(r"  |[ \t]\n|\n{3}|^ ", document.text, flags=re.MULTILINE), document.name
        assert not re.search(r"gutenberg|all rights reserved|https?:|<[a-z]+>", document.text, re.IGNORECASE)
        # Paragraphs are one line each but for a hymn.
        assert len(re.findall(r"[^\n]\n[^\n]", document.text)) <= 15, document.name


def test_is_the_same_everywhere(sample: Text) -> None:
    """Figures in the documentation are for this text: a change of it needs new ones."""
    assert sample.sha256 == "6dd139315559b65a0a405aabf4d5252d377ed78aff1d5dac6a55c524636275f3"
