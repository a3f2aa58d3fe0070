"""The library over folders: made, copied, shown, removed, with everything inherited and nothing lost."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from pocketserver.chat import JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.models.catalog import Catalog
from pocketserver.models.installed import parameter_size
from pocketserver.models.library import CreateSpec, DiskLibrary, ModelSettings, Step, StoredMessage
from pocketserver.models.store import ModelStore, model_at
from tests.models.gguf_builder import gguf, write_model, write_split_model
from tests.models.test_names import HOSTILE
from tests.waiting import until

TEMPLATE = "{{ messages }}"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """`tiny` with settings, a split model `big`, and a broken one."""
    folder = tmp_path / "home" / "models"
    write_model(folder / "tiny.gguf")
    (folder / "tiny.toml").write_text('license = ["MIT"]\n[parameters]\nstop = ["<|end|>"]\ntemperature = 0.5\n')
    write_split_model(folder, "big")
    (folder / "cut.gguf").write_bytes(gguf()[:-1])
    return ModelStore(folder)


@pytest.fixture
def library(store: ModelStore) -> DiskLibrary:
    return DiskLibrary(store, Catalog({}))


async def steps_of(opened: AbstractAsyncContextManager[AsyncIterator[Step]]) -> list[Step]:
    async with opened as steps:
        return [step async for step in steps]


async def make(library: DiskLibrary, name: str, base: str | None = "tiny", **fields: object) -> list[Step]:
    spec = CreateSpec(name=name, base=base, **fields)  # type: ignore[arg-type]
    return await steps_of(library.create(spec, local_files=True))


def everything(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name != ".store.lock")


async def settings_of(library: DiskLibrary, name: str) -> ModelSettings:
    model = await library.find(name)
    assert model is not None
    return model.settings


async def refused(asking: "asyncio.Future[object] | object") -> Refusal:
    with pytest.raises(Refusal) as caught:
        await asking  # type: ignore[misc]
    assert "/pytest-" not in caught.value.message
    return caught.value


async def test_models_are_listed_newest_first_without_broken_ones(library: DiskLibrary, store: ModelStore) -> None:
    await make(library, "newest")

    models = await library.installed()

    assert models[0].name == "newest:latest"
    assert {model.id for model in models} == {"newest", "tiny", "big"}
    tiny = await library.find("TINY:Latest")
    assert tiny is not None
    assert (tiny.id, tiny.name, tiny.size_bytes, tiny.context_length) == ("tiny", "tiny:latest", len(gguf()), 512)
    assert (tiny.details.family, tiny.details.parameter_size, tiny.details.quantization_level) == (
        "llama",
        "320",
        "Q4_1",
    )
    assert (tiny.has_template, tiny.embedding_length, tiny.is_encoder) == (True, 64, False)
    cut = await library.find("cut")
    assert cut is not None
    assert "is cut short" in (cut.problem or "")


def test_sizes_are_written_as_ollama_writes_them() -> None:
    written = [parameter_size(count) for count in (320, 15_400, 134_515_008, 1_235_814_432, 70_553_706_496)]
    assert written == ["320", "15K", "134.52M", "1.2B", "70.6B"]


async def test_a_model_inherits_what_is_not_said(library: DiskLibrary) -> None:
    await make(library, "c1", system="S", parameters={"temperature": 0.1, "num_ctx": 256.0})
    messages = (StoredMessage(role="user", content="a"), StoredMessage(role="assistant", content="b"))
    await make(library, "c2", "C1:latest", messages=messages, parameters={"stop": "x"})

    first, second = await settings_of(library, "c1"), await settings_of(library, "c2")
    assert (first.system, first.license, first.parent) == ("S", ("MIT",), "tiny")
    assert first.parameters == {"stop": ["<|end|>"], "temperature": 0.1, "num_ctx": 256}
    assert (second.system, second.messages, second.parent) == ("S", messages, "c1")
    assert second.parameters == {"stop": ["x"], "temperature": 0.1, "num_ctx": 256}


async def test_a_model_can_be_made_over_itself_and_cleared(library: DiskLibrary) -> None:
    await make(library, "c1", system="S")
    await make(library, "C1", "c1", system="")

    settings = await settings_of(library, "c1")

    assert (settings.system, settings.parameters["temperature"]) == ("", 0.5)
    assert [model.id for model in await library.installed()].count("c1") == 1


async def test_weights_are_linked_and_stay_while_a_name_has_them(library: DiskLibrary, store: ModelStore) -> None:
    steps = await make(library, "ns/tiny:q4")
    await library.copy("ns/tiny:q4", "other")

    assert [step.status.split(" sha256")[0] for step in steps] == [
        "using existing layer",
        "writing manifest",
        "success",
    ]
    files = [store.folder / name for name in ("tiny.gguf", "ns+tiny@q4.gguf", "other.gguf")]
    assert len({file.stat().st_ino for file in files}) == 1
    await library.delete("tiny")
    await library.delete("ns/tiny:q4")
    assert files[2].read_bytes() == gguf()
    assert (await settings_of(library, "other")).parameters["stop"] == ["<|end|>"]
    await library.delete("OTHER")
    assert await library.find("other") is None


async def test_split_models_are_made_replaced_and_removed_whole(library: DiskLibrary, store: ModelStore) -> None:
    await library.copy("big", "second:b")
    await library.copy("tiny", "big")

    second = store.find("second:b")
    assert second is not None
    assert [path.name for path in second.weights] == [f"second@b-0000{part}-of-00002.gguf" for part in (1, 2)]
    assert second.problem is None
    assert not list(store.folder.glob("big-*"))
    await library.copy("second:b", "tiny")
    assert not (store.folder / "tiny.gguf").exists()
    await library.delete("tiny")
    assert not list(store.folder.glob("tiny*"))


async def test_a_local_file_is_a_base_for_callers_on_the_server_only(library: DiskLibrary, tmp_path: Path) -> None:
    outside = write_model(tmp_path / "outside.gguf")
    spec = CreateSpec(name="mine", base=str(outside), system="S")

    refusal = await refused(steps_of(library.create(spec)))
    await steps_of(library.create(spec, local_files=True))
    outside.unlink()

    assert (refusal.code, refusal.param) == (Code.INVALID_PARAMETER, "from")
    assert (await settings_of(library, "mine")).parent == "outside"
    assert (await library.show("mine")).system == "S"


@pytest.mark.parametrize(
    ("spec", "code", "param", "said"),
    [
        ({"name": ""}, Code.INVALID_PARAMETER, "model", "model is required"),
        ({"name": "../x"}, Code.INVALID_PARAMETER, "model", "invalid model name"),
        ({"base": None}, Code.INVALID_PARAMETER, "from", "neither 'from' or 'files' was specified; give 'from'"),
        ({"base": "nope"}, Code.MODEL_NOT_FOUND, "from", "model 'nope' not found"),
        ({"base": "cut"}, Code.INVALID_PARAMETER, "from", "is cut short"),
        ({"base": "/etc/passwd"}, Code.INVALID_PARAMETER, "from", "passwd is not a GGUF file"),
        ({"base": "./x.gguf"}, Code.INVALID_PARAMETER, "from", "must be absolute"),
        ({"base": "/no/where.gguf"}, Code.INVALID_PARAMETER, "from", "where.gguf does not exist"),
        (
            {"parameters": {"stop": "x", "num_ctx": "many"}},
            Code.INVALID_PARAMETER,
            "parameters.num_ctx",
            'option "num_ctx" must be of type integer',
        ),
        ({"parameters": {"colour": 3}}, Code.INVALID_PARAMETER, "parameters", "unknown parameter 'colour'"),
        ({"template": "{{ .Prompt"}, Code.INVALID_PARAMETER, "template", "template error"),
        ({"system": "\ud800"}, Code.INVALID_PARAMETER, None, "lone surrogate"),
        ({"modelfile": "FROM tiny\nPARAMETER x 1"}, Code.INVALID_PARAMETER, "modelfile", "Modelfile line 2: unknown"),
    ],
)
async def test_what_cannot_be_made_is_refused_before_anything_begins(
    spec: Mapping[str, JsonValue], code: Code, param: str | None, said: str, library: DiskLibrary, store: ModelStore
) -> None:
    before = sorted(path.name for path in store.folder.iterdir())

    refusal = await refused(_enter(library, CreateSpec(**{"name": "made", "base": "tiny", **spec})))

    assert (refusal.code, refusal.param) == (code, param)
    assert said in refusal.message
    assert sorted(path.name for path in store.folder.iterdir()) == before


async def _enter(library: DiskLibrary, spec: CreateSpec) -> None:
    async with library.create(spec, local_files=True):
        pass


@pytest.mark.parametrize("name", [*HOSTILE, "../catalog"])
async def test_no_name_reaches_outside_the_folder(name: str, library: DiskLibrary, tmp_path: Path) -> None:
    (tmp_path / "home" / "catalog.toml").write_text("")
    write_model(tmp_path / "home" / "x.gguf")
    before = everything(tmp_path)

    refusals = [
        await refused(_enter(library, CreateSpec(name=name, base="tiny"))),
        await refused(library.copy("tiny", name)),
        await refused(library.copy(name, "copy")),
        await refused(library.delete(name)),
        await refused(library.show(name)),
        await refused(_pull(library, name)),
    ]

    assert await library.find(name) is None
    assert {refusal.code for refusal in refusals} == {Code.INVALID_PARAMETER, Code.MODEL_NOT_FOUND}
    assert everything(tmp_path) == before


async def _pull(library: DiskLibrary, name: str) -> None:
    async with library.pull(name):
        pass


async def test_a_copy_onto_itself_makes_no_second_entry(library: DiskLibrary) -> None:
    await library.copy("tiny", "Tiny:latest")

    assert [model.id for model in await library.installed() if model.id.lower() == "tiny"] == ["tiny"]
    assert str(await refused(library.copy("nope", "x"))) == 'model "nope" not found'
    assert str(await refused(library.copy("tiny", "a b"))) == 'destination "a b" is invalid'


async def test_everything_is_shown_and_the_modelfile_makes_the_same_again(library: DiskLibrary) -> None:
    spec = CreateSpec(
        name="first",
        modelfile='FROM tiny\nSYSTEM """Say "ah".\nTwice."""\nPARAMETER stop b\nPARAMETER top_k 3\nMESSAGE user hi\n',
        template="{% for m in messages %}{{ m }}{% endfor %}",
    )
    await steps_of(library.create(spec))
    shown = await library.show("first")

    await steps_of(library.create(CreateSpec(name="again", modelfile=shown.modelfile)))

    again = await library.show("again")
    for name in ("system", "template", "parameters", "license", "model_info"):
        assert getattr(again, name) == getattr(shown, name)
    assert again.model.settings.messages == shown.model.settings.messages == (StoredMessage(role="user", content="hi"),)
    assert shown.system == 'Say "ah".\nTwice.'
    assert shown.parameters == (f'{"stop":<30} "b"\n{"temperature":<30} 0.5\n{"top_k":<30} 3')
    assert shown.license == "MIT"
    assert shown.model.settings.jinja_template == spec.template


async def test_metadata_is_shown_with_arrays_only_when_asked_for(library: DiskLibrary) -> None:
    info = (await library.show("tiny")).model_info
    verbose = (await library.show("tiny", verbose=True)).model_info

    assert info["general.architecture"] == "llama"
    assert info[f"{info['general.architecture']}.context_length"] == 512
    assert (info["general.parameter_count"], info["tokenizer.ggml.add_bos_token"]) == (320, True)
    assert info["tokenizer.ggml.tokens"] is None
    assert verbose["tokenizer.ggml.tokens"] == ["<s>", "</s>", "hello", "world"]
    assert "cut.gguf is cut short" in (await refused(library.show("cut"))).message


async def test_a_go_template_is_kept_and_the_models_own_is_used(library: DiskLibrary) -> None:
    steps = await make(library, "go", template="{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}")
    await make(library, "same", template=TEMPLATE)

    go, same = await library.find("go"), await library.find("same")

    assert steps[0].status.startswith("warning: The template is written for Go and only kept; the model's own is used")
    assert go is not None
    assert go.settings.jinja_template is None
    assert go.has_template
    assert (await library.show("go")).template.startswith("{{ if .System")
    assert same is not None
    assert same.settings.template == ""


async def test_leaving_a_creation_leaves_nothing(library: DiskLibrary, store: ModelStore) -> None:
    before = sorted(path.name for path in store.folder.iterdir())
    spec = CreateSpec(name="made", base="tiny")

    with pytest.raises(RuntimeError, match="hung up"):
        async with library.create(spec):
            raise RuntimeError("hung up")

    names = sorted(path.name for path in store.folder.iterdir() if path.name != ".store.lock")
    assert names in (before, sorted([*before, "made.gguf", "made.toml"]))


async def test_digests_are_stand_ins_until_they_are_known(store: ModelStore) -> None:
    known = hashlib.sha256(gguf()).hexdigest()
    library = DiskLibrary(store, Catalog({}))
    first, again = await library.find("tiny"), await library.find("tiny")
    assert first is not None
    assert first == again
    assert (first.digest_known, len(first.digest), first.digest != known) == (False, 64, True)

    async with library:
        await library.installed()
        await until(lambda: not store.digests.unknown(store.list()))
    await library.copy("tiny", "linked")

    fresh = DiskLibrary(ModelStore(store.folder), Catalog({}))
    models = {model.id: model for model in await fresh.installed()}
    assert (models["tiny"].digest, models["linked"].digest) == (known, known)
    parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(store.folder.glob("big-*"))]
    assert models["big"].digest == hashlib.sha256("".join(parts).encode()).hexdigest()
    assert all(model.digest_known for model in models.values())


async def test_a_faulty_settings_file_marks_its_model_alone(library: DiskLibrary, store: ModelStore) -> None:
    (store.folder / "tiny.toml").write_text("system = 3\n")

    tiny = await library.find("tiny")

    assert tiny is not None
    assert (tiny.problem or "").startswith("tiny.toml is no settings file of a model (Expected `str`, got `int`")
    assert [model.id for model in await library.installed()] == ["big"]
    (store.folder / "tiny.toml").write_text("[parameters]\ncolour = 3\n")
    assert "unknown parameter 'colour'" in str((await refused(library.show("tiny"))).message)


async def test_further_folders_and_a_served_file_are_only_read(store: ModelStore, tmp_path: Path) -> None:
    more = tmp_path / "more"
    write_model(more / "theirs.gguf")
    write_model(more / "tiny.gguf", name=None)
    served = model_at(write_model(tmp_path / "served.gguf"))
    library = DiskLibrary(ModelStore(store.folder, others=[more, tmp_path / "none"], also=(served,)), Catalog({}))

    assert {model.id for model in await library.installed()} == {"tiny", "big", "theirs", "served"}
    assert (await library.show("tiny")).license == "MIT"
    for name in ("theirs", "served"):
        assert "Remove" in (await refused(library.delete(name))).message
    await library.copy("theirs", "mine")
    await library.delete("mine")
    assert (more / "theirs.gguf").exists()


async def test_names_that_differ_in_case_only_are_one_model_and_it_is_said_once(store: ModelStore) -> None:
    write_model(store.folder / "TINY.gguf")
    warned: list[str] = []
    library = DiskLibrary(store, Catalog({}), warn=warned.append)

    await library.installed()
    models = await library.installed()

    assert [model.id for model in models if model.id.lower() == "tiny"] == ["TINY"]
    assert len([line for line in warned if "'tiny'" in line and "other capitals" in line]) == 1
    assert len([line for line in warned if "cut.gguf is cut short" in line]) == 1
