import numpy as np

from efl.server.client_table import ClientTable


def table(sizes, cap=None):
    return ClientTable.of(np.array(sizes, dtype=np.int64), cap)


def test_shares_of_counts_that_are_all_believable_are_the_same_with_a_cap():
    sizes = [120, 7, 60, 33, 90]
    assert (table(sizes).shares == table(sizes, 10.0).shares).all()


def test_nobody_counts_as_more_than_the_cap_times_the_median_of_the_objective():
    capped = table([10, 20, 30, 10**9], 10.0)
    assert capped.samples.tolist() == [10, 20, 30, 200]
    capped.objective = np.array([False, False, True, True])
    assert capped.shares.tolist() == [0.0, 0.0, 30 / 330, 300 / 330]


def test_half_of_two_cannot_make_itself_the_median():
    assert table([100, 10**9], 10.0).samples.tolist() == [100, 1000]


def test_without_a_cap_what_is_said_counts():
    assert table([1, 10**9]).samples.tolist() == [1, 10**9]


def test_a_table_of_nobody_has_no_shares():
    assert table([0, 0], 10.0).shares.tolist() == [0.0, 0.0]
