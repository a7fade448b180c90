import json

from infctl.runs.output import show


def test_both_files_are_written_and_named(make, tmp_path, capsys) -> None:
    show(make.result(), tmp_path / "out", target=0.5)
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert f"Wrote {tmp_path}/out/report.html and {tmp_path}/out/result.json" in said
    assert "within the SLO, target 50.0 %" in out
    assert "TTFT p50" in out
    assert "<html" in (tmp_path / "out/report.html").read_text()


def test_json_is_what_the_file_holds(make, tmp_path, capsys) -> None:
    show(make.result(), tmp_path, as_json=True)
    assert capsys.readouterr().out == (tmp_path / "result.json").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["schema_version"] == 1
