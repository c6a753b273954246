"""efl data."""

from pathlib import Path
from typing import Annotated

import typer

from efl.cli.options import DataOption, PluginOption, console, plain_table, say
from efl.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Data sets.")


@app.command("list")
def list_(data_dir: DataOption = None) -> None:
    """What there is to train on, what is missing and how to get it."""
    from efl.federation import SOURCES
    from efl.federation.prepared import data_directory, is_prepared

    directory = data_directory(data_dir)
    table = plain_table("dataset", "what", "network", "partition", "here")
    missing = []
    for name, source in SOURCES.items():
        here = source.read is None or is_prepared(directory, name)
        missing += [] if here else [(name, source)]
        table.add_row(name, source.what, source.network, source.partition, "yes" if here else "no")
    console.print(table)
    if missing:
        say(f"\nTo get those that are not here, in {directory}:")
    for name, source in missing:
        say(f"  {name}: {source.fetch}, then: efl data prepare {name} --from DIR")


@app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(help="A data set, such as mnist.")],
    files: Annotated[
        Path | None,
        typer.Option("--from", help="Directory of the published files, as downloaded; default: the Hugging Face hub."),
    ] = None,
    data_dir: DataOption = None,
) -> None:
    """Read a data set's published files once, check them, and keep it ready to load."""
    from efl.federation import prepare as read_and_keep
    from efl.federation.prepared import data_directory, location

    prepared = read_and_keep(name, files, data_dir)
    where = location(data_directory(data_dir), name)
    say(f"{name}: {prepared.about}, {where.stat().st_size / 1e6:.0f} MB in {where}")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A data set, such as digits or synthetic:1,1.")],
    partition: Annotated[str, typer.Option(help="iid, classes:M, groups:M, dirichlet:A or natural.")] = "auto",
    clients: Annotated[int, typer.Option(min=1)] = 50,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture; default: NAME-PARTITION.png here.")] = None,
    data_dir: DataOption = None,
    plugin: PluginOption = None,
) -> None:
    """Print and draw who has how many samples of which class."""
    from efl.federation import load
    from efl.federation.sources import find_source
    from efl.plugins import load_plugin
    from efl.track.partition_plot import describe, draw_holdings, listing

    for file in plugin or []:
        load_plugin(file)
    chosen = find_source(name).partition if partition == "auto" else partition
    picture = out or Path(f"{name}-{chosen}.png".replace(":", "-").replace(",", "-"))
    if picture.suffix.lower() not in (".png", ".pdf", ".svg", ".jpg"):
        raise UserError(f"--out {picture} names no picture; write {picture.with_suffix('.png')}")
    federation = load(name, clients, chosen, seed=seed, data_dir=data_dir)
    counts, sizes = federation.class_counts(), federation.sizes.tolist()
    tested = [len(test) for test in federation.test]
    table = plain_table()
    for what, value in describe(counts, sizes, tested):
        table.add_row(what, value)
    console.print(table)
    console.print()
    console.print(listing(counts, sizes, tested))
    try:
        draw_holdings(counts, f"{name}, {chosen}, {len(federation)} clients, seed {seed}", picture)
    except (OSError, ValueError) as error:
        raise UserError(f"{picture} cannot be written ({error})") from None
    say(f"Picture: {picture}")
