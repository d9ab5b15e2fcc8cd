"""Gates as JUnit XML, which most CI services show.

JUnit knows passed, failed, in error and skipped. A gate that failed is a `failure`. An inconclusive one is `skipped`,
with a message: readers show that in a colour and a count of its own, and neither as passed nor as failed; the exit code
of `tq run`, 3, stops a job that wants certainty. A step of the run that failed is an `error`.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from tqcli.report.gates import bound_text, gate_text, subject
from tqcli.report.run import Failure, GateResult, RunResult

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, not even escaped."""


def junit_xml(run: RunResult) -> str:
    """A document with one suite: a test case for each gate, and one for each step that failed."""
    verdicts = [gate.verdict for gate in run.gates]
    counts = {
        "tests": str(len(run.gates) + len(run.failures)),
        "failures": str(verdicts.count("fail")),
        "errors": str(len(run.failures)),
        "skipped": str(verdicts.count("inconclusive")),
        "time": "0",
    }
    root = Xml.Element("testsuites", {"name": _text(f"tq {run.name}"), **counts})
    suite = Xml.SubElement(root, "testsuite", {"name": _text(f"gates of {run.name}"), **counts})
    properties = Xml.SubElement(suite, "properties")
    for name, value in run.environment.model_dump().items():
        Xml.SubElement(properties, "property", name=name, value=_text(str(value)))
    for gate in run.gates:
        _add_gate(suite, run, gate)
    for failure in run.failures:
        _add_failure(suite, run, failure)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _add_gate(suite: Xml.Element, run: RunResult, gate: GateResult) -> None:
    case = _case(suite, run, gate.measure or "gates", f"{subject(gate)}, {bound_text(gate)}")
    if gate.verdict == "fail":
        failure = Xml.SubElement(case, "failure", type="gate", message=_text(gate_text(gate)))
        failure.text = _text(gate_text(gate))
    elif gate.verdict == "inconclusive":
        Xml.SubElement(case, "skipped", message=_text(f"inconclusive: {gate_text(gate)}"))
    Xml.SubElement(case, "system-out").text = _text(f"{gate.verdict}  {gate_text(gate)}")


def _add_failure(suite: Xml.Element, run: RunResult, failure: Failure) -> None:
    name = failure.step if failure.codec is None else f"{failure.step} of {failure.codec}"
    error = Xml.SubElement(_case(suite, run, "steps", name), "error", type="step", message=_text(failure.error))
    error.text = _text(failure.error)


def _case(suite: Xml.Element, run: RunResult, group: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=_text(f"{run.name}.{group}"), name=_text(name), time="0")


def _text(text: str) -> str:
    """What XML can't hold is replaced; the rest is escaped on writing."""
    return _FORBIDDEN.sub("\ufffd", text)
