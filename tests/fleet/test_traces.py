import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efl.errors import UserError
from efl.fleet.clock import IDLE, Clock
from efl.fleet.intervals import COLUMNS, Interval
from efl.fleet.traces import EXAMPLES, Trace, find_trace, read_trace
from efl.server.round_end import RoundEnd
from efl.transport.in_flight import Upload, taken

HEADER = ",".join(COLUMNS)


def write(tmp_path, *lines, name="trace.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_says_who_is_available_for_how_long_and_how_fast(tmp_path):
    path = write(tmp_path, HEADER, "0,10,20,5,100,50", "2,0,,1,2,3", "0,30,40,7,100,50")
    trace = read_trace(path, clients=3)
    assert trace.at(9).available.tolist() == [False, False, True]
    here = trace.at(10)
    assert here.available.tolist() == [True, False, True]
    assert here.left.tolist() == [10, 0, math.inf]
    assert trace.at(20).available.tolist() == [False, False, True]
    assert trace.at(35).steps_per_second[0] == 7
    assert trace.at(1e9).available.tolist() == [False, False, True]
    assert trace.next_start(12, np.array([True, True, False])) == 30
    assert trace.next_start(31, np.array([True, True, False])) == math.inf


def test_a_trace_repeats_with_its_period_across_the_turn(tmp_path):
    path = write(tmp_path, "# nights", "# period: 100", HEADER, "0,80,120,1,1,1", "1,50,60,1,1,1", "2,30,,1,1,1")
    trace = read_trace(path, clients=3)
    assert trace.at(85).left.tolist() == [35, 0, math.inf]
    assert trace.at(1010).left.tolist() == [10, 0, math.inf]
    assert trace.at(1020).available.tolist() == [False, False, True]
    assert trace.next_start(1020, np.array([True, True, False])) == 1050


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(1, 50)), max_size=30), st.data())
def test_the_binary_search_finds_what_looking_at_every_interval_finds(drawn, data):
    period = data.draw(st.sampled_from([math.inf, 100.0]))
    kept: list[Interval] = []
    for line, (client, start, length) in enumerate(drawn):
        mine = [i for i in kept if i.client == client]
        spans = [(i.start + shift, i.stop + shift) for i in mine for shift in (-100, 0, 100)]
        if all(start + length <= a or start >= b for a, b in spans):
            kept.append(Interval(line, client, start, start + length, line + 1, 1, 1))
    if not kept:
        return
    now = data.draw(st.integers(0, 300))
    found = Trace(kept, 6, period).at(now)
    for client in range(6):
        phases = [now] if period == math.inf else [now % 100, now % 100 + 100]
        there = [(i, t) for i in kept for t in phases if i.client == client and i.start <= t < i.stop]
        assert found.available[client] == bool(there)
        if there:
            ((interval, t),) = there
            assert found.left[client] == interval.stop - t
            assert found.steps_per_second[client] == interval.steps_per_second


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,15,30,5,1,1", r"trace.csv:4: overlapping intervals: client 1 is .* 15 to 30, but from 10 to 20 by line 3"),
        ("7,0,10,5,1,1", r"trace.csv:4: there is no client 7; the federation's are numbered 0 … 4"),
        ("-1,0,10,5,1,1", r"trace.csv:4: client: should be a whole number"),
        ("0.5,0,10,5,1,1", r"trace.csv:4: client: should be a whole number"),
        ("2,0,10,-5,1,1", r"trace.csv:4: steps_per_second: should be above 0, got -5"),
        ("2,0,10,5,0,1", r"trace.csv:4: down_bytes_per_second: should be above 0, got 0"),
        ("2,0,10,5,1,nan", r"trace.csv:4: up_bytes_per_second: should be a finite number, got 'nan'"),
        ("2,0,10,fast,1,1", r"trace.csv:4: steps_per_second: should be a finite number, got 'fast'"),
        ("2,50,10,5,1,1", r"trace.csv:4: client 2 departs at 10, but arrives at 50 only"),
        ("2,-1,10,5,1,1", r"trace.csv:4: start: should not be below 0"),
        ("2,0,10", r"trace.csv:4: 3 values for 6 columns"),
        ("2,90,300,5,1,1", r"trace.csv:4: 90 to 300 does not fit into the period of 100 seconds"),
        ("1,90,111,5,1,1", r"trace.csv:4: overlapping intervals"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_by_file_and_number(tmp_path, line, message):
    path = write(tmp_path, "# period: 100", HEADER, "1,10,20,5,1,1", line)
    with pytest.raises(UserError, match=message) as error:
        read_trace(path, clients=5)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "trace.csv: empty"),
        ([HEADER], "trace.csv: empty"),
        (["client,start,stop"], "trace.csv:1: no column steps_per_second"),
        (["# two", HEADER + ",colour"], "trace.csv:2: unknown column 'colour'"),
        (["# period: never", HEADER], "trace.csv:1: period: should be a finite number"),
    ],
)
def test_a_wrong_header_is_named(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        read_trace(write(tmp_path, *lines), clients=5)


def test_json_says_the_same_as_csv_and_knows_its_lines(tmp_path):
    rows = [{"client": 0, "start": 10, "stop": 20}, {"client": 1, "start": 5}]
    rows = [row | dict.fromkeys(COLUMNS[3:], 2) for row in rows]
    text = '{"period": 100,\n "intervals": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}"
    csv = write(tmp_path, "# period: 100", HEADER, "0,10,20,2,2,2", "1,5,,2,2,2")
    one, other = read_trace(write(tmp_path, text, name="a.json"), 2), read_trace(csv, 2)
    for now in (0, 7, 15, 107):
        assert one.at(now).left.tolist() == other.at(now).left.tolist()
    rows[1]["client"] = 9
    text = '{"intervals": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}"
    with pytest.raises(UserError, match=r"b.json:3: there is no client 9"):
        read_trace(write(tmp_path, text, name="b.json"), 2)
    with pytest.raises(UserError, match=r"c.json:2: not valid JSON"):
        read_trace(write(tmp_path, "{", "x", name="c.json"), 2)


@pytest.mark.parametrize("name", ["phones", "hospitals"])
def test_the_examples_are_traces_for_the_default_federation(name):
    trace = read_trace(find_trace(name), clients=50)
    counts = [trace.at(3600.0 * hour).available.sum() for hour in range(168)]
    assert min(counts) >= 2
    assert max(counts) > 3 * min(counts)
    assert len(set(trace.owner.tolist())) == 50
    assert (EXAMPLES / f"{name}.csv").stat().st_size < 20_000


def clock(*intervals, first_upload=0, clients=3):
    """Clients that do a step and 100 bytes down, 10 up, a second."""
    rows = [Interval(0, client, start, stop, 1.0, 100.0, 10.0) for client, start, stop in intervals]
    return Clock(Trace(rows, clients), first_upload)


def finish(timer, allowed, steps, replies, until):
    """Let a round pass in which clients did so many steps; whose replies came too late."""
    waits, late = timer.work(allowed, steps, replies, until.deadline)
    uploads = [
        Upload(c, 0, timer.now, w, b"reply" if c in replies and c not in late else b"") for c, w in waits.items()
    ]
    ended, seconds = taken(uploads, timer.now, until)
    assert len(ended) == len(uploads)
    timer.pass_by(seconds)
    return late


def test_steps_are_what_fits_between_download_and_upload():
    # 50 s − 2 s for 200 bytes down − 1.25 × 4 s for 40 bytes up leaves 43 s; client 1 is gone after 20 s: 13 s
    timer = clock((0, 0, math.inf), (1, 0, 20), (2, 5, 50), first_upload=40)
    allowed = timer.allow(np.arange(3), np.full(3, 200.0), 30, 50.0)
    assert allowed.steps.tolist() == [30, 13, 0]
    late = finish(timer, allowed, allowed.steps, {0: 40, 1: 40}, RoundEnd(50.0))
    assert late == set()
    assert timer.now == 2 + 30 + 4  # all who were reached answered: no need to wait for the deadline


def test_a_reply_that_is_longer_than_expected_comes_too_late_and_the_next_reserves_more():
    timer = clock((0, 0, math.inf))
    allowed = timer.allow(np.array([0]), np.array([0.0]), 20, 20.0)
    assert allowed.steps.tolist() == [20]
    assert finish(timer, allowed, allowed.steps, {0: 80}, RoundEnd(20.0)) == {0}
    assert timer.now == 20
    assert timer.allow(np.array([0]), np.array([0.0]), 20, 20.0).steps.tolist() == [10]


def test_the_server_waits_for_the_silent_until_the_deadline_but_not_for_the_unreachable():
    for intervals, expected in (([(0, 0, 900), (1, 0, 900)], 50.0), ([(0, 0, 900)], 6.0)):
        timer = clock(*intervals)
        allowed = timer.allow(np.arange(2), np.zeros(2), 5, 50.0)
        finish(timer, allowed, np.minimum(allowed.steps, [5, 0]), {0: 10}, RoundEnd(50.0))
        assert timer.now == expected


def test_without_a_deadline_a_round_lasts_as_long_as_its_slowest_client():
    timer = clock((0, 0, math.inf), (1, 0, 7))
    allowed = timer.allow(np.arange(3), np.zeros(3), 30, None)
    assert allowed.steps.tolist() == [30, 7, 0]
    finish(timer, allowed, allowed.steps, {0: 10}, RoundEnd())
    assert timer.now == 31
    finish(timer, timer.allow(np.array([1]), np.zeros(1), 30, None), np.zeros(1, dtype=np.int64), {}, RoundEnd())
    assert timer.now == 31 + IDLE


def test_time_passes_until_somebody_is_there():
    timer = clock((0, 100, 200), (1, 50, 60))
    assert timer.available(np.array([True, False, True])).tolist() == [True, False, False]
    assert timer.now == 100
    assert timer.available(np.array([False, True, True])).tolist() == [False, False, False]  # and nobody ever will
    assert timer.now == 100


def test_ten_thousand_clients_are_planned_in_a_moment():
    from efl.bench.planning import measure

    few, many = measure(1000, rounds=16), measure(10_000, rounds=16)
    assert many.best < 5 * few.best + 5  # milliseconds; `efl bench planning` tells the medians of a quiet machine
    assert many.growth < 50_000
