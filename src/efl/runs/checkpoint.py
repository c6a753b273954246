"""Checkpoints: the state of a run after a round, in one file, written atomically, with a checksum.

The newest two are kept. The clients' rows lie in a file of their own (`efl.client.state_store`). Everything else about
a run follows from its config.toml and metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from efl.client.state_store import CHECKPOINTS_KEPT
from efl.errors import UserError, first_line
from efl.reading import QUOTED
from efl.runs.checkpoint_format_4 import from_format_4
from efl.runs.settings_compared import refuse_other_settings
from efl.storage import read_state, write_state


class Stateful(Protocol):
    """Has a state that can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


class Checkpointed(Stateful, Protocol):
    """Learns when its state was saved."""

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        ...


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        rounds: How many are over.
        stopped: Who ended the run, if anybody did.
        unfinished: The record of the last of them if it was left before it was evaluated and observers had seen it.
    """

    rounds: int = 0
    stopped: str | None = None
    unfinished: dict[str, Any] | None = None


def save_checkpoint(
    directory: Path, progress: Progress, server: Stateful, transport: Checkpointed, settings: Mapping[str, Any]
) -> None:
    """Save how far a run is, the state it is in and its settings; delete all but the newest checkpoints."""
    rounds, left = progress.rounds, [] if progress.unfinished is None else [progress.unfinished]
    state = {"rounds": rounds, "server": server.state_dict(), "transport": transport.state_dict()}
    state |= {"stopped": progress.stopped, "unfinished": left, "settings": [settings]}
    write_state(directory / f"round-{rounds:06d}.safetensors", state)
    for old in list_checkpoints(directory)[:-CHECKPOINTS_KEPT]:
        old.unlink()
    transport.checkpointed()


def list_checkpoints(directory: Path) -> list[Path]:
    """The checkpoint files, oldest first."""
    return sorted(directory.glob("round-*.safetensors"))


def load_checkpoint(directory: Path, server: Stateful, transport: Stateful, settings: Mapping[str, Any]) -> Progress:
    """Restore the newest state, if there is one; how far the run is. `UserError` if it was with other settings."""
    files = list_checkpoints(directory)
    if not files:
        return Progress()
    path = files[-1]
    try:
        state = read_state(path, {4: from_format_4})
        refuse_other_settings(state.get("settings", []), settings)
        server.load_state_dict(state["server"])
        transport.load_state_dict(state["transport"])
        return Progress(int(state["rounds"]), state.get("stopped"), *state.get("unfinished", []))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        before = f"from {files[-2].name}" if len(files) > 1 else "from the first round"
        raise UserError(f"{path}: damaged ({first_line(error)[:QUOTED]}); delete it to resume {before}") from None
