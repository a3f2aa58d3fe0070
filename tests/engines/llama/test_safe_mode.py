"""What crashed is remembered for this machine, model and build; a damaged memory counts as none."""

from pathlib import Path

from pocketserver.engines.llama.safe_mode import FILE_NAME, SafeModeMemory, combination


def test_a_crash_is_remembered_across_restarts(tmp_path: Path) -> None:
    SafeModeMemory(tmp_path / "new").remember("a")
    assert SafeModeMemory(tmp_path / "new").holds("a")
    assert not SafeModeMemory(tmp_path / "new").holds("b")


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    memory = SafeModeMemory(tmp_path)
    for number in range(250):
        memory.remember(str(number))
    assert memory.holds("249")
    assert not memory.holds("0")


def test_a_damaged_file_counts_as_empty_and_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"crashed": [1')
    memory = SafeModeMemory(tmp_path)
    assert not memory.holds("a")
    memory.remember("a")
    assert memory.holds("a")
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_another_build_or_model_is_another_combination() -> None:
    keys = {
        combination(Path("/x/model.gguf"), 1, "build 1"),
        combination(Path("/y/model.gguf"), 1, "build 1"),  # moved, the same
        combination(Path("/x/model.gguf"), 2, "build 1"),
        combination(Path("/x/model.gguf"), 1, "build 2"),
    }
    assert len(keys) == 3
