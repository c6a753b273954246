"""The JSON files of LEAF (Caldas et al. 2018): users with their samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from efl.errors import UserError
from efl.federation.published_files import Place, RawFile, distinct, places
from efl.reading import QUOTED, parse_json

T = TypeVar("T")


def leaf_files(directory: Path) -> list[RawFile]:
    """The ``.json`` files below ``directory``.

    LEAF's scripts leave every stage of their work behind, each with the same data; the last one counts.
    """
    found = places(directory, "*.json")
    for stage in ({"train", "test"}, {"rem_user_data"}, {"sampled_data"}, {"all_data"}):
        if chosen := [place for place in found if stage & set(_folders(place))]:
            return distinct(chosen)
    return distinct(found)


def leaf_users(file: RawFile, samples: Callable[[Any, Any], T]) -> list[tuple[str, T]]:
    """The users in a file, and what ``samples`` makes of the ``x`` and ``y`` of each."""
    try:
        users = parse_json(file.data, finite=True)["user_data"]
        return [(str(user), samples(_list(data["x"]), _list(data["y"]))) for user, data in users.items()]
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        why = f"{error!r:.{QUOTED}}"
        raise UserError(f'{file.where}: expected LEAF\'s {{"user_data": {{user: {{"x", "y"}}}}}} ({why})') from None


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("x and y must be lists")
    return values


def _folders(place: Place) -> tuple[str, ...]:
    return Path(place.member or place.path).parts
