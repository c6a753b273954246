"""What a run leaves to its caller."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from torch import nn

from efl.errors import UserError
from efl.runs.callbacks import flat
from efl.runs.directory import Record

P = ParamSpec("P")


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run leaves: its summary, a record per round, the trained module, and where the files are.

    >>> import efl
    >>> efl.train(rounds=2, cohort=3, local_steps=2)
    Result(efl on digits: 2 rounds, best accuracy 9.9 %, 12 kB up, 1 kB down)
    """

    summary: Record
    history: list[Record]
    model: nn.Module
    directory: Path | None
    _personalised: Callable[[int], nn.Module] | None = field(default=None)

    def __repr__(self) -> str:
        summary = self.summary
        if not summary:
            return "Result(of another rank)"
        best, share = summary["bmta_global"], summary["metric_is_share"]
        shown = "" if best is None else f"{100 * best:.1f} %" if share else f"{best:.4g}"
        parts = [
            f"{summary['algorithm']} on {summary['dataset']}: {summary['rounds']} rounds",
            "not evaluated" if best is None else f"best {summary['metric']} {shown}",
            f"{_size(summary['bytes_up'])} up",
            f"{_size(summary['bytes_down'])} down",
        ]
        parts += ["diverged"] if summary["diverged"] else []
        parts += [f"stopped by {summary['stopped']}"] if summary.get("stopped") else []
        parts += [str(self.directory)] if self.directory is not None else []
        return f"Result({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the clients, which cannot go to another process."""
        return {**self.__dict__, "_personalised": None}

    def to_pandas(self) -> Any:
        """The figures of every round as a ``pandas.DataFrame``, a row per round.

        Returns:
            The table; figures that a round does not have, such as the accuracy where it was not evaluated, are NaN.

        Raises:
            UserError: If pandas is not installed.

        >>> import efl
        >>> table = efl.train(rounds=3, cohort=3, local_steps=2, evaluate_every=1).to_pandas()
        >>> table.index.name, len(table), "accuracy" in table, "bytes.up.update" in table
        ('round', 3, True, True)
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([flat(record) for record in self.history]).set_index("round")

    def personalised(self, client: int) -> nn.Module:
        """A client's personalised model.

        That of the algorithm (APFL, FedAMP, …) after another round of work at home; for others the global model after
        a round of plain SGD on the client's training data. Nothing is stored or billed; asked again, the model is the
        same.

        Args:
            client: Its number.

        Returns:
            An independent module, in evaluation mode.

        Raises:
            UserError: If there is no such client, or clients are on other machines.

        >>> import efl
        >>> result = efl.train("digits", algorithm="apfl", rounds=2, cohort=5)
        >>> type(result.personalised(3)) is type(result.model)
        True
        """
        if self._personalised is None:
            raise UserError("this result has lost its clients; ask the one that efl.train or efl.resume returned")
        return self._personalised(client)


def warns_if_diverged(function: Callable[P, Result]) -> Callable[P, Result]:
    """The same function, which tells its caller in one line if the run ended early because training diverged."""

    @wraps(function)
    def warning(*args: P.args, **kwargs: P.kwargs) -> Result:
        result = function(*args, **kwargs)
        if (summary := result.summary).get("diverged"):
            what = f"the run diverged after {summary['rounds']} rounds: {summary['diverged_reason']}"
            warnings.warn(f"{what}; a smaller learning_rate may help", stacklevel=2)
        return result

    return warning


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
