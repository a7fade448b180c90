"""Profiles from names and files: everything wrong is told at once, with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl import compose
from infctl.profile.crosscheck import shipped_timings
from infctl.profile.load import PROBLEMS_SHOWN, ProfileError, load, read_text, shipped

MINIMAL = """\
metadata: {name: x}
models: [{name: m}]
pools: [{name: p}]
"""


def write(folder: Path, text: str, name: str = "x.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def problems(ref: str, *sets: str) -> list[str]:
    with pytest.raises(ProfileError) as error:
        load(ref, sets)
    return [str(p) for p in error.value.problems]


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_load_and_say_what_they_are_for(name: str) -> None:
    profile = load(name)
    assert profile.metadata.name == name
    assert profile.metadata.description
    assert read_text(name).startswith("# ")


def test_all_the_promised_profiles_are_shipped() -> None:
    promised = {"demo", "tiny-vllm", "tiny-sglang", "deepseek-v3", "kimi-k2", "llama-70b"}
    assert promised | {"qwen3-8b"} == set(shipped())


@pytest.mark.parametrize("name", shipped_timings())
def test_shipped_timing_models_load_and_name_their_source(name: str) -> None:
    timing = compose.timing(name)
    assert len(timing.source) > 10
    assert timing.kv_capacity_tokens > 0
    assert timing.decode_step_ms(1, 1000) > 1


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "llama-70b", "qwen3-8b", "demo"])
def test_production_profiles_can_be_emulated(name: str) -> None:
    units = compose.desired_units(load(name), emulate=True)
    assert len(units) >= 4
    assert all(unit.spec.timing for unit in units)


def test_demo_is_what_the_known_answers_need() -> None:
    (unit, *others) = compose.desired_units(load("demo"))
    assert len(others) == 7
    assert unit.spec.context_tokens == 262144
    assert unit.spec.args["kv_capacity_tokens"] == 3000 * unit.spec.args["block_size"]


def test_defaults(tmp_path: Path) -> None:
    profile = load(write(tmp_path, MINIMAL))
    assert profile.engine.type == "emulated"
    assert profile.pools[0].units.ready == 1


def test_every_problem_at_once(tmp_path: Path) -> None:
    ref = write(
        tmp_path,
        """\
metadata: {name: "My Chat"}
models:
  - name: m
    contxt_tokens: 5
  - {name: b, aliases: [m], context_tokens: 1.5}
engine: {dialect: vlm, version: 0.32, env: {A: 1}}
unit: {gpus: 8, parallel: {tp: 4}}
pools:
  - {name: chat, model: mm, cluster: west, units: {ready: -1}}
  - {name: other}
routing: {picker: 5, handler: {weight: 1}, limits: {idle_s: 3s}}
slo: {ttft_ms: 2, ttft_ms: 3}
foo: 1
""",
    )
    expected = [
        "1: metadata.name: is 'My Chat', but must be lower-case letters, digits and dashes",
        "4: models.m.contxt_tokens: is no key of a profile (did you mean context_tokens?)",
        "5: models.b.aliases: the alias 'm' is already a name of model m",
        "5: models.b.context_tokens: needs a whole number (tokens), not 1.5",
        "6: engine.version: needs text, not 0.32 (write it in quotes)",
        "6: engine.dialect: is 'vlm', but must be 'vllm' or 'sglang' (did you mean vllm?)",
        "6: engine.env.A: needs text, not 1 (write it in quotes)",
        "7: unit: tp × pp × dp = 4 × 1 × 1 = 4 GPUs, but nodes × gpus = 1 × 8 = 8",
        "9: pools.chat.model: there is no model 'mm'",
        "9: pools.chat.cluster: there is no cluster 'west'; there is local",
        "9: pools.chat.units.ready: is -1, but must be at least 0",
        "10: pools.other.model: must name one of the models: m, b",
        "11: routing.picker: needs text",
        "11: routing.handler.type: is missing",
        "11: routing.limits.idle_s: needs a number (seconds), not '3s'",
        "12: slo.ttft_ms: is here twice (first on line 12)",
        "13: foo: is no key of a profile; here may be: apiVersion, clusters",
    ]
    found = problems(ref)
    assert len(found) == len(expected)
    for line in expected:
        assert any(f.startswith(f"{ref}:{line}") for f in found), line


def test_names_twice(tmp_path: Path) -> None:
    text = MINIMAL.replace("[{name: p}]", "\n  - {name: p}\n  - {name: p}")
    ref = write(tmp_path, text)
    assert problems(ref) == [f"{ref}:5: pools.p: is a name twice (first at {ref}:4)"]


def test_a_priority_class_is_named_once(tmp_path: Path) -> None:
    flow = "routing: {flow: {priorities: [chat, chat]}}\n"
    assert problems(write(tmp_path, MINIMAL + flow)) == [
        f"{tmp_path}/x.yaml:4: routing.flow: priorities names a class twice"
    ]


def test_unknown_timing(tmp_path: Path) -> None:
    ref = write(tmp_path, MINIMAL.replace("name: m", "name: m, timing: qwen3-8b-bf16-1xh10"))
    (problem,) = problems(ref)
    assert "there is no timing model" in problem
    assert "(did you mean qwen3-8b-bf16-1xh100?)" in problem


def test_missing_keys_are_named(tmp_path: Path) -> None:
    ref = write(tmp_path, "engine: {type: emulated}\n")
    assert [p.removeprefix(f"{ref}:1: ") for p in problems(ref)] == [
        "metadata: is missing",
        "models: is missing",
        "pools: is missing",
    ]


def test_many_problems_are_cut(tmp_path: Path) -> None:
    ref = write(tmp_path, MINIMAL + "".join(f"key{i}: 1\n" for i in range(PROBLEMS_SHOWN + 5)))
    with pytest.raises(ProfileError) as error:
        load(ref)
    assert "… and 5 more problems" in str(error.value)


# --- bad files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"\xff\xfe\x00", "is no UTF-8 text (byte 1)"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "is not text a YAML file can hold"),
        (b"just a text", "this is no profile"),
        (b"- a\n- b\n", "this is no profile"),
        (b"a: [\n", "is not valid YAML"),
        (b"a: " + b"x" * 1024 * 1024, "is bigger than 1024 KiB"),
    ],
)
def test_files_that_are_no_profiles(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    (problem,) = problems(str(file))
    assert problem.startswith(str(file))
    assert said in problem


def test_directories_and_missing_files(tmp_path: Path) -> None:
    assert "is a directory" in problems(str(tmp_path))[0]
    assert problems(f"{tmp_path}/no.yaml") == [f"{tmp_path}/no.yaml: there is no such file"]
    assert "did you mean demo?" in problems("dmeo")[0]
    assert problems("") == ["the profile's name is empty"]


def test_a_tag_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    ref = write(tmp_path, MINIMAL + f'slo: !!python/object/apply:os.system ["touch {trace}"]\n')
    assert any("which is refused" in p for p in problems(ref))
    assert not trace.exists()


# --- extends --------------------------------------------------------------------------------------


def test_extends_a_shipped_profile(tmp_path: Path) -> None:
    ref = write(
        tmp_path,
        "extends: demo\nmetadata: {name: mine}\npools: [{name: chat, units: {ready: 2}}]\n",
    )
    profile = load(ref)
    assert profile.metadata.name == "mine"
    assert profile.pools[0].units.ready == 2
    assert profile.engine == load("demo").engine


def test_extends_relative_to_the_file_that_says_so(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    write(below, MINIMAL + "slo: {ttft_ms: 1, tpot_ms: 2}\n", "a.yaml")
    write(below, "extends: a.yaml\nslo: {tpot_ms: 3}\n", "b.yaml")
    profile = load(write(tmp_path, "extends: below/b.yaml\nslo: {target: 0.5}\n"))
    assert (profile.slo.ttft_ms, profile.slo.tpot_ms, profile.slo.target) == (1, 3, 0.5)


def test_problems_name_the_file_they_are_in(tmp_path: Path) -> None:
    base = write(tmp_path, MINIMAL + "slo: {ttft_ms: -1}\n", "base.yaml")
    top = write(tmp_path, "extends: base.yaml\nslo: {tpot_ms: -1}\n", "top.yaml")
    assert [p.partition(": ")[0] for p in problems(top)] == [f"{base}:4", f"{top}:2"]


def test_extends_that_leads_back(tmp_path: Path) -> None:
    a = write(tmp_path, MINIMAL + "extends: b.yaml\n", "a.yaml")
    b = write(tmp_path, "extends: a.yaml\n", "b.yaml")
    assert problems(a) == [f"{b}:1: extends: leads back to itself: {a} → {b} → {a}"]
    own = write(tmp_path, MINIMAL + "extends: own.yaml\n", "own.yaml")
    assert problems(own) == [f"{own}:4: extends: leads back to itself: {own} → {own}"]


def test_extends_is_bounded(tmp_path: Path) -> None:
    for index in range(12):
        write(tmp_path, f"extends: {index + 1}.yaml\n" + MINIMAL, f"{index}.yaml")
    (problem,) = problems(f"{tmp_path}/0.yaml")
    assert "extends: is more than 8 profiles deep" in problem


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no.yaml", "extends: 'no.yaml': there is no such file"),
        ("dmeo", "did you mean demo?"),
        ("[demo]", "extends: needs the name or path of one profile"),
    ],
)
def test_extends_nothing(tmp_path: Path, value: str, said: str) -> None:
    ref = write(tmp_path, MINIMAL + f"extends: {value}\n")
    (problem,) = problems(ref)
    assert problem.startswith(f"{ref}:4: ")
    assert said in problem


# --- overrides ------------------------------------------------------------------------------------


def test_overrides_are_checked_like_the_file() -> None:
    profile = load("demo", ["pools.chat.units.ready=3"], {"INFCTL_SET__ROUTING__PICKER": "random"})
    assert profile.pools[0].units.ready == 3
    assert profile.routing.picker == "random"
    assert problems("demo", "slo.ttft_ms=2s", "slo.tpot=1") == [
        "--set slo.tpot=1: slo.tpot: is no key of a profile (did you mean tpot_ms?)",
        "--set slo.ttft_ms=2s: slo.ttft_ms: needs a number (milliseconds), not '2s'",
    ]


def test_a_resolved_profile_loads_again(tmp_path: Path) -> None:
    for name in shipped():
        profile = load(name)
        assert load(write(tmp_path, profile.model_dump_json(), f"{name}.json")) == profile


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    profile = load("tiny-vllm", ["engine.python=~/vllm/bin/python"])
    assert profile.models[0].path == "/home/somebody/.cache/infctl/tiny-model"
    assert profile.engine.python == "/home/somebody/vllm/bin/python"


def test_a_wrong_list_of_models_makes_no_noise_about_pools(tmp_path: Path) -> None:
    ref = write(tmp_path, "metadata: {name: x}\nmodels: 3\npools: [{name: p, model: nope}]\n")
    (only,) = problems(ref)
    assert ":2: models: needs a list" in only


def test_checks_of_the_caller_are_told_with_the_rest(tmp_path: Path) -> None:
    ref = write(tmp_path, MINIMAL + "slo: {ttft: 1}\n")
    seen = []

    def check(document: dict[str, object], profile: object) -> list[tuple[tuple[str, ...], str]]:
        seen.append((document["slo"], profile))
        return [(("models",), "are too few")]

    with pytest.raises(ProfileError) as error:
        load(ref, checks=[check])
    assert seen == [({"ttft": 1}, None)]
    assert [p.key for p in error.value.problems] == ["models", "slo.ttft"]
