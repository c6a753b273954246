"""efl bench."""

from pathlib import Path
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
    """A round of each algorithm against a round of FedAvg on the same work; what a defence and exact Fisher cost."""
    from efl.bench.overhead import defence_prices, fisher_prices, measure
    from efl.runs.comparison import named

    for line in (*fisher_prices(), *defence_prices(repeats)):
        say(line)
    for measured in measure(repeats, named(algorithms)):
        say(str(measured))


@app.command()
def watch(
    repeats: Annotated[int, typer.Option(min=1, help="Runs with a viewer, and as many without.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each.")] = 150,
) -> None:
    """What a live page costs the run that it shows."""
    from efl.bench.watch import measure

    say(measure(repeats, rounds))


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
def kills(
    count: Annotated[int, typer.Option("--kills", min=1, help="How many.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Runs and their workers, killed at random moments and resumed: every run ends with the same model."""
    from efl.bench.kills import kill_runs

    outcome = kill_runs(count, seed, say)
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
def attacks(
    seeds: Annotated[str, typer.Option(help="From the first to the last, such as 0-4; or one.")] = "0-2",
    dataset: Annotated[str, typer.Option(help="What clients train on.")] = "digits",
    algorithm: Annotated[str, typer.Option(help="Its name.")] = "efl",
    hostile: Annotated[float, typer.Option(min=0.0, max=0.5, help="The share of hostile clients.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=4)] = 100,
    model: Annotated[str, typer.Option(help="Its name; the data's own by default.")] = "auto",
    clients: Annotated[int, typer.Option(min=2)] = 50,
    cohort: Annotated[int, typer.Option(min=1)] = 10,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process with one thread.")] = 1,
    only: Annotated[str, typer.Option(help="Rules, separated by semicolons; all by default.")] = "",
    against: Annotated[str, typer.Option(help="Attacks, separated by semicolons; all by default.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Four attacks, four rules, one seed.")] = False,
    out: Annotated[
        Path, typer.Option(help="Outcomes, a line for each run; what stands there is not run again.")
    ] = Path("attacks.jsonl"),
    data_dir: DataOption = None,
) -> None:
    """Accuracy under attack: a row for each attack, a column for each rule and for perfect exclusion."""
    from efl.bench.attacks import COLUMNS, QUICK_COLUMNS, QUICK_ROWS, ROWS, cases, markdown, measure

    rows = _listed(against) or (QUICK_ROWS if quick else list(ROWS))
    columns = _listed(only) or (QUICK_COLUMNS if quick else list(COLUMNS))
    chosen = _seeds(seeds)[:1] if quick else _seeds(seeds)
    common = {"dataset": dataset, "algorithm": algorithm, "hostile": hostile, "rounds": rounds}
    wanted = cases(rows, columns, chosen, model=model, clients=clients, cohort=cohort, **common)
    for line in measure(wanted, out, None if data_dir is None else str(data_dir), workers):
        say(line)
    for line in markdown(wanted, out):
        say(line)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(";") if name.strip()]


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise UserError(f"--seeds {text}: write the first and the last, such as 0-4")
    return list(range(int(first), int(last or first) + 1))


@app.command()
def flower(
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes on this machine.")] = 1,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each.")] = 5,
) -> None:
    """A round over Flower against a round of nothing on it."""
    from efl.bench.flower import measure

    say(str(measure(nodes, rounds)))


@app.command()
def chaos(
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    deadline: Annotated[float, typer.Option(min=5.0, help="Seconds a round lasts at most.")] = 30.0,
) -> None:
    """A network of ten nodes: three come and go, one is stopped, one lies, the disk of one is full."""
    from efl.bench.chaos import measure

    outcome = measure(rounds, deadline, say)
    say(str(outcome))
    if not outcome.passed:
        raise typer.Exit(1)


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
