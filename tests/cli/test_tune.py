"""`tune` shows each measured way, what is used, and whether another build would pay; for people and for programs."""

import json

import pytest

from pocketserver.cli import tune
from pocketserver.engines.llama.process import Tuned
from pocketserver.engines.llama.runtime import Drafts, KvType, Runtime
from pocketserver.engines.llama.tuning import Choice, Question, Row, TuningRecord

USUAL = Runtime(threads=2, threads_batch=2)
ROW = Row(
    question=Question.FORMAT,
    runtime=Runtime(threads=1, threads_batch=2, kv_type=KvType.Q8_0),
    prompt_empty=0.004,
    prompt_filled=0.005,
    generate_empty=0.01,
    generate_filled=0.02,
    batch_invariant=True,
)


def tuned(*rows: Row, busy: float = 0.0, drafts: int = 0) -> Tuned:
    record = TuningRecord(build="CPU", safe_mode=False, usual=USUAL, rows=rows, busy=busy, crashed=not rows)
    return Tuned(
        record=record,
        choice=Choice(runtime=ROW.runtime, drafts=Drafts(tokens=drafts), batch_invariant=True),
        version="1.2.3 (4)",
        build="CPU : AVX2 = 1 |",
    )


def test_the_table_and_the_choice_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tune.show(tuned(ROW, drafts=7))
    shown = capsys.readouterr().out
    for part in ("1/2", "q8_0", "250", "200", "100", "50", "4.50 s", "yes", "drafts of up to 7 tokens", "AVX2"):
        assert part in shown
    assert "--again" not in shown


def test_a_busy_machine_and_a_crash_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    tune.show(tuned(ROW, busy=0.5))
    assert "50%" in capsys.readouterr().out
    tune.show(tuned())
    assert "Nothing was measured" in capsys.readouterr().out


def test_the_document_holds_everything_and_is_json() -> None:
    document = json.loads(json.dumps(tune.document(tuned(ROW), ["It is slow."], "make it")))
    assert document["choice"]["runtime"]["kv_type"] == "q8_0"
    assert document["measured"]["rows"][0]["turn_seconds"] == pytest.approx(4.5)
    assert document["build"]["rebuild"] == "make it"
