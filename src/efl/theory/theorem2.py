"""Theorem 2: how far the optimum moves when a client leaves or joins.

Let n_a be the samples of client a, n all samples including these, and D_a = F_a(v) − F_a* at the optimum v of the
federation *without* a. Then ‖w* − ŵ*‖² ≤ 8L·n_a²·D_a / (μ²n²). A departure and an arrival are the same step, taken
forwards or backwards, so one bound serves both.
"""

from __future__ import annotations

from efl.errors import UserError


def shift_bound(
    *, smoothness: float, convexity: float, samples_of_client: float, samples_with_client: float, divergence: float
) -> float:
    """8L·n_a²·D_a / (μ²n²), where ``divergence`` is D_a at the optimum of the federation without the client.

    >>> shift_bound(smoothness=2, convexity=1, samples_of_client=10, samples_with_client=40, divergence=3)
    3.0
    """
    if not 0 < samples_of_client <= samples_with_client:
        raise UserError(f"samples_of_client: should lie in 1 … {samples_with_client:g}, got {samples_of_client:g}")
    part = samples_of_client / samples_with_client
    return 8 * smoothness * part**2 * divergence / convexity**2


def departure_bound(
    *, smoothness: float, convexity: float, samples_of_client: float, samples_before: float, new_divergence: float
) -> float:
    """Equation 10: the client leaves; ``samples_before`` is n, with it, and D̂_a is taken at the new optimum."""
    return shift_bound(
        smoothness=smoothness,
        convexity=convexity,
        samples_of_client=samples_of_client,
        samples_with_client=samples_before,
        divergence=new_divergence,
    )


def arrival_bound(
    *, smoothness: float, convexity: float, samples_of_client: float, samples_before: float, old_divergence: float
) -> float:
    """Equation 11, mended: the client joins; ``samples_before`` is n, without it, and D_a is taken at the old optimum.

    The paper takes it at the new optimum, D̂_a. That holds only for n_a ≤ n: a newcomer with most of the samples pulls
    the new optimum to its own, where D̂_a vanishes, though the shift does not.
    """
    return shift_bound(
        smoothness=smoothness,
        convexity=convexity,
        samples_of_client=samples_of_client,
        samples_with_client=samples_before + samples_of_client,
        divergence=old_divergence,
    )
