"""efl bench."""

from typing import Annotated

import typer

from efl.cli.options import DataOption, say
from efl.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Speed and size, as ratios.")


@app.callback()
def bench() -> None:
    """Speed and size, as ratios."""


@app.command()
def speed(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each, in turn; the CNN takes an eighth of them.")] = 40,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; one a processor by default.")] = None,
) -> None:
    """FedAvg here against the plain loop one would write in PyTorch, and what workers bring."""
    from efl.bench.speed import measure, workers_gain

    for speed in measure(rounds, workers):
        say(str(speed))
    for line in workers_gain(max(3, rounds // 10), workers):
        say(line)


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each algorithm, alternating.")] = 60,
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas; all for every one.")] = "efl,fedprox",
) -> None:
    """A round of each algorithm against a round of FedAvg on the same work, and what an exact Fisher diagonal takes."""
    from efl.bench.overhead import fisher_prices, measure
    from efl.runs.comparison import named

    for line in fisher_prices():
        say(line)
    for measured in measure(repeats, named(algorithms)):
        say(str(measured))


@app.command()
def scale(
    rounds: Annotated[int, typer.Option(min=3, help="Rounds at each point.")] = 15,
    clients: Annotated[int, typer.Option(min=100, help="The most clients.")] = 100_000,
) -> None:
    """Time and memory of EFL against clients, cohort, parameters and workers."""
    from efl.bench.scale import measure

    for line in measure(rounds, clients):
        say(str(line))


@app.command()
def wire(
    largest: Annotated[int, typer.Option(min=10_000, help="The longest vector of random positions.")] = 10**8,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of training whose messages are looked at.")] = 12,
    data_dir: DataOption = None,
) -> None:
    """Bits and speed of messages, against the limits; on random positions and on real training."""
    from efl.bench.wire import random_positions, real_messages
    from efl.federation import load

    n = 10_000
    while n <= largest:
        say(str(random_positions(n)))
        n *= 10
    for what, dataset, network, training in (
        ("cnn on mnist", "mnist", "cnn_large", {}),
        ("LSTM on shakespeare", "shakespeare", "char_lstm", {"learning_rate": 2.0, "batch_size": 10}),
    ):
        try:
            federation = load(dataset, clients=5, data_dir=data_dir)
        except UserError as error:
            say(f"{what}: left out; {error}")
            continue
        for line in real_messages(what, federation, network, rounds, rounds // 2, training):
            say(str(line))


@app.command()
def fuzz(
    messages: Annotated[int, typer.Option(min=1, help="How many messages to try.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Damaged, grown, nested and forged messages: each is refused or valid content, quickly and in little memory."""
    from efl.bench.fuzz import fuzz as try_messages

    outcome = try_messages(messages, seed)
    say(str(outcome))
    if not outcome.passed:
        raise typer.Exit(1)


@app.command()
def planning(
    clients: Annotated[int, typer.Option(min=100, help="The largest fleet.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=4)] = 50,
) -> None:
    """Time and memory of planning a round, with traces, from 100 clients on."""
    from efl.bench.planning import measure

    count = 100
    while count <= clients:
        say(str(measure(count, rounds)))
        count *= 10


@app.command()
def flower(
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes on this machine.")] = 1,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each.")] = 5,
) -> None:
    """A round over Flower against a round of nothing on it."""
    from efl.bench.flower import measure

    say(str(measure(nodes, rounds)))


@app.command()
def privacy(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 60,
    data_dir: DataOption = None,
) -> None:
    """Accuracy and bytes at ε = 8, EFL beside DP-FedAvg; and of one support for everybody, for secure aggregation."""
    from efl.bench.privacy import private_runs, shared_supports

    for row in shared_supports():
        say(str(row))
    try:
        for row in private_runs(data_dir, rounds):
            say(str(row))
    except UserError as error:
        say(f"mnist: left out; {error}")
