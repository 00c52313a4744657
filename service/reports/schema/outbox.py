"""Messages to a forge, as stored in the outbox."""

from pydantic import Field

from service.reports.schema.base import Document


class CommentPayload(Document):
    """A comment on a pull request, in Markdown: the report, or the answer to a command."""

    pull: int
    body: str


class ReactionPayload(Document):
    """A reaction to a comment of a person, in GitHub's words: eyes, +1 or confused."""

    pull: int = 0  # missing in messages of an earlier version, which GitHub does not need
    comment: int
    content: str


class CheckAction(Document):
    """A button of a completed check; GitHub allows three of them, and these lengths."""

    label: str = Field(max_length=20)
    description: str = Field(max_length=40)
    identifier: str = Field(max_length=20)


class CheckPayload(Document):
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
