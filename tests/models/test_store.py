"""The models of a folder: listed, found by exact names, removed; broken files and hostile names do no harm."""

from pathlib import Path

import pytest

from pocketserver.errors import StartupError
from pocketserver.models.catalog import load_catalog
from pocketserver.models.gguf import BadModelFile
from pocketserver.models.store import ModelStore, resolve_model_argument
from tests.models.gguf_builder import gguf, write_model, write_split_model

FOREIGN_NAMES = (
    *("", ".", "..", "../secret", "a/../../secret", "..\\secret", "/etc/passwd", "C:\\x", "tiny/", "tiny\0", "ti\nny"),
    *("%2e%2e/secret", ".hidden", "tiny.gguf", "TINYY", "tiny ", "tiny:q4", "tiny:a:b", "-rf", "a" * 5000, "\ud800"),
)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """One sound model `tiny`, one broken `cut`, and things that are none; a model `secret` beside the folder."""
    folder = tmp_path / "models"
    write_model(folder / "tiny.gguf")
    (folder / "cut.gguf").write_bytes(gguf()[:-1])
    (folder / ".half.gguf").write_bytes(b"half a download")
    (folder / "notes.txt").write_text("no model")
    (folder / "folder.gguf").mkdir()
    write_model(tmp_path / "secret.gguf")
    return ModelStore(folder)


def test_a_broken_file_is_marked_and_the_others_stay_listed(store: ModelStore) -> None:
    cut, tiny = store.list()

    assert (tiny.id, tiny.problem, tiny.size_bytes) == ("tiny", None, len(gguf()))
    assert cut.id == "cut"
    size = len(gguf())
    assert cut.problem == f"cut.gguf is cut short: {size - 1:,} bytes, {size:,} expected. Download the file again."
    with pytest.raises(BadModelFile, match="is cut short"):
        cut.checked()


def test_a_folder_that_is_not_there_holds_no_models(tmp_path: Path) -> None:
    assert ModelStore(tmp_path / "nowhere").list() == []


def test_lists_carry_what_the_file_says(store: ModelStore) -> None:
    tiny = store.find("tiny")
    assert tiny is not None

    info = tiny.info(loaded=True, context_size=128)

    assert (info.id, info.loaded, info.context_size) == ("tiny", True, 128)
    assert (info.quantization, info.architecture, info.parameters) == ("Q4_1", "llama", 320)
    assert tiny.info().context_size == 512
    assert info.created == int(tiny.path.stat().st_mtime)


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_no_name_from_outside_leaves_the_folder(name: str, store: ModelStore, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))

    assert store.find(name) is None
    with pytest.raises(StartupError, match="There is no model"):
        store.remove(name)

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../new", "a/../b", "", "..", ".x", "a\0", "x" * 5000, "con"])
def test_no_file_is_made_for_a_name_that_cannot_be_one(name: str, store: ModelStore) -> None:
    with pytest.raises(StartupError, match="cannot be a model's name"):
        store.file_for(name)


def test_a_file_that_changed_is_read_again_and_others_are_not(store: ModelStore) -> None:
    _, tiny = store.list()
    (store.folder / "cut.gguf").write_bytes(gguf())

    mended, same = store.list()

    assert mended.problem is None
    assert same is tiny


def test_a_split_model_is_one_entry_and_is_removed_whole(store: ModelStore) -> None:
    first, second = write_split_model(store.folder, "big")
    write_split_model(store.folder, "headless")[0].unlink()

    models = {model.id: model for model in store.list()}

    assert set(models) == {"big", "headless", "cut", "tiny"}
    assert models["big"].path == first
    assert models["big"].size_bytes == first.stat().st_size + second.stat().st_size
    assert "is part 2 of 2" in str(models["headless"].problem)
    store.remove("big")
    assert not first.exists()
    assert not second.exists()


def test_removing_takes_the_settings_beside_the_model_along(store: ModelStore) -> None:
    (store.folder / "tiny.toml").write_text("")
    (store.folder / "tiny-2.toml").write_text("")

    store.remove("tiny")

    assert [model.id for model in store.list()] == ["cut"]
    assert not (store.folder / "tiny.toml").exists()
    assert (store.folder / "tiny-2.toml").exists()


def test_a_model_argument_is_a_path_a_name_or_a_catalogue_entry(store: ModelStore, tmp_path: Path) -> None:
    catalog = load_catalog()
    outside = tmp_path / "secret.gguf"

    assert resolve_model_argument("tiny", store, catalog) == store.find("tiny")
    at_path = resolve_model_argument(str(outside), store, catalog)
    assert (at_path.id, at_path.path) == ("secret", outside)  # type: ignore[union-attr]
    assert resolve_model_argument("smollm2-135m-instruct", store, catalog) is catalog.default
    assert resolve_model_argument(None, store, catalog) is catalog.default
    write_model(store.folder / "smollm2-135m-instruct.gguf")
    assert resolve_model_argument(None, store, catalog) == store.find("smollm2-135m-instruct")


def test_a_model_argument_that_cannot_be_served_is_refused_in_one_line(store: ModelStore) -> None:
    with pytest.raises(BadModelFile, match=r"cut\.gguf is cut short"):
        resolve_model_argument("cut", store, load_catalog())
    with pytest.raises(BadModelFile, match=r"missing\.gguf does not exist"):
        resolve_model_argument("missing.gguf", store, load_catalog())
    with pytest.raises(StartupError, match=r"no model 'unknown'. Use one of cut, smollm2-135m-instruct, tiny, or"):
        resolve_model_argument("unknown", store, load_catalog())


def test_a_folder_that_cannot_be_read_is_explained(store: ModelStore) -> None:
    loop = store.folder / "loop"
    loop.symlink_to(loop)

    with pytest.raises(StartupError, match="cannot be listed"):
        ModelStore(loop).list()
