import json

import pytest
from fakeprefix.errors import TraceError
from fakeprefix.trace.import_summary import ImportSummary
from fakeprefix.trace.importing import MAX_REASONS, Problems


def test_a_summary_survives_its_file():
    summary = ImportSummary("openai-chat", 7, 3, {"t": 2}, 1, ("line 1: no", "line 2: no"))
    assert ImportSummary.from_dict(json.loads(json.dumps(summary.as_dict()))) == summary


def test_skipped_records_are_counted_by_task_and_the_first_reasons_kept():
    problems = Problems(skip=True)
    for number in range(MAX_REASONS + 5):
        problems(TraceError(f"record {number}"), "a" if number % 2 else None)
    summary = problems.summary("steps", 4)
    assert (summary.format, summary.steps, summary.skipped) == ("steps", 4, MAX_REASONS + 5)
    assert summary.skipped_by_task == {"a": 12}
    assert summary.skipped_of_no_task == 13
    assert summary.reasons == tuple(f"record {number}" for number in range(MAX_REASONS))
    # a record of no task may belong to any
    assert (summary.skipped_of("a"), summary.skipped_of("b")) == (25, 13)


@pytest.mark.parametrize("content", [{"format": "steps", "steps": 1}, {"reasons": [], "colour": "red"}])
def test_a_summary_of_another_version_is_refused(content):
    with pytest.raises(TraceError, match="another version"):
        ImportSummary.from_dict(content)
