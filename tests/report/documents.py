"""Reads an HTML document into a tree and says what is wrong with its structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}


@dataclass
class Node:
    """An element with what is in it, in order."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def all(self, *tags: str) -> Iterator[Node]:
        """Every element below with one of these tags, in the order of the document."""
        for child in self.children:
            if isinstance(child, Node):
                if child.tag in tags:
                    yield child
                yield from child.all(*tags)

    def one(self, tag: str) -> Node:
        """The only element of this tag."""
        (found,) = self.all(tag)
        return found

    @property
    def text(self) -> str:
        """All text below, white space as one space."""
        return " ".join("".join(c if isinstance(c, str) else c.text + " " for c in self.children).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("document")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in _VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(text: str) -> Node:
    """The document; every element has to be closed where it should."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def complaints(text: str) -> list[str]:
    """What is wrong: tables and pictures that a screen reader can't tell, and anything that would load or run."""
    document = parse(text)
    found = []
    for table in document.all("table"):
        if [c.tag for c in table.children if isinstance(c, Node)][:1] != ["caption"] or not table.one("caption").text:
            found.append("a table without a caption")
        found += [f"th without scope: {th.text}" for th in table.all("th") if not th.attributes.get("scope")]
        rows = [[c for c in row.children if isinstance(c, Node)] for row in table.all("tr")]
        found += [f"a row of {len(row)} of {len(rows[0])} cells" for row in rows if len(row) != len(rows[0])]
        found += ["a row without a header" for row in rows if row[0].tag != "th"]
    for svg in document.all("svg"):
        inside = [c.tag for c in svg.children if isinstance(c, Node)]
        if svg.attributes.get("role") != "img" or inside[:2] != ["title", "desc"]:
            found.append("a picture without role, title and description")
        if any("nan" in (path.attributes.get("d") or "") for path in svg.all("path")):
            found.append("a path through nowhere")
    ids = [node.attributes["id"] for node in _every(document) if "id" in node.attributes]
    found += [f"id {name} twice" for name in ids if ids.count(name) > 1]
    for node in _every(document):
        names = (node.attributes.get("aria-labelledby") or "").split()
        found += [f"{node.tag} is named by {name}, which isn't there" for name in names if name not in ids]
        if node.tag in ("script", "img", "link", "iframe", "object", "embed", "base", "a", "form"):
            found.append(f"<{node.tag}>")
        found += [f"{name} of {node.tag}" for name in node.attributes if name in ("src", "href") or name[:2] == "on"]
    style = "".join(node.text for node in document.all("style"))
    found += [f"{word} in the style" for word in ("url(", "@import", "@font-face") if word in style]
    return found


def _every(node: Node) -> Iterator[Node]:
    for child in node.children:
        if isinstance(child, Node):
            yield child
            yield from _every(child)
