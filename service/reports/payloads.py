"""Messages to a forge, as stored in the outbox."""

from enum import StrEnum

from pydantic import BaseModel, Field


class CommentPayload(BaseModel):
    """A comment on a pull request, in Markdown: the report, or the answer to a command."""

    pull: int
    body: str
    to_stranger: bool = Field(default=False, description="An answer to a person who may not command anything.")


class ReactionPayload(BaseModel):
    """A reaction to a comment of a person, in GitHub's words: eyes, +1 or confused."""

    pull: int = 0  # missing in messages of an earlier version, which GitHub does not need
    comment: int
    content: str


class CheckAction(BaseModel):
    """A button of a completed check; GitHub allows three of them, and these lengths."""

    label: str = Field(max_length=20)
    description: str = Field(max_length=40)
    identifier: str = Field(max_length=20)


class AnnotationLevel(StrEnum):
    """How grave an annotation is, in GitHub's words."""

    NOTICE = "notice"
    WARNING = "warning"
    FAILURE = "failure"


class CheckAnnotation(BaseModel):
    """A remark at lines of a file of the commit, as plain text."""

    path: str
    start_line: int
    end_line: int
    annotation_level: AnnotationLevel
    title: str = Field(max_length=255)
    message: str = Field(max_length=16_000)  # GitHub takes 64 KB


class CheckPayload(BaseModel):
    """A check run of a commit, or its status, in GitHub's words.

    Several targets may watch one repository, so the name contains the target.
    """

    name: str
    sha: str
    status: str
    conclusion: str | None
    commit_status: str = "pending"  # missing in messages of an earlier version
    title: str
    summary: str
    url: str | None
    actions: list[CheckAction] = Field(default_factory=list, max_length=3)
    annotations: list[CheckAnnotation] = Field(default_factory=list)
