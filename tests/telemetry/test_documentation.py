"""What docs/metrics.md lists is what the server exposes: names, types, labels, reasons. Its queries are PromQL."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pocketserver.errors import Code
from pocketserver.telemetry.metrics import Metrics
from pocketserver.telemetry.present import Sources
from pocketserver.telemetry.request_figures import REJECTED
from tests.telemetry.prometheus_bed import need
from tests.telemetry.test_metrics import CHAT, Device, answer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class OtherServer:
    name: str = "192.0.2.1:8080"
    healthy: bool = True
    outcomes: dict[str, int] = field(default_factory=lambda: {"accepted": 1})


def rows(first: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    lines = PAGE[PAGE.index(first) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def exposed() -> dict[str, tuple[str, set[str]]]:
    """Name, type and labels of everything that a server can tell which has a model's process and an upstream."""
    device = Device()
    known = device.sources()
    metrics = Metrics(routes=(CHAT,))
    metrics.watch(Sources(status=known.status, models=known.models, lane=known.lane, upstreams=lambda: [OtherServer()]))
    answer(metrics)
    metrics.observe_request(route=CHAT, status=200, error=None, key="main")
    found = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[family.name + suffix] = (family.type, labels)
    return found


def test_it_lists_every_metric_with_its_type_and_labels() -> None:
    listed = {name.strip("`"): (kind, words(labels)) for name, kind, labels, _ in rows("| Metric |")}

    assert listed == exposed()


def test_it_lists_every_reason() -> None:
    listed = {code: reason.strip("`") for reason, codes in rows("| `reason` | Code") for code in words(codes)}

    assert listed == {code.value: reason for code, reason in REJECTED.items()}
    assert set(listed) <= {code.value for code in Code}


def test_its_queries_are_promql_over_metrics_that_exist(tmp_path: Path) -> None:
    [block] = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    queries = [part.partition("\n")[2].strip() for part in block.split("\n\n")]
    rules = "".join(f"      - {{record: 'a:b:c{number}', expr: '{query}'}}\n" for number, query in enumerate(queries))
    (tmp_path / "rules.yml").write_text(f"groups:\n  - name: queries\n    rules:\n{rules}")

    checked = subprocess.run(
        [need("promtool"), "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stderr
    assert f"{len(queries)} rules found" in checked.stdout
    names = {name.removesuffix("_bucket") for name in re.findall(r"\bpocketserver_\w+", block)}
    assert names <= exposed().keys()
