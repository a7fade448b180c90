"""`infctl router`: the router as a foreground daemon, and what it reads while it runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli import router_keys
from infctl.cli.group import RunGroup

if TYPE_CHECKING:
    from infctl.errors import InfctlError
    from infctl.profile.model import Profile
    from infctl.router.reload import Loaded
    from infctl.router.workers import Worker

app = typer.Typer(
    cls=RunGroup,
    help="Run the router as a foreground daemon; `run` may be left out.",
    no_args_is_help=False,
)
app.add_typer(router_keys.app, name="keys")


_ENDPOINTS_ALONE = """\
# Models and engine kinds of given endpoints are learned from them.
metadata: {name: router}
models: [{name: any}]
pools: [{name: any}]
engine: {type: vllm}
"""


class LogFormat(StrEnum):
    """How to log."""

    text = "text"
    json = "json"


Sets = Annotated[list[str] | None, typer.Option("--set", help="Override a profile key: a.b=value.")]
State = Annotated[str | None, typer.Option(help="Route to the running units of this fleet.")]
AdminTcp = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve the admin API here too; needs a token."),
]
AdminToken = Annotated[
    str | None, typer.Option(metavar="FILE", help="The token that --admin-tcp asks for.")
]
Record = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write an event log for `infctl sim replay`; with workers, FILE.0 and so on.",
    ),
]
RecordMax = Annotated[
    int, typer.Option(min=1, max=1 << 20, help="End the event log when it has so many MiB.")
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Serve in place of the router that has this admin socket, if one runs: take its "
        "listening sockets, and let it finish what it has.",
    ),
]


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
    sets: Sets = None,
    admin: Annotated[str | None, typer.Option(help="Path of the admin API's Unix socket.")] = None,
    admin_tcp: AdminTcp = None,
    admin_token_file: AdminToken = None,
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.text,
    state: State = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that serve, at most one per core.")
    ] = 1,
    take_over: TakeOver = False,
    record: Record = None,
    record_mib_max: RecordMax = 1024,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
    parent_pipe: Annotated[bool, typer.Option(hidden=True)] = False,
    speed: Annotated[float, typer.Option(hidden=True, min=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Route to the units of PROFILE that run on this machine, or to given endpoints."""
    from infctl.router import service

    load = partial(_load, profile, sets or [], policy, bool(endpoint))
    if not endpoint and state is None:
        state = _profile(profile, sets or [], endpoints=False).metadata.name
    options = service.Options(
        host=host,
        port=port,
        endpoints=tuple(endpoint or ()),
        state=None if endpoint else state,
        admin=admin or _admin_socket(state or f"router-{port}"),
        admin_tcp=_admin_address(admin_tcp, admin_token_file),
        admin_token_file=admin_token_file,
        parent_pipe=parent_pipe,
        speed=speed,
        seed=seed,
        log_format=log_format.value,
        take_over=take_over,
        workers=workers,
        argv=tuple(sys.argv[1:]),
        worker=_worker(worker),
        record=record,
        record_mib_max=record_mib_max,
    )
    service.run(load, options)


@app.command()
def reload(
    fleet: Annotated[
        str | None, typer.Option(help="Whose router; default: the only one that runs here.")
    ] = None,
) -> None:
    """Have a running router read its profile, keys and certificates again.

    No request is dropped. Exit code 3 if they are refused: then the old ones stay in force."""
    from infctl.cli import admin

    status, found = admin.request(admin.find(fleet), "POST", "/v1/profile", timeout_s=60.0)
    if status != 200:
        raise _refused(status, found)
    print(f"{found['profile']}: {', '.join(found['applied']) or 'nothing has changed'}")
    if found["kept"]:
        print(f"only after a restart: {', '.join(found['kept'])}")


def _refused(status: int, found: dict[str, Any]) -> InfctlError:
    """The error the router met, as this process would have met it."""
    from infctl.errors import InputError, MachineError, TargetError

    kinds: dict[int, type[InfctlError]] = {400: InputError, 503: MachineError}
    words = found.get("error", {})
    error = kinds.get(status, TargetError)(
        words.get("message", ""), where=words.get("where"), hint=words.get("hint")
    )
    if words.get("lines"):
        error.lines = words["lines"]  # type: ignore[attr-defined]
    return error


def _load(ref: str | None, sets: list[str], policy: str | None, endpoints: bool) -> Loaded:
    from infctl import compose
    from infctl.router.reload import Loaded

    profile = _profile(ref, sets, endpoints)
    if policy:
        profile = compose.with_policy(profile, policy)
    engines = {name: compose.engine(name) for name in _engine_kinds(profile, endpoints)}
    return Loaded(profile, compose.pipeline(profile), engines)


def _worker(spec: str | None) -> Worker | None:
    """What the parent of several workers says to one."""
    import msgspec

    from infctl.router.workers import Worker

    return None if spec is None else msgspec.json.decode(spec, type=Worker)


def _admin_address(text: str | None, token_file: str | None) -> tuple[str, int] | None:
    from infctl.errors import UsageError

    if (text is None) != (token_file is None):
        raise UsageError("--admin-tcp and --admin-token-file go together")
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is not HOST:PORT", where="--admin-tcp")
    return host.strip("[]"), int(port)


def _profile(ref: str | None, sets: list[str], endpoints: bool) -> Profile:
    from infctl.cli.profile_checks import load, load_text
    from infctl.errors import UsageError

    if ref is not None:
        return load(ref, sets)
    if not endpoints:
        raise UsageError(
            "nothing to route to",
            hint="Name a profile, or endpoints: infctl router --endpoint http://127.0.0.1:8001",
        )
    return load_text(_ENDPOINTS_ALONE, "--endpoint", sets)


def _admin_socket(name: str) -> str:
    from infctl import state

    state.create(state.path(name))
    return str(state.socket_path(name))


def _engine_kinds(profile: Profile, any_kind: bool) -> list[str]:
    from infctl import compose

    return compose.names("engine") if any_kind else [profile.engine.type, "emulated"]
