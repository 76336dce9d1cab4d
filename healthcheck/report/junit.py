"""The report as JUnit XML, which every CI system can show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from healthcheck.checks.registry import group
from healthcheck.report.model import CheckResult, Report
from healthcheck.result import Status

# XML 1.0 has no form for these, and children print anything.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """One test case for each check. What --require turns into a failure is one here too."""
    cases = [_case(result, result.code in report.required) for result in report.results]
    cases += [_never_ran(code) for code in sorted(set(report.required) - {r.code for r in report.results})]
    suite = ElementTree.Element(
        "testsuite",
        name=f"dyno {report.command}",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        errors="0",
        time=f"{report.seconds:.3f}",
        timestamp=report.created.isoformat(timespec="seconds"),
    )
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(result: CheckResult, required: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"dyno.{group(result.code)}",
        name=_clean(f"{result.code} {result.title}"),
        time=f"{result.seconds or 0:.3f}",
    )
    text = _clean("\n".join(filter(None, (result.summary, result.remedy))))
    if result.status is Status.FAIL or (required and result.status is not Status.PASS):
        kind = "unusable" if result.unusable else result.status.value
        failure = ElementTree.SubElement(case, "failure", message=_clean(result.summary), type=kind)
        failure.text = text
    elif result.status is Status.SKIP:
        ElementTree.SubElement(case, "skipped", message=_clean(result.summary))
    else:
        ElementTree.SubElement(case, "system-out").text = f"{result.status.value}: {text}"
    return case


def _never_ran(code: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="dyno.required", name=_clean(code), time="0")
    ElementTree.SubElement(case, "failure", message="required, but no check of that code ran", type="fail")
    return case


def _clean(text: str) -> str:
    return _ILLEGAL.sub("?", text)
