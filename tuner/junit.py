"""A check as a JUnit report: what CI systems read. Stages are test cases of one suite."""

from __future__ import annotations

from xml.etree import ElementTree

from tuner.check import STAGES, Checked


def junit_text(checked: Checked) -> str:
    """The report as XML. A stage that fails is a failure, one that a later reader must not take for a pass is skipped,
    and a verdict that is not certain is an error of the suite's last case, `verdict`."""
    suite = ElementTree.Element("testsuite", name=f"sage_tune check {checked.profile.name}")
    found = {finding.check: finding for finding in checked.findings}
    for stage in STAGES:
        case = ElementTree.SubElement(suite, "testcase", classname="sage_tune.check", name=stage)
        finding = found.get(stage)
        if finding is None or finding.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=_legal(finding.text if finding else "decided before"))
        elif finding.status == "fail":
            ElementTree.SubElement(case, "failure", message=_legal(finding.text))
        else:
            ElementTree.SubElement(case, "system-out").text = _legal(finding.text)
    case = ElementTree.SubElement(suite, "testcase", classname="sage_tune.check", name="verdict")
    if checked.verdict == "inconclusive":
        ElementTree.SubElement(case, "error", message=_legal(f"inconclusive: {checked.reason}"))
    elif checked.verdict != "pass":
        ElementTree.SubElement(case, "failure", message=_legal(f"{checked.verdict}: {checked.reason}"))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _legal(text: str) -> str:
    """Without the control characters that XML has no way to write."""
    return "".join(c for c in text if c in "\t\n" or c >= " ")
