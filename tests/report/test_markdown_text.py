"""Names in Markdown stay names, read by a parser of it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tqcli.report.markdown_text import code, details, plain, table

names = st.text(st.sampled_from("ab1 `|\\*_[]()<>&#@!~\n"), min_size=1).filter(lambda text: text.strip() != "")


def read(markdown: str) -> list[str]:
    """The text of each inline part; fails where there is other markup than of tables and code."""
    found = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown):
        if token.type == "inline":
            assert {child.type for child in token.children or []} <= {"text", "text_special", "code_inline"}
            found.append("".join(child.content for child in token.children or []))
    return found


@given(names)
@example("<script>alert(1)</script> @team #12 [a](b) ![c](d) **x** ~~y~~ _z_")
def test_plain_text_shows_as_it_is(name: str) -> None:
    assert read(f"word {plain(name)}") == [f"word {' '.join(name.split())}"]


@given(st.text(st.sampled_from("ab1 `|*_[]()<>&#@!~\n"), min_size=1).filter(lambda text: text.strip() != ""))
def test_a_row_has_its_cells_whatever_they_hold(name: str) -> None:
    lines = table(("one", "two", "three"), [(code(name), plain(name), "3")], right=[2])
    shown = " ".join(name.split())
    assert read("\n".join(lines)) == ["one", "two", "three", shown, shown, "3"]


def test_names_of_metrics_and_codecs_need_no_escapes() -> None:
    assert plain("kl_mean of affine@4,center=rope -0.5 (a: b)") == "kl_mean of affine@4,center=rope -0.5 (a: b)"
    assert details("<a>", ["x"]) == ["<details>", "<summary>&#60;a&#62;</summary>", "", "x", "", "</details>"]
