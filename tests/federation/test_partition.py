import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efl.errors import UserError
from efl.federation.partition import partition_samples, split_train_test


def deal(labels, clients, partition, seed=0, owners=None):
    rng = np.random.default_rng(seed)
    parts = partition_samples(labels, clients, partition, rng, owners)
    return parts, *split_train_test(labels, parts, 0.2, rng)


def check_every_sample_used_once(parts, labels):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


def check_same_classes(train, test, labels):
    for a, b in zip(train, test, strict=True):
        assert len(a)
        assert set(labels[a]) == set(labels[b])
        assert not set(a) & set(b)


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 12),
    per_client=st.integers(1, 12),
    clients=st.integers(10, 200),
    seed=st.integers(0, 99),
)
def test_classes_gives_every_client_exactly_m_classes_and_uses_every_sample(classes, per_client, clients, seed):
    per_client = min(per_client, classes)
    clients = max(clients, classes)
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 2 * clients + 5))
    parts, train, test = deal(labels, clients, f"classes:{per_client}", seed)
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)
    assert all(len(set(labels[part])) == per_client for part in parts)


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.sampled_from([1e-6, 0.01, 0.05, 0.5, 5.0, 1e4]),
    clients=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_dirichlet_ends_with_no_empty_client(alpha, clients, seed):
    labels = np.random.default_rng(seed).integers(0, 10, 1800)
    parts, train, test = deal(labels, clients, f"dirichlet:{alpha}", seed)
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)


def test_dirichlet_with_few_samples_to_spare_still_ends():
    labels = np.arange(40) % 2
    parts, train, test = deal(labels, 10, "dirichlet:0.05")
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)
    with pytest.raises(UserError, match="do not suffice"):
        deal(labels[:20], 10, "dirichlet:0.05")


@pytest.mark.parametrize("clients", [1, 7, 60])
def test_iid_gives_near_equal_shards(clients):
    labels = np.arange(1200) % 10
    parts, train, test = deal(labels, clients, "iid")
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 20


@pytest.mark.parametrize("partition", ["iid", "dirichlet:1.0"])
def test_no_client_is_favoured_for_its_number(partition):
    """With few samples of each class a client, lone ones must move; not always to the first clients."""
    labels = np.random.default_rng(0).integers(0, 100, 12_000)
    totals = np.mean([[len(part) for part in deal(labels, 200, partition, seed)[0]] for seed in range(10)], axis=0)
    first, last = totals[:50].mean(), totals[-50:].mean()
    assert abs(first - last) < 6
    if partition == "iid":
        sizes = [len(part) for part in deal(labels, 200, partition)[0]]
        assert max(sizes) - min(sizes) <= 12


def test_natural_keeps_owners():
    owners = np.repeat([5, 3, 9], [4, 6, 10])
    parts = partition_samples(np.zeros(20, dtype=np.int64), 3, "natural", np.random.default_rng(0), owners)
    assert [set(owners[part]) for part in parts] == [{3}, {5}, {9}]


def test_a_class_held_once_is_trained_on_and_not_tested():
    labels = np.array([0, 0, 0, 0, 1])
    train, test = split_train_test(labels, [np.arange(5)], 0.2, np.random.default_rng(0))
    assert 4 in train[0]
    assert set(labels[test[0]]) == {0}


def test_the_same_seed_gives_the_same_split():
    labels = np.arange(500) % 10
    first, second = deal(labels, 20, "classes:3", 7), deal(labels, 20, "classes:3", 7)
    assert all(np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    third = deal(labels, 20, "classes:3", 8)
    assert not all(np.array_equal(a, b) for a, b in zip(first[0], third[0], strict=True))


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        ("classes:11", 20, "more classes per client than there are"),
        ("classes:0", 20, "M ≥ 1"),
        ("classes:two", 20, "M ≥ 1"),
        ("classes:1", 4, "cannot hold 10 classes"),
        ("classes:10", 90, "too few"),
        ("dirichlet:0", 20, "A > 0"),
        ("dirichlet:nan", 20, "A > 0"),
        ("iid:3", 20, "unknown partition"),
        ("shards", 20, "unknown partition"),
        ("natural", 20, "owner per sample"),
        ("iid", 1000, "too few"),
        ("iid", 0, "at least 1"),
    ],
)
def test_impossible_partitions_say_why(partition, clients, message):
    with pytest.raises(UserError, match=message):
        deal(np.arange(500) % 10, clients, partition)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), clients=st.integers(1, 120))
def test_classes_of_unlike_sizes_are_shared_in_proportion_wherever_that_can_be(data, clients):
    sizes = np.array(data.draw(st.lists(st.integers(2, 900), min_size=1, max_size=15)))
    per_client = data.draw(st.integers(1, len(sizes)))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    places, most = clients * per_client, np.minimum(clients, sizes // 2)
    possible = places >= len(sizes) and most.sum() >= places and 2 * clients <= len(labels)
    if not possible:
        with pytest.raises(UserError):
            deal(labels, clients, f"classes:{per_client}")
        return
    parts, train, test = deal(labels, clients, f"classes:{per_client}")
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)
    counts = np.stack([np.bincount(labels[part], minlength=len(sizes)) for part in parts])
    assert ((counts > 0).sum(1) == per_client).all()
    holders = (counts > 0).sum(0)
    free = (holders < most) & (holders > 1)  # neither bounded above nor below: proportional, but for rounding
    if free.any():
        share = holders[free].sum() / sizes[free].sum()
        assert (np.abs(holders[free] - share * sizes[free]) <= 2).all()


def test_mnist_sized_data_for_up_to_1000_clients():
    """The class sizes of MNIST; every M from one class a client to all."""
    sizes = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    labels = np.repeat(np.arange(10), sizes)
    for clients in (10, 100, 1000):
        for per_client in (1, 2, 5, 10):
            parts, train, test = deal(labels, clients, f"classes:{per_client}")
            check_every_sample_used_once(parts, labels)
            check_same_classes(train, test, labels)
            assert all(len(set(labels[part])) == per_client for part in parts)
    parts, train, test = deal(labels, 500, "dirichlet:0.05")
    check_every_sample_used_once(parts, labels)
    assert all(len(a) and len(b) for a, b in zip(train, test, strict=True))


@settings(max_examples=40, deadline=None)
@given(classes=st.integers(2, 12), per_group=st.integers(1, 5), clients=st.integers(12, 60), seed=st.integers(0, 99))
def test_groups_give_neighbours_the_same_classes_and_nobody_else(classes, per_group, clients, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 2 * clients + 5))
    parts, train, test = deal(labels, clients, f"groups:{per_group}", seed)
    check_every_sample_used_once(parts, labels)
    check_same_classes(train, test, labels)
    held = [tuple(sorted(set(labels[part].tolist()))) for part in parts]
    assert held == sorted(held)
    assert set(held) == {tuple(range(a, min(a + per_group, classes))) for a in range(0, classes, per_group)}


@pytest.mark.parametrize(("partition", "message"), [("groups:0", "groups:M"), ("groups:1", "5 groups of classes")])
def test_groups_that_cannot_be(partition, message):
    with pytest.raises(UserError, match=message):
        deal(np.arange(100) % 5, 4, partition)
