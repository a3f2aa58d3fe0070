"""The Prometheus example as it is shipped, with the addresses of a test and a tempo that a test can wait for."""

import re
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "prometheus"
KEY = "sk-only-for-this-test"


def prepared(folder: Path, *targets: str) -> str:
    """The example's configuration with its rules and its key file beside it, every second in place of fifteen."""
    for rules in FOLDER.glob("*.rules.yml"):
        hurried = re.sub(r"^(\s+for:) \w+$", r"\1 1s", rules.read_text(), flags=re.MULTILINE)
        (folder / rules.name).write_text(hurried)
    (folder / "pocketserver.key").write_text(KEY + "\n")
    config = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s")
    listed = ", ".join(f'"{target}"' for target in targets)
    assert '["192.168.1.20:8080"]' in config
    return config.replace('["192.168.1.20:8080"]', f"[{listed}]")


def copied(folder: Path) -> Path:
    """The example in a folder of its own, the key file included, for tools that look at files only."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "pocketserver.key").write_text(KEY + "\n")
    return folder
