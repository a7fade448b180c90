"""`infctl router`: the router as a foreground daemon."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from infctl.profile.model import Profile

app = typer.Typer(help="Run the router as a foreground daemon.")


class LogFormat(StrEnum):
    """How to log."""

    text = "text"
    json = "json"


@app.command()
def run(
    profile: Annotated[
        str | None, typer.Argument(help="A shipped profile, or a file; not needed with --endpoint.")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of a running engine; repeat for more. Its kind is detected."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    policy: Annotated[str | None, typer.Option(help="Replace the profile's policy.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a profile key: a.b=value.")
    ] = None,
    admin: Annotated[str | None, typer.Option(help="Path of the admin API's Unix socket.")] = None,
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.text,
    state: Annotated[
        str | None, typer.Option(help="Route to the running units of this fleet.")
    ] = None,
    parent_pipe: Annotated[bool, typer.Option(hidden=True)] = False,
    speed: Annotated[float, typer.Option(hidden=True, min=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Route to the units of PROFILE that run on this machine, or to given endpoints."""
    from infctl import compose
    from infctl.router import service

    loaded = _profile(profile, sets or [], bool(endpoint))
    if policy:
        loaded = compose.with_policy(loaded, policy)
    if not endpoint and state is None:
        state = loaded.metadata.name
    options = service.Options(
        host=host,
        port=port,
        endpoints=tuple(endpoint or ()),
        state=None if endpoint else state,
        admin=admin or _admin_socket(state or f"router-{port}"),
        parent_pipe=parent_pipe,
        speed=speed,
        seed=seed,
        log_format=log_format.value,
    )
    engines = {name: compose.engine(name) for name in _engine_kinds(loaded, bool(endpoint))}
    service.run(
        loaded, compose.pipeline(loaded), engines, options, lambda: compose.route_table(loaded)
    )


def _profile(ref: str | None, sets: list[str], endpoints: bool) -> Profile:
    from infctl.cli.profile_checks import load
    from infctl.errors import UsageError
    from infctl.profile.model import Metadata, Model, Pool, Profile

    if ref is not None:
        return load(ref, sets)
    if not endpoints:
        raise UsageError(
            "nothing to route to",
            hint="Name a profile, or endpoints: infctl router --endpoint http://127.0.0.1:8001",
        )
    # Models and engine kinds of given endpoints are learned from them.
    return Profile(
        metadata=Metadata(name="router"), models=[Model(name="any")], pools=[Pool(name="any")]
    )


def _admin_socket(name: str) -> str:
    from infctl import state

    state.create(state.path(name))
    return str(state.socket_path(name))


def _engine_kinds(profile: Profile, any_kind: bool) -> list[str]:
    from infctl import compose

    return compose.names("engine") if any_kind else [profile.engine.type, "emulated"]
