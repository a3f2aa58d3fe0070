"""The examples for people who test clients in other languages than Python run as they stand."""

from pathlib import Path

from tests.tools import POCKETSERVER, install_packages, needs, run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_javascript_example_passes(tmp_path: Path) -> None:
    folder = EXAMPLES / "javascript"
    install_packages(folder)

    said = run(
        ["node", "--test", "--test-reporter=tap"],
        folder,
        POCKETSERVER=str(POCKETSERVER),
        POCKETSERVER_HOME=str(tmp_path),
    )

    assert "\n# pass 5\n" in said
    assert "\n# fail 0\n" in said


def test_the_curl_example_passes(tmp_path: Path) -> None:
    needs("sh", "curl")

    said = run(["sh", "test.sh"], EXAMPLES / "curl", POCKETSERVER=str(POCKETSERVER), TMPDIR=str(tmp_path))

    assert said.splitlines() == [
        "ok: a chat is answered",
        "ok: a stream is answered",
        "ok: a whole stream ends with its mark",
        "ok: a busy phone says so",
        "ok: a broken stream has no mark",
        "ok: without a model it is unavailable",
    ]
    assert not list(tmp_path.iterdir())
