"""Learning-rate schedules: η_τ as a function of the round."""


def decaying(learning_rate: float, decay: float, round_: int) -> float:
    """η / (1 + τ/decay); ``decay = 0`` keeps η constant.

    >>> decaying(0.1, 50, 0), decaying(0.1, 50, 50), decaying(0.1, 0, 50)
    (0.1, 0.05, 0.1)
    """
    return learning_rate / (1 + round_ / decay) if decay > 0 else learning_rate
