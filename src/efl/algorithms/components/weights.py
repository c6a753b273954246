"""Aggregation coefficients: how much each contribution counts.

With π_k the probability that client k contributes in a round (being sampled × replying), Σ_k (p^k/π_k) x_k over those
who contributed has the expectation Σ_k p^k x_k of full participation: E[p_τ^k s_τ^k]/p^k is then the same for all k,
and the bias term of Theorem 1 vanishes.
"""

from collections.abc import Sequence
from math import fsum


def inverse_probability(shares: Sequence[float], probabilities: Sequence[float]) -> list[float]:
    """p^k / π_k (Horvitz–Thompson): unbiased; the sum varies from round to round.

    >>> inverse_probability([0.5, 0.25], [0.5, 0.5])
    [1.0, 0.5]
    """
    return [share / probability for share, probability in zip(shares, probabilities, strict=True)]


def self_normalised(weights: Sequence[float]) -> list[float]:
    """The same weights scaled to sum to one (Hájek): a little bias for much less variance.

    >>> self_normalised([1.0, 3.0])
    [0.25, 0.75]
    """
    total = fsum(weights)
    return [weight / total for weight in weights]


def by_samples(sizes: Sequence[int]) -> list[float]:
    """n_k / Σ n_k over those who contributed: FedAvg's weights, worked out from whole numbers.

    >>> by_samples([30, 10])
    [0.75, 0.25]
    """
    total = sum(sizes)
    return [size / total for size in sizes]
