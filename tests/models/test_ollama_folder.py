"""An Ollama models folder read in place: its good models are served, its faults cost one model each, nothing is written."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from pocketserver.errors import Refusal
from pocketserver.models.catalog import Catalog
from pocketserver.models.library import CreateSpec, DiskLibrary
from pocketserver.models.store import ModelStore
from pocketserver.models.stored import StoredMessage
from tests.models.gguf_builder import gguf
from tests.models.test_library import refused, steps_of

GO = "{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}"


def blob(folder: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}"


def manifest(folder: Path, place: str, **layers: str) -> Path:
    path = folder / "manifests" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    described = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1}
        for kind, digest in layers.items()
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "config": {"digest": "x"}, "layers": described}))
    return path


@pytest.fixture
def ollama(tmp_path: Path) -> Path:
    """Good models `good`, `good:q6_K` and `ns/other`, and every kind of broken one."""
    folder, library = tmp_path / "ollama", "registry.ollama.ai/library"
    weights = blob(folder, gguf())
    manifest(
        folder,
        f"{library}/good/latest",
        model=weights,
        template=blob(folder, GO.encode()),
        system=blob(folder, b"Be good."),
        params=blob(folder, json.dumps({"stop": ["<e>"], "temperature": 1, "from_the_future": 3}).encode()),
        messages=blob(folder, json.dumps([{"role": "user", "content": "hi"}]).encode()),
        license=blob(folder, b"MIT"),
    )
    manifest(folder, f"{library}/good/q6_K", model=weights)
    manifest(folder, "registry.ollama.ai/ns/other/latest", model=weights)
    manifest(folder, f"{library}/missing/latest", model=f"sha256:{'0' * 64}")
    manifest(folder, f"{library}/outside/latest", model="sha256:../../../etc/shadow")
    manifest(folder, f"{library}/lora/latest", model=weights, adapter=weights)
    manifest(folder, f"{library}/weightless/latest", template=blob(folder, b"x"))
    manifest(folder, f"{library}/cut/latest", model=blob(folder, gguf()[:-1]))
    manifest(folder, f"{library}/odd/latest", model=weights, params=blob(folder, b"[1]"))
    (folder / "manifests" / library / "empty").mkdir()
    (folder / "manifests" / library / "empty" / "latest").write_text("")
    (folder / "manifests" / library / "text" / "latest").mkdir(parents=True)
    (folder / "manifests" / library / "words").mkdir()
    (folder / "manifests" / library / "words" / "latest").write_text("not JSON")
    return folder


@pytest.fixture
def library(tmp_path: Path, ollama: Path) -> DiskLibrary:
    return DiskLibrary(ModelStore(tmp_path / "models", ollama=ollama), Catalog({}))


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


async def test_good_models_are_listed_and_each_bad_one_is_named_once(tmp_path: Path, ollama: Path) -> None:
    warned: list[str] = []
    library = DiskLibrary(ModelStore(tmp_path / "models", ollama=ollama), Catalog({}), warn=warned.append)

    names = {model.name for model in await library.installed()}
    await library.installed()

    assert names == {"good:latest", "good:q6_K", "ns/other:latest"}
    reasons = {line.split("'")[1]: line for line in warned}
    assert len(warned) == len(reasons) == 9
    for name, said in {
        "missing:latest": "lacks sha256-000",
        "outside:latest": "which is no digest",
        "lora:latest": "LoRA adapter",
        "weightless:latest": "names no weights",
        "cut:latest": "is cut short",
        "odd:latest": "has parameters that are none",
        "empty:latest": "has a manifest that is none",
        "text:latest": "cannot be read",
        "words:latest": "has a manifest that is none",
    }.items():
        assert said in reasons[name]


async def test_a_models_layers_are_its_settings(library: DiskLibrary) -> None:
    shown = await library.show("registry.ollama.ai/library/Good")

    assert (shown.system, shown.template, shown.license) == ("Be good.", GO, "MIT")
    assert shown.model.settings.parameters == {"stop": ["<e>"], "temperature": 1.0}
    assert shown.model.settings.messages == (StoredMessage(role="user", content="hi"),)
    assert shown.model.settings.jinja_template is None
    assert shown.model.has_template
    assert (shown.model.digest, shown.model.digest_known) == (hashlib.sha256(gguf()).hexdigest(), True)


async def test_nothing_in_the_folder_is_ever_written(library: DiskLibrary, ollama: Path, tmp_path: Path) -> None:
    before = everything(ollama)

    refusal = await refused(library.delete("good"))
    await library.copy("good", "mine")
    await steps_of(library.create(CreateSpec(name="good", base="good:q6_k", system="S")))
    await library.delete("mine")

    assert "`ollama rm good`" in refusal.message
    assert everything(ollama) == before
    assert (await library.show("good")).system == "S"
    await library.delete("good")
    assert (await library.show("good")).system == "Be good."


async def test_a_copy_outlives_the_folder(library: DiskLibrary, ollama: Path) -> None:
    await library.copy("good", "mine")
    shutil.rmtree(ollama)

    shown = await library.show("mine")

    assert (shown.system, [model.id for model in await library.installed()]) == ("Be good.", ["mine"])
    with pytest.raises(Refusal, match="model 'good' not found"):
        await library.show("good")
