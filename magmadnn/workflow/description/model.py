"""The model of a workflow's file, from which its checks and its JSON Schema come."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100)]
Count = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Failure = Literal["stop", "skip", "retry"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModuleModel(_Strict):
    """A program of the user's: a function, an executable, or a function of a C or Fortran library."""

    name: Name = Field(description="unique among modules and groups")
    function: str | None = Field(
        default=None, description='"package.module:name" or "file.py:name"'
    )
    command: list[str] | None = Field(
        None, description='program and arguments: ["./a.out", "{copy}"]'
    )
    library: str | None = Field(
        default=None, description="shared library with a function in C or Fortran"
    )
    symbol: str = Field(default="run", description="name of that function")
    ranks: Count = Field(default=1, description="MPI ranks of each copy")
    copies: Count = Field(
        default=1, description="how many run, each on a sub-communicator of its own"
    )
    threads: Count = Field(default=1, description="threads of each rank")
    gpus: Annotated[int, Field(ge=0, le=64, strict=True)] = Field(
        0, description="GPUs of each rank"
    )
    args: list[str] = Field(
        default_factory=list, description="arguments: ctx.args, or after the command"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="variables of a command")
    directory: str | None = Field(
        None, description="of a command; its run's own folder if left out"
    )
    after: list[str] = Field(default_factory=list, description="modules or groups that end before")
    time_limit: Annotated[float, Field(gt=0)] | None = Field(default=None, description="seconds")
    on_failure: Failure = Field(default="stop", description="what a failure does to the workflow")
    retries: Count = Field(default=2, description='further attempts where on_failure is "retry"')
    puts: list[str] | None = Field(
        default=None, description="tags that it puts, patterns too; checked"
    )
    gets: list[str] | None = Field(
        default=None, description="tags that it gets, patterns too; checked"
    )
    seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="expected time, for plan"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> ModuleModel:
        kinds = [k for k in ("function", "command", "library") if getattr(self, k) is not None]
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none"
            raise ValueError(f"give one of function, command and library, got {got}")
        if self.command is not None and not self.command:
            raise ValueError("command must name a program, got an empty list")
        return self


class GroupModel(_Strict):
    """Modules that run together, once or again and again."""

    name: Name = Field(description="unique among modules and groups")
    modules: Annotated[list[str], Field(min_length=1)] = Field(description="names of modules")
    after: list[str] = Field(default_factory=list, description="modules or groups that end before")
    iterations: Count | None = Field(default=None, description="how often; with until the most")
    until: str | None = Field(
        default=None, description="tag; the group ends once that has been put"
    )


class TupleSpaceModel(_Strict):
    """The servers of the tuple space."""

    servers: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        default=1, description="ranks that serve"
    )
    copies: Annotated[int, Field(ge=1, le=8, strict=True)] = Field(
        default=1, description="of parts of dist_put"
    )
    memory: int | None = Field(
        default=None, ge=4096, description="most bytes of a server; None: no bound"
    )


class WorkflowModel(_Strict):
    """A workflow's file."""

    name: Name = Field(default="workflow", description="of the workflow")
    pin: bool = Field(
        default=True, description="whether ranks of modules are kept on cores of theirs"
    )
    modules: Annotated[list[ModuleModel], Field(min_length=1)]
    groups: list[GroupModel] = Field(default_factory=list)
    tuple_space: TupleSpaceModel = Field(default_factory=TupleSpaceModel)


def schema() -> dict[str, Any]:
    """JSON Schema of a workflow's file."""
    return WorkflowModel.model_json_schema()
