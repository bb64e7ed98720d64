"""What an import of a trace found, as ``trace/import.json`` holds it."""

from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from fakeprefix.errors import TraceError


@dataclass(frozen=True)
class ImportSummary:
    """What an import found.

    Attributes:
        format: of the trace's files, or the source of the steps if they come from no file.
        steps: how many there are, over all policies.
        skipped: records that could not be used.
        skipped_by_task: how many of each task.
        skipped_of_no_task: how many of which the task cannot be told.
        reasons: the first of the reasons.
    """

    format: str
    steps: int
    skipped: int
    skipped_by_task: dict[str, int]
    skipped_of_no_task: int
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The content of the file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: object) -> "ImportSummary":
        """From the content of the file.

        Raises:
            TraceError: it was written by another version.
        """
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            raise TraceError(f"trace/import.json: written by another version ({error.errors()[0]['msg']})") from None

    def skipped_of(self, task_id: str) -> int:
        """Skipped records that belong to a task, or may belong to it."""
        return self.skipped_by_task.get(task_id, 0) + self.skipped_of_no_task
