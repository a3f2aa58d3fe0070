"""`pocketserver cluster …`: deploy the engine to a Ray cluster and leave it there, or take it away."""

from typing import Annotated

import typer

from pocketserver import settings

app = typer.Typer(
    add_completion=False,
    help="The engine as replicas in a Ray cluster: deploy them, remove them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Address = Annotated[
    str | None, typer.Option("--ray-address", help="The cluster's address; RAY_ADDRESS or this machine's without.")
]
Name = Annotated[str | None, typer.Option("--ray-app", help="The application's name, pocketserver without.")]


@app.command()
def deploy(
    ctx: typer.Context,
    ray_address: Address = None,
    ray_app: Name = None,
    ray_engine: Annotated[str | None, typer.Option(help="llama or sim.")] = None,
    ray_replicas: Annotated[int | None, typer.Option(help="How many, or how many at least.")] = None,
    ray_most_replicas: Annotated[int | None, typer.Option(help="How many Ray may make when many wait.")] = None,
    ray_cpus: Annotated[float | None, typer.Option(help="Processors that Ray sets aside for each.")] = None,
    ray_gpus: Annotated[float | None, typer.Option(help="GPUs that Ray sets aside for each.")] = None,
    model: Annotated[str | None, typer.Option(help="A model's name, or a path that holds on every node.")] = None,
    context: Annotated[int | None, typer.Option(help="Context size in tokens.")] = None,
) -> None:
    """Start replicas that outlive this command; `serve --engine ray` then answers with them."""
    from pocketserver.cluster.deploy import connect
    from pocketserver.cluster.options import cluster_options

    flags = {key: value for key, value in ctx.params.items() if value is not None}
    options = cluster_options(settings.load(flags={**flags, "engine": "ray"}).settings)
    cluster = connect(options, keep=True)
    typer.echo(f"{options.app}: {cluster.running()} replicas of {options.settings.engine} are running.")


@app.command()
def remove(ray_address: Address = None, ray_app: Name = None) -> None:
    """End the replicas of an application."""
    from pocketserver.cluster.deploy import remove as end

    name = ray_app or "pocketserver"
    typer.echo(f"{name} was removed." if end(name, ray_address) else f"There is no application {name}.")
