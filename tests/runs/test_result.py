import json
from pathlib import Path

import msgspec
import pytest

from infctl.errors import InputError, MachineError
from infctl.runs import result as module
from infctl.runs.result import build, encode, read, write
from infctl.runs.spec import RunSpec
from infctl.runs.summary import summarise

GOLDEN = Path(__file__).parents[1] / "goldens" / "runs" / "result.json"


def test_the_format_is_the_golden_one(make) -> None:
    assert encode(make.result()).decode() == GOLDEN.read_text(), (
        "result.json is a public contract: fields may be added (then renew the golden file), "
        "none renamed or removed"
    )


def test_checking_a_folder_leaves_nothing(tmp_path: Path) -> None:
    module.check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written there"):
        module.check_folder(tmp_path / "file" / "b")


def test_the_contract_of_version_1(make) -> None:
    found = json.loads(encode(make.result()))
    assert found["schema_version"] == 1
    assert {"runs", "workload", "seed", "speed", "rate_scale", "client"} <= set(found)
    run = found["runs"][0]
    wanted = {
        *("policy", "requests", "errors", "ttft_ms", "tpot_ms", "e2e_ms"),
        *("output_tokens_per_s", "goodput", "prefix_hit_rate", "per_endpoint"),
    }
    assert wanted <= set(run)
    assert all(set(run[name]) == {"p50", "p90", "p99"} for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    assert found["client"]["passed"] is True


def test_it_reads_what_it_wrote(make, tmp_path: Path) -> None:
    write(make.result(), tmp_path / "deep" / "result.json")
    assert read(tmp_path / "deep") == read(tmp_path / "deep" / "result.json") == make.result()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["result.json"]


def test_a_failed_self_check_names_the_run(make) -> None:
    spec = RunSpec(url="http://h", policy="round-robin")
    slow = make.measured([make.sample(0)], cpu_share=0.99)
    found = build([summarise(slow, spec)], spec)
    assert not found.client.passed
    assert found.client.reasons[0].startswith("round-robin: the client used 0.99")


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"schema_version": 2, "runs": []}', "\0\1", '{"runs": 5}']
)
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError):
        read(tmp_path)


def test_another_version_is_refused(make, tmp_path: Path) -> None:
    newer = msgspec.structs.replace(make.result(), schema_version=2)
    write(newer, tmp_path / "result.json")
    with pytest.raises(InputError, match="schema_version 2"):
        read(tmp_path)


def test_missing_and_huge_files(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.json")
    write(make.result(), tmp_path / "result.json")
    monkeypatch.setattr(module, "_BYTES_MAX", 10)
    with pytest.raises(InputError, match="too large"):
        read(tmp_path)


def test_a_folder_that_cannot_be_made(make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        write(make.result(), tmp_path / "file" / "result.json")
