"""JUnit XML as its readers take it."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from hypothesis import given
from hypothesis import strategies as st
from made_runs import failure, judged, run

from tqcli.report.junit import junit_xml
from tqcli.report.run import RunResult

COUNTS = {"tests", "failures", "errors", "skipped", "time"}
# Element: attributes it must have, those it may have, what may be in it. As in junit-10.xsd, which Jenkins keeps to.
STRUCTURE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"name"}, COUNTS, {"testsuite"}),
    "testsuite": ({"name", *COUNTS}, set(), {"properties", "testcase"}),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name", "classname", "time"}, set(), {"failure", "error", "skipped", "system-out"}),
    "failure": ({"type", "message"}, set(), set()),
    "error": ({"type", "message"}, set(), set()),
    "skipped": ({"message"}, set(), set()),
    "system-out": (set(), set(), set()),
}
OUTCOMES = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def suite_of(of: RunResult) -> Xml.Element:
    """The one suite, after the structure of all was checked."""
    root = Xml.fromstring(junit_xml(of).encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        must, may, inside = STRUCTURE[element.tag]
        assert must <= set(element.keys()) <= must | may, element.tag
        assert {child.tag for child in element} <= inside, element.tag
    (suite,) = root
    for case in suite.iter("testcase"):
        assert sum(child.tag in OUTCOMES for child in case) <= 1
    for element in (root, suite):
        assert element.get("tests") == str(len(suite.findall("testcase")))
        for tag, count in OUTCOMES.items():
            assert element.get(count) == str(len(suite.findall(f"testcase/{tag}")))
    return suite


def test_each_verdict_has_its_element() -> None:
    gates = [judged(), judged("inconclusive", reason="the bound lies inside"), judged("fail", value=0.3)]
    suite = suite_of(run(gates=gates, failures=[failure()]))
    passed, unclear, failed, step = suite.findall("testcase")
    assert passed.get("name") == "kl_mean of turboquant-mse@4, total, at most 0.02"
    assert passed.get("classname") == "made.perplexity"
    assert [child.tag for child in passed] == ["system-out"]
    skipped = unclear.find("skipped")
    assert skipped is not None
    assert "inconclusive: kl_mean of turboquant-mse@4" in skipped.attrib["message"]
    crossed, error = failed.find("failure"), step.find("error")
    assert crossed is not None and error is not None
    assert "0.3 (0.0016 to 0.0024) nats, at most 0.02" in crossed.attrib["message"]
    assert (step.get("name"), error.get("message")) == ("perplexity of qjl@4", "no memory")
    properties = {of.get("name"): of.get("value") for of in suite.iter("property")}
    assert properties["device"] == "cpu"


def test_a_run_without_gates_is_an_empty_suite() -> None:
    assert suite_of(run()).get("tests") == "0"


@given(st.text(), st.text())
def test_whatever_a_name_holds_the_document_is_read(name: str, reason: str) -> None:
    suite = suite_of(run(gates=[judged("fail", codec=name, reason=reason)], failures=[failure(reason, name)]))
    assert suite.get("tests") == "2"


def test_hostile_names_are_text() -> None:
    name = '\x00<a b="c">\'&amp;]]>\x1b\ud800'
    case = suite_of(run(gates=[judged(codec=name)])).find("testcase")
    assert case is not None
    assert case.attrib["name"].startswith('kl_mean of \ufffd<a b="c">\'&amp;]]>\ufffd\ufffd, total')
