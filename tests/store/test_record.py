"""Rules are added to their file one by one, and that they could be is known before there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.errors import OutputError, TunedConfigError
from flashgen.store.files import read_tuned
from flashgen.store.record import RuleFile


@pytest.fixture
def file(tmp_path: Path) -> RuleFile:
    return RuleFile(directory=tmp_path / "configs", gpu="nvidia-h200", op="forward", command="flashgen tune")


def test_rules_are_added_to_those_that_are_there(file: RuleFile, make_entry) -> None:  # type: ignore[no-untyped-def]
    one, other = make_entry(head_dim=64, head_dim_v=64), make_entry(head_dim=128)
    assert file.add([one]) == (one,)
    assert file.add([other]) == (other,)
    assert read_tuned(file.path).entries == (one, other)
    assert read_tuned(file.path).command == "flashgen tune"


def test_a_predicted_rule_does_not_replace_a_measured_one(file: RuleFile, make_entry) -> None:  # type: ignore[no-untyped-def]
    measured, predicted = make_entry(kind="measured"), make_entry(kind="predicted", block_m=64)
    file.add([measured])
    assert not file.add([predicted])
    assert read_tuned(file.path).entries == (measured,)


def test_the_rules_of_a_spec_replace_those_that_it_had_whatever_their_lengths(file: RuleFile, make_entry) -> None:  # type: ignore[no-untyped-def]
    other = make_entry(head_dim=64, head_dim_v=64)
    two = (make_entry(high=2048), make_entry(low=2049, block_m=64))
    three = (make_entry(high=724), make_entry(low=725, high=4096, block_m=64), make_entry(low=4097, block_m=32))
    file.add([other])
    for rules in (two, three, two, (make_entry(block_m=64),)):
        assert file.add(rules) == rules
        assert read_tuned(file.path).entries == (other, *rules)


def test_predicted_rules_are_added_where_no_measured_one_holds(file: RuleFile, make_entry) -> None:  # type: ignore[no-untyped-def]
    measured = make_entry(high=512)
    short, long = (
        make_entry(kind="predicted", low=low, high=high, block_m=64) for low, high in ((1, 512), (513, None))
    )
    file.add([measured])
    assert file.add([short, long]) == (long,)
    assert read_tuned(file.path).entries == (measured, long)


def test_check_leaves_no_trace(file: RuleFile) -> None:
    file.check()
    assert not file.directory.exists()


def test_check_finds_a_malformed_file(file: RuleFile) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.write_text("gpu: nvidia-h200\n")
    with pytest.raises(TunedConfigError, match=str(file.path)):
        file.check()


@pytest.mark.parametrize("below", ["file", "file/configs"])
def test_check_finds_a_file_in_the_way(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = RuleFile(directory=tmp_path / below, gpu="nvidia-h200", op="forward", command="")
    with pytest.raises(OutputError, match=r"file is not a directory"):
        file.check()


def test_check_finds_a_directory_without_permission(file: RuleFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashgen.store.record.os.access", lambda path, mode: False)
    with pytest.raises(OutputError, match="no permission"):
        file.check()
