"""Warning codes of reports: the meaning of each, grouped by their effect on the status of the report.

Every code that a reader emits is defined here; mypy checks the readers. `docs/report_warnings.md` has the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Literal, cast

WarningCode = Literal[
    "unknown_format", "html_document", "dtd_forbidden", "unparseable", "failsafe_summary", "not_junit_root", "x_not_a_file",
    "x_unreadable", "empty_file", "truncated", "malformed", "trailing_content", "nesting_too_deep", "gzip_corrupt",
    "bad_json_line", "bep_incomplete", "reportlog_incomplete", "x_too_many_rows", "x_too_many_attributes", "x_line_too_long",
    "x_expansion_limit", "x_session_failed", "x_build_failed", "invalid_encoding", "encoding_mismatch", "encoding_unknown",
    "invalid_char", "name_escaped", "xml_1_1", "leading_whitespace", "output_truncated", "duration_missing",
    "duration_invalid", "duration_ambiguous",
    "missing_name", "missing_classname", "duplicate_identity", "multiple_outcomes", "merged_teardown_error",
    "status_attribute_only", "suite_error", "count_mismatch", "no_test_cases", "attempts_across_files", "test_xml_missing",
    "bep_overrides_xml", "bep_xml_disagree", "target_failed_to_build", "target_aborted", "target_missing_result",
    "x_unknown_outcome", "x_worker_unfinished",
]  # fmt: skip

REJECTED: dict[WarningCode, str] = {  # the input is not a report, and there are no rows
    "unknown_format": "The content is not JUnit XML, Bazel's build events, pytest-reportlog or the runner's event lines.",
    "html_document": "The content is an HTML page, often the error page of a server.",
    "dtd_forbidden": "The XML has a document type declaration; these are refused because they can define entities.",
    "unparseable": "The XML is damaged or ends before the start tag of the root is complete.",
    "failsafe_summary": "The XML is a Maven Failsafe summary, which repeats reports that lie beside it.",
    "not_junit_root": "The root of the XML is neither `testsuites` nor `testsuite`.",
    "x_not_a_file": "The path is not a regular file, for example a pipe or a broken link.",
    "x_unreadable": "The file could not be read; the reason that the system gives follows in brackets.",
}

EMPTY: dict[WarningCode, str] = {  # the report has no content, and there are no rows
    "empty_file": "The file has no bytes, or nothing but whitespace.",
}

SALVAGED: dict[WarningCode, str] = {  # the report is damaged or cut, and rows may be missing
    "truncated": "The report ends early; test cases that were complete before the end are kept.",
    "malformed": "The XML is not well-formed at some place; test cases before that place are kept.",
    "trailing_content": "Something other than comments follows the end of the XML document; it is not read.",
    "nesting_too_deep": "Too many elements are open at once (101); test cases before that place are kept.",
    "gzip_corrupt": "The gzip stream is damaged or cut; what it holds before the damage is kept.",
    "bad_json_line": "A line is not a JSON object; it is skipped.",
    "bep_incomplete": "Bazel's last event is missing; targets may be missing, too.",
    "reportlog_incomplete": "pytest's `SessionFinish` is missing; tests may be missing, too.",
    "x_too_many_rows": "The report has more rows than the limit (10 million); the rest is not read.",
    "x_too_many_attributes": "An XML element has more than 10,000 attributes; test cases before it are kept.",
    "x_line_too_long": "A JSON line exceeds the limit (16 Mi characters) even with its long texts cut; it is skipped.",
    "x_session_failed": "pytest's exit status is not 0, and no test explains it: it was stopped, or failed elsewhere.",
    "x_build_failed": "Bazel's exit code is not 0, and no test explains it, or targets could not be loaded or analysed.",
    "x_expansion_limit": "gzip expands beyond the limit (400 times, above 64 MiB); the rest is not read.",
}

NOTED: dict[WarningCode, str] = {  # the report was read to its end; the rows may differ from the text of the report
    "invalid_encoding": "Some bytes are invalid in the file's encoding; each is read as U+FFFD.",
    "encoding_mismatch": "The XML declares UTF-16 or UTF-32, but its bytes are not; it is read as UTF-8.",
    "encoding_unknown": "The XML declares an encoding that is not supported; it is read as UTF-8.",
    "invalid_char": "Characters that XML forbids are escaped in names and replaced with U+FFFD elsewhere.",
    "name_escaped": r"A class name, name or file has control characters, or `\u{`; they are escaped as `\u{H}`.",
    "xml_1_1": "The XML declares version 1.1; it is read by the rules of 1.0.",
    "leading_whitespace": "Whitespace before the XML declaration is skipped.",
    "output_truncated": "A text or attribute is longer than the limit (256 Ki characters) and is cut.",
    "duration_missing": "A test has no duration.",
    "duration_invalid": "A duration is not a number, negative or not finite, and is left out.",
    "duration_ambiguous": "The comma of a duration such as `1,234` may separate decimals or thousands; it is read as 1.234.",
    "missing_name": "A test has no name and is called `(unnamed)`.",
    "missing_classname": "A test has no class name; that of its suite is used, for pytest-reportlog `pytest`.",
    "duplicate_identity": "Two test cases have the same class name, name and file; `#2`, `#3`, … tell them apart.",
    "multiple_outcomes": "A test case has several different outcomes; the worst counts.",
    "merged_teardown_error": "An error in teardown that was written as a separate test case is merged into its test.",
    "status_attribute_only": "A failure is known from a `status` or `result` attribute alone.",
    "suite_error": "A suite failed itself, or counts failures that none of its test cases has; its row is called `(suite)`.",
    "count_mismatch": "A suite has fewer test cases than its `tests` attribute declares.",
    "no_test_cases": "The report has no rows.",
    "attempts_across_files": "A test is in several files of the job; each is an attempt.",
    "test_xml_missing": "A Bazel attempt has no `test.xml`, or it is not there; its status alone is known.",
    "bep_overrides_xml": "Bazel's status is worse than all rows of the `test.xml`; a row for the target shows it.",
    "bep_xml_disagree": "Bazel says that a target passed, but its `test.xml` has failures, which are kept.",
    "target_failed_to_build": "A test target failed to build.",
    "target_aborted": "Bazel aborted a test target before it ran.",
    "target_missing_result": "A test target was configured, but Bazel reports no result.",
    "x_unknown_outcome": "An attempt of the runner has an outcome that is not known and is read as `error`.",
    "x_worker_unfinished": "The runner's `worker_finished` event is missing.",
}

_DOUBTFUL: frozenset[WarningCode] = frozenset({"no_test_cases", "suite_error", "count_mismatch"})

MEANINGS = REJECTED | EMPTY | SALVAGED | NOTED


def salvages(warnings: Set[WarningCode]) -> bool:
    """True if rows may be missing from a report with these warnings."""
    return not SALVAGED.keys().isdisjoint(warnings)


def doubts(warnings: Iterable[str]) -> list[str]:
    """The sentences for a report that was read to its end and has no tests, or claims more than it shows."""
    return [NOTED[code] for code in sorted(_DOUBTFUL.intersection(warnings))]


def unreadable(error: OSError) -> WarningCode:
    """The code for a file that cannot be read, with the system's reason in brackets."""
    return cast(WarningCode, f"x_unreadable ({error.strerror})")


def meaning(code: str) -> str:
    """The sentence for a code; empty for an unknown one."""
    return MEANINGS.get(cast(WarningCode, code.partition(" ")[0]), "")
