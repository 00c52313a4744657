"""Messages to a forge, as stored in the outbox."""

from service.reports.schema.base import Document


class CommentPayload(Document):
    """The comment of a pull request, in Markdown."""

    pull: int
    body: str


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
