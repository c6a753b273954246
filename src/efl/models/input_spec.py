"""What a network must fit."""

from dataclasses import dataclass

from efl.errors import UserError


@dataclass(frozen=True)
class Task:
    """The shape of one sample, the number of classes, and how many tokens there are where samples are text."""

    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None

    def image(self, network: str, least: int) -> tuple[int, int, int]:
        """The sample's (channels, height, width); `UserError` if it is no image of at least that many pixels a side."""
        if self.vocabulary is not None or len(self.input_shape) != 3 or min(self.input_shape[1:]) < least:
            raise UserError(
                f"model {network!r} needs images (channels, height, width) of {least} × {least} or more, "
                f"got shape {self.input_shape}"
            )
        channels, height, width = self.input_shape
        return channels, height, width

    def tokens(self, network: str) -> int:
        """The size of the vocabulary; `UserError` if samples are no sequences of tokens."""
        if self.vocabulary is None or len(self.input_shape) != 1:
            raise UserError(f"model {network!r} needs sequences of tokens, got samples of shape {self.input_shape}")
        return self.vocabulary

    def numbers(self, network: str) -> tuple[int, ...]:
        """The sample's shape; `UserError` if samples are text."""
        if self.vocabulary is not None:
            raise UserError(f"model {network!r} needs numbers, but samples are text; try 'auto'")
        return self.input_shape
