"""The sections of an experiment file whose keys do not depend on a name in them, key by key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from efl.settings import MOST, Count, NonNegative, Positive, Probability

MOST_WORKERS, MOST_CLIENTS = 1024, 10**7
MOST_STEPS = 10**6  # of a client in a round; as many samples make a batch, at most
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Seconds = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class Section(BaseModel):
    """A section of the file; keys it does not know are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FederationSection(Section):
    """Whose data."""

    dataset: str = "digits"
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] = 50
    partition: str = "auto"
    data_dir: str | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    evaluate_on: Literal["test", "validation"] = "test"


class ModelSection(Section):
    """What is trained, and what of it stays with each client, by patterns."""

    name: str = "auto"
    trainable: Patterns = ()
    personal: Patterns = ()


class TrainingSection(Section):
    """For how long, with how many, and how.

    buffer
        The replies with which a round ends, while the rest of the cohort stays at work (docs/howto/asynchronous.md);
        None has every round wait for the whole cohort.
    """

    rounds: Count = 100
    cohort: Count = 10
    buffer: Count | None = None
    local_steps: Steps = 20
    batch_size: Steps = 20
    learning_rate: Positive = 0.1
    schedule: str = "decay"
    decay: NonNegative = 50.0
    restart: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluate_every: Literal["auto"] | Count = "auto"
    evaluate_personalised_every: Literal["auto", "never"] | Count = "auto"
    target_accuracy: Probability | None = None
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    loss: str | dict[str, Any] = "auto"
    metrics: tuple[str, ...] | str = ()
    optimiser: str | dict[str, Any] = "sgd"
    warmup: Annotated[int, Field(ge=0, le=MOST)] = 0
    robust: Literal["auto", "default", "none"] = "auto"

    @property
    def replies(self) -> int:
        """How many clients a round hears of, if all reply."""
        return self.buffer or self.cohort

    @property
    def aim(self) -> float | None:
        """The figure of merit at which training stops."""
        return self.target_accuracy if self.target is None else self.target


class EngineSection(Section):
    """How it is computed; the result does not depend on it, but for rounding on another device or by compiled code."""

    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_WORKERS)] = "auto"
    rows: Literal["auto"] | Count = "auto"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    compile: bool = True
    worker_timeout: Literal["auto"] | Positive = "auto"


class TrackSection(Section):
    """What is kept, and which trackers get every round's figures; ``trackers`` names those of plug-ins."""

    checkpoint_every: Count = 10
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    trackers: tuple[str, ...] = ()


class NetworkSection(Section):
    """How clients on other machines are dealt with; what runs on one machine takes no notice of it.

    directory
        Where the server keeps the run; if there is a run already it goes on.
    deadline, margin
        The seconds a round lasts at most, and how many of them are left to messages and to starting a client: a client
        works for no longer than the difference, and sends what it has.
    wait_for
        How many clients must have come before the first round; as many as are asked in a round by default.
    start_timeout
        The seconds after which the first round begins with fewer, if somebody is there.
    patience, rejoin
        The rounds after which a client that cannot be reached has departed; the seconds, up to the deadline, that a
        round waits for one that has just gone, to ask it again.
    share_cap
        As how many times the median's samples a client counts at most, whatever it says it has.
    norm_bound
        How many times the norm of the model (or 1, if that is more) an update may have; larger ones are refused. Other
        parts of a reply have bounds that follow from it (docs/security.md).
    """

    directory: str = "runs/flower"
    deadline: Annotated[Seconds, Field(gt=0)] = 120.0
    margin: Seconds = 15.0
    wait_for: Literal["auto"] | Count = "auto"
    start_timeout: NonNegative = 600.0
    patience: Count = 3
    rejoin: NonNegative = 30.0
    share_cap: Annotated[float, Field(ge=1)] = 10.0
    norm_bound: Positive = 10.0


class Transformation(BaseModel):
    """A [[transform]] table: a transformation's name, and its settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All but the name."""
        return dict(self.model_extra or {})
