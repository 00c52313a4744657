"""What people and programs send to change something."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from service.reports.schema.base import Flag, Instant, Whole

_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"  # databases refuse the first, and names with the others cannot be read
_NOT_BLANK = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s][^\x00-\x1f\x7f]*$"
_NO_NULL = r"^[^\x00]*$"

Word = Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_CONTROLS)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=_NO_CONTROLS)]
Line = Annotated[str, Field(max_length=2000, pattern=_NO_CONTROLS)]
Person = Annotated[str, Field(min_length=1, max_length=80, pattern=_NOT_BLANK)]
Sentence = Annotated[str, Field(min_length=1, max_length=2000, pattern=_NOT_BLANK)]
Text = Annotated[str, Field(max_length=1 << 20, pattern=_NO_NULL)]
# pydantic describes the pattern of names by `patternProperties`, which allows other names with any value.
Adapters = Annotated[
    dict[Word, Text],
    Field(max_length=50),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"minLength": 1, "maxLength": 200, "pattern": _NO_CONTROLS},
            "additionalProperties": {"type": "string", "maxLength": 1 << 20, "pattern": _NO_NULL},
            "maxProperties": 50,
        }
    ),
]

_ADAPTERS = "The adapters that the recipe names: file name to source."
_BRANCH = "The mainline; by default the remote's default branch."
# Checked where targets are stored, with a message of its own.
_TARGET_NAME: JsonDict = {"pattern": r"^[a-z0-9](?:[a-z0-9_.]|-(?!-)){0,79}(?<!-)$"}
# A path with at least two parts; before it `github:`, `gitlab:`, or the address of the forge.
_REPOSITORY = r"(?:(?:github|gitlab):|https?://[^\s/]+/)?[A-Za-z0-9_.-]{1,100}(?:/[A-Za-z0-9_.-]{1,100}){1,20}/?"
_FORGE = "Its repository on a forge, for webhooks and comments: `owner/name` on GitHub, `group/project` on GitLab."
_TRUSTED = "Its mainline may run without a sandbox, if that is allowed."
_PRIVATE = "Only those who were granted it know of it."


class RequestDocument(BaseModel):
    """Base of all requests: a field that does not exist is a typing mistake."""

    model_config = ConfigDict(extra="forbid")


class TargetRequest(RequestDocument):
    """A repository or a package to be watched."""

    name: Name = Field(examples=["norms"], json_schema_extra=_TARGET_NAME)
    location: Line = Field(description="URL or folder of a repository; index URL or folder of wheels.", min_length=1)
    package: Word | None = Field(None, description="Watch the releases of this package instead of commits.")
    branch: Word | None = Field(None, description=_BRANCH)
    forge: Word | None = Field(None, description=_FORGE, json_schema_extra={"pattern": f"^{_REPOSITORY}$"})
    trusted: Flag = Field(False, description=_TRUSTED)
    private: Flag | None = Field(None, description=f"{_PRIVATE} By default not, and a known target stays as it is.")
    recipe: Text | None = Field(
        None, description="The text of the recipe (TOML); by default kernelwatch.toml of the mainline."
    )
    adapters: Adapters = Field({}, description=_ADAPTERS)
    backfill: Whole = Field(1, ge=0, le=1000, description="Number of mainline revisions to measure now.")


class TargetChange(RequestDocument):
    """What changes about a target; what is left out, or null, stays."""

    name: Name | None = Field(
        None, description="A new name.  Addresses with the old one stop working.", json_schema_extra=_TARGET_NAME
    )
    location: Line | None = Field(
        None, description="The new location; it must have the newest known revision.", min_length=1
    )
    branch: Line | None = Field(None, description=f"{_BRANCH} Empty for that one.")
    forge: Line | None = Field(
        None, description=f"{_FORGE} Empty for none.", json_schema_extra={"pattern": f"^(?:{_REPOSITORY})?$"}
    )
    trusted: Flag | None = Field(None, description=_TRUSTED)
    private: Flag | None = Field(None, description=_PRIVATE)
    allow_unsandboxed: Flag | None = Field(
        None, description="Allow it to run on workers without a sandbox; it must be trusted."
    )
    recipe: Text | None = Field(None, description="The text of a new recipe; earlier runs keep the old one.")
    adapters: Adapters = Field({}, description=_ADAPTERS)
    recipe_from_branch: Flag = Field(False, description="Use kernelwatch.toml of the mainline as the recipe.")


class RecipeRequest(RequestDocument):
    """A recipe to be checked."""

    recipe: Text = Field(description="The text of the recipe (TOML).")
    adapters: Adapters = Field({}, description=_ADAPTERS)


class RunRequest(RequestDocument):
    """A revision to be measured."""

    target: Name
    revision: Word = Field(description="A commit, branch, tag or release.")
    device: Name | None = Field(None, description="Only this device; by default all of the recipe's.")
    suite: Name | None = Field(None, description="Another suite than the recipe's for the device.")
    again: Flag = Field(False, description="Measure again even if it was measured already.")


class BackfillRequest(RequestDocument):
    """Mainline revisions to be measured at low priority."""

    base: Word = Field(description="The revision before the first that is measured.")
    head: Word = Field(description="The last revision that is measured.")
    sample: Whole | None = Field(
        None, ge=1, le=1000, description="Measure only so many of them, each against the one before it in the sample."
    )


class ReasonRequest(RequestDocument):
    """Why somebody does it."""

    reason: Sentence = Field(description="Shown in the history.")


class AcknowledgeRequest(ReasonRequest):
    """Why a regression is accepted, and until when."""

    until: Instant | None = Field(None, description="It is reopened then; by default never.")


class ReopenRequest(RequestDocument):
    """Why a regression is reopened."""

    reason: Line | None = None


class AssignRequest(RequestDocument):
    """Who fixes it."""

    assignee: Person | None = Field(description="A person; null for nobody.")


class NoteRequest(RequestDocument):
    """A note for the history."""

    text: Sentence


class DueRequest(RequestDocument):
    """By when it must be fixed."""

    due_at: Instant | None = Field(description="null for no day.")


class BisectionRequest(RequestDocument):
    """A search for the revision that made cases slower."""

    target: Name
    good: Word = Field(description="The older, fast end: a commit, tag or release.")
    bad: Word = Field(description="The newer, slow end.")
    device: Name | None = Field(None, description="Required if the recipe has several.")
    cases: list[Word] = Field([], description="Patterns; by default the cases known to be slower.", max_length=200)
    suite: Name | None = Field(None, description="Another suite than the recipe's for the device.")
    max_runs: Whole | None = Field(None, ge=3, le=200, description="By default the policy's.")


class CalibrationRequest(RequestDocument):
    """A comparison of equal code."""

    device: Name
    revision: Word | None = Field(
        None, description="A mainline revision (a sha or its beginning, or a version); by default the newest that fits."
    )
    suite: Name | None = Field(None, description="By default the recipe's for the device.")
    worker: Word | None = Field(None, description="Only this worker takes it.")


class QuarantineRequest(RequestDocument):
    """A case that is measured and shown, and no longer reported, or reported again."""

    case: Word = Field(examples=["rmsnorm.fwd.4096x1024.bf16"])
    device: Name
    provider: Name | None = Field(None, description="By default all that were measured.")
    reason: Sentence


class ReplayRequest(RequestDocument):
    """A policy to be applied to stored runs."""

    policy: Text = Field(description="TOML with the keys of a recipe's [policy], or a recipe.")
    device: Name | None = Field(None, description="Only runs on this device.")
    since: Instant | None = Field(None, description="Only runs that ended after this time.")
