"""Table 1, by hand: L = 4, μ = 2, G = 6, σ = 3, δ = 1, N = 20, S = 9, ε = 1/4."""

import pytest

from efl.errors import UserError
from efl.theory.table1 import METHODS, Setting, rounds_to

AT = Setting(smoothness=4, convexity=2, gradient=6, noise=3, dissimilarity=1, clients=20, cohort=9)


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        ("SCAFFOLD", 8 + 6 + 2),
        ("MIME", 8 + 0.5),
        ("VRL-SGD", 20 * 9 / 9 * 16 + 80),
        ("FedAMP", 4 + 6 * 8 + 32),
        ("EFL", 8 + 4),
    ],
)
def test_rounds(method, rounds):
    assert rounds_to(method, AT, 0.25) == pytest.approx(rounds)


def test_efl_beats_scaffold_where_gradients_outweigh_curvature_and_mime_nowhere():
    for gradient in (1, 3, 6):
        for epsilon in (1e-4, 1e-2, 0.25):
            at = Setting(smoothness=4, convexity=2, gradient=gradient, noise=3, dissimilarity=4, clients=20, cohort=9)
            efl, scaffold, mime = (rounds_to(name, at, epsilon) for name in ("EFL", "SCAFFOLD", "MIME"))
            assert (efl < scaffold) == (gradient > 4 * (1 - epsilon**0.5))
            assert efl > mime


def test_the_table_lists_the_papers_methods():
    assert list(METHODS) == ["SCAFFOLD", "MIME", "VRL-SGD", "FedAMP", "EFL"]
    with pytest.raises(UserError, match="unknown method 'FedAvg'; choose one of: SCAFFOLD"):
        rounds_to("FedAvg", AT, 0.1)
    with pytest.raises(UserError, match="epsilon"):
        rounds_to("EFL", AT, 0)
