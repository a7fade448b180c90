"""A fitted timing model as a YAML file that a profile can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from infctl.errors import UndecidedError

if TYPE_CHECKING:
    from infctl.calibrate.fit import Fit

_FIGURES = 4


def render(fit: Fit, what: str) -> str:
    """The file's text; `what` says what was measured, and when."""
    errors = ", ".join(f"{e.group} {e.median:.1%}" for e in fit.errors)
    source = f"{what}; median error of a figure: {errors}"
    if fit.unknown:
        source += f"; not measured, so guessed: {', '.join(fit.unknown)}"
    timing = msgspec.structs.replace(fit.timing, source=source)
    document = {k: v for k, v in msgspec.to_builtins(timing).items() if v is not None}
    text = yaml.safe_dump(_rounded(document), sort_keys=False, width=100)
    return (
        "# Measured by `infctl calibrate`. Milliseconds and tokens; a profile names this file as\n"
        f"# models[].timing. Fitted with engine.args max_num_batched_tokens: "
        f"{fit.engine.max_num_batched_tokens}, block_size: {fit.engine.block_tokens}.\n{text}"
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return float(f"{value:.{_FIGURES}g}") if isinstance(value, float) else value


def check(fit: Fit) -> None:
    """Raise UndecidedError where the fit explains too little of what was measured."""
    bad = [e for e in fit.errors if e.median > ERROR_MAX]
    if bad:
        said = ", ".join(f"{e.group} {e.median:.0%}" for e in bad)
        raise UndecidedError(
            f"the model does not explain what was measured: median error {said}",
            hint="Was the engine busy with something else? Calibrate again on a quiet machine.",
        )


ERROR_MAX = 0.25
"""Median error of a group of experiments beyond which a model is of no use."""
