"""Shared by all documents: their base class, times, finite numbers, pages and enumerations."""

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import core_schema

from service.domain import states

Item = TypeVar("Item")


def moment(seconds: float) -> datetime:
    """Convert seconds since the epoch to a UTC time; what no calendar can hold becomes the epoch."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _moment(value: Any) -> Any:
    return moment(value) if isinstance(value, int | float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
Number = float | None  # pydantic writes what is not finite as null


class Document(BaseModel):
    """Base of all documents; it can be validated from any object with the same attributes.

    A client keeps fields that only a newer server knows; the OpenAPI names those of its server.
    """

    model_config = ConfigDict(from_attributes=True, validate_by_name=True, extra="allow", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        handler.resolve_ref_schema(found).pop("additionalProperties", None)
        return found


class Problem(BaseModel):
    """An error, and how to fix it (RFC 9457)."""

    type: str = Field(
        description="Path of this server's page about the kind of problem; it never changes.",
        examples=["/problems/not-found"],
        json_schema_extra={"format": "uri-reference"},
    )
    title: str = Field(examples=["Not Found"])
    status: int
    detail: str = Field(description="What is wrong, and how to fix it.")
    instance: str | None = Field(None, description="The path of the request.")


class Page(BaseModel, Generic[Item]):
    """Part of a list; `next` is the cursor of the following page, null on the last."""

    items: list[Item]
    next: str | None = None


# Readers of the OpenAPI that know no `prefixItems` look for `items`.
_Lines = Annotated[tuple[int, int], Field(json_schema_extra={"items": {"type": "integer"}})]


class SourceItem(Document):
    """A definition in the files of the head.  `line` is that of the `def`, `first_line` that of its decorators."""

    file: str = Field(description="Relative to the top of the checkout.", examples=["norms/rms.py"])
    line: int
    first_line: int = Field(validation_alias="first")
    last_line: int = Field(validation_alias="last")
    changed: _Lines | None = Field(description="The first range of lines in it that the head changed.")


class _Open:
    """A client reads values that only a newer server knows, as text; the OpenAPI names those of its server."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        as_it_is = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(
            _known_or_text, handler(get_args(source)[0]), serialization=as_it_is
        )


def _known_or_text(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
    try:
        return known(value)
    except ValidationError:
        if isinstance(value, str):
            return value
        raise


_OPEN = _Open()
ActorKind: TypeAlias = Annotated[states.ActorKind | str, _OPEN]
BaselineKind: TypeAlias = Annotated[states.BaselineKind | str, _OPEN]
Better: TypeAlias = Annotated[states.Better | str, _OPEN]
CellState: TypeAlias = Annotated[states.CellState | str, _OPEN]
ComparisonMethod: TypeAlias = Annotated[states.ComparisonMethod | str, _OPEN]
Direction: TypeAlias = Annotated[states.Direction | str, _OPEN]
CodeKnown: TypeAlias = Annotated[Literal["same", "changed", "unknown"] | str, _OPEN]
Ending: TypeAlias = Annotated[states.Ending | str, _OPEN]
Equal: TypeAlias = Annotated[states.Equal | str, _OPEN]
FactsState: TypeAlias = Annotated[states.FactsState | str, _OPEN]
ForgeKind: TypeAlias = Annotated[states.ForgeKind | str, _OPEN]
FoundBy: TypeAlias = Annotated[states.FoundBy | str, _OPEN]
GateAction: TypeAlias = Annotated[states.GateAction | str, _OPEN]
GateKind: TypeAlias = Annotated[states.GateKind | str, _OPEN]
GateState: TypeAlias = Annotated[states.GateState | str, _OPEN]
Missing: TypeAlias = Annotated[states.Missing | str, _OPEN]
MovedBy: TypeAlias = Annotated[states.MovedBy | str, _OPEN]
Outcome: TypeAlias = Annotated[states.Outcome | str, _OPEN]
PointState: TypeAlias = Annotated[states.PointState | str, _OPEN]
Purpose: TypeAlias = Annotated[states.Purpose | str, _OPEN]
RegressionState: TypeAlias = Annotated[states.RegressionState | str, _OPEN]
Repeatability: TypeAlias = Annotated[states.Repeatability | str, _OPEN]
RunState: TypeAlias = Annotated[states.RunState | str, _OPEN]
SearchState: TypeAlias = Annotated[states.SearchState | str, _OPEN]
TargetKind: TypeAlias = Annotated[states.TargetKind | str, _OPEN]
