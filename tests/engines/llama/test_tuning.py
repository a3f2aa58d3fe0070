"""Measurements decide by a typical turn, exactness and what was set by hand; they are kept whole, for one machine."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from pocketserver.engines.llama import blas_library
from pocketserver.engines.llama.options import LlamaOptions
from pocketserver.engines.llama.runtime import Drafts, FlashAttention, KvType, Runtime, check
from pocketserver.engines.llama.tuning import Batch, Question, Row, TuningRecord, better, choose, drafts_that_pay
from pocketserver.engines.llama.tuning_memory import FOLDER, TuningMemory, record_key
from pocketserver.errors import Refusal
from tests.engines.llama.asking import answered, asking
from tests.engines.llama.conftest import MakeEngine
from tests.waiting import until

USUAL = Runtime(threads=2, threads_batch=2)


def format_row(kv_type: KvType, seconds: float, *, exact: bool, flash: FlashAttention = FlashAttention.ON) -> Row:
    return Row(
        question=Question.FORMAT,
        runtime=Runtime(threads=2, threads_batch=2, kv_type=kv_type, flash_attention=flash),
        prompt_empty=seconds,
        prompt_filled=seconds,
        generate_empty=seconds,
        generate_filled=seconds,
        batch_invariant=exact,
    )


def thread_row(threads: int, prompt: float, generate: float) -> Row:
    return Row(
        question=Question.THREADS,
        runtime=Runtime(threads=threads, threads_batch=threads),
        prompt_empty=prompt,
        prompt_filled=prompt,
        generate_empty=generate,
        generate_filled=generate,
    )


def given(**options: object) -> LlamaOptions:
    return LlamaOptions(model_id="m", path=Path("m"), state_folder=Path("s"), **options)  # type: ignore[arg-type]


def record(*rows: Row, busy: float = 0.0, attempts: int = 1) -> TuningRecord:
    return TuningRecord(build="b", safe_mode=False, usual=USUAL, rows=rows, busy=busy, attempts=attempts)


def test_an_exact_format_is_preferred_while_it_is_nearly_as_fast() -> None:
    fast = format_row(KvType.F16, 1.0, exact=False)
    near = choose(record(fast, format_row(KvType.Q8_0, 1.04, exact=True)), given())
    far = choose(record(fast, format_row(KvType.Q8_0, 1.06, exact=True)), given())
    assert (near.runtime.kv_type, near.batch_invariant) == (KvType.Q8_0, True)
    assert (far.runtime.kv_type, far.batch_invariant) == (KvType.F16, False)


def test_flash_attention_is_given_up_only_for_a_real_gain() -> None:
    lean = format_row(KvType.F16, 1.08, exact=False)
    near = choose(record(format_row(KvType.F16, 1.0, exact=False, flash=FlashAttention.OFF), lean), given())
    far = choose(record(format_row(KvType.F16, 0.9, exact=False, flash=FlashAttention.OFF), lean), given())
    assert near.runtime.flash_attention is FlashAttention.ON
    assert far.runtime.flash_attention is FlashAttention.OFF


def test_flash_attention_is_not_given_up_where_that_takes_much_memory() -> None:
    rows = (
        format_row(KvType.F16, 1.0, exact=False, flash=FlashAttention.OFF),
        format_row(KvType.F16, 1.2, exact=False),
    )
    measured = msgspec.structs.replace(record(*rows), heads=16)
    assert choose(measured, given(), 8192).runtime.flash_attention is FlashAttention.OFF
    assert choose(measured, given(), 8448).runtime.flash_attention is FlashAttention.ON


def test_a_disturbed_measurement_is_outweighed_by_a_second_one() -> None:
    disturbed, quiet = format_row(KvType.F16, 2.0, exact=True), format_row(KvType.F16, 1.0, exact=False)
    assert better(disturbed, quiet).turn_seconds == better(quiet, disturbed).turn_seconds == quiet.turn_seconds
    assert not better(disturbed, quiet).batch_invariant
    pairs = [(Batch(tokens=1, seconds=1.0), Batch(tokens=8, seconds=9.0)), (Batch(tokens=1, seconds=2.0),)]
    rows = [msgspec.structs.replace(quiet, batches=batches) for batches in pairs]
    assert better(*rows).batches == (Batch(tokens=1, seconds=1.0),)


def test_what_is_set_by_hand_wins() -> None:
    rows = (
        format_row(KvType.F16, 1.0, exact=False),
        format_row(KvType.BF16, 2.0, exact=True),
        format_row(KvType.F16, 3.0, exact=False, flash=FlashAttention.OFF),
        thread_row(2, 1.0, 1.0),
        thread_row(4, 0.5, 0.5),
    )
    assert choose(record(*rows), given(kv_type=KvType.BF16)).runtime.kv_type is KvType.BF16
    by_hand = choose(record(*rows), given(flash_attention=FlashAttention.OFF)).runtime
    assert by_hand.flash_attention is FlashAttention.OFF
    runtime = choose(record(*rows), given(threads=3, micro_batch=64)).runtime
    assert (runtime.threads, runtime.threads_batch, runtime.micro_batch) == (3, 3, 64)
    unmeasured = choose(record(), given(kv_type=KvType.Q8_0)).runtime
    assert unmeasured.kv_type is KvType.Q8_0


def test_other_threads_than_measured_make_no_promise_of_exactness() -> None:
    rows = record(format_row(KvType.Q8_0, 1.0, exact=True))
    assert choose(rows, given()).batch_invariant is True
    assert choose(rows, given(threads=7)).batch_invariant is None


def test_threads_for_prompts_and_for_generating_are_chosen_apart_and_noise_changes_nothing() -> None:
    chosen = choose(record(thread_row(1, 2.0, 0.5), thread_row(2, 1.0, 1.0)), given()).runtime
    assert (chosen.threads, chosen.threads_batch) == (1, 2)
    noisy = choose(record(thread_row(1, 2.0, 0.97), thread_row(2, 1.0, 1.0)), given()).runtime
    assert noisy.threads == 2


def blas_rows(plain: float, blas: float, *, exact: bool = True) -> tuple[Row, Row]:
    pair = [
        Row(
            question=Question.BLAS,
            runtime=Runtime(threads=2, threads_batch=2, blas=used),
            prompt_empty=seconds,
            prompt_filled=seconds,
            generate_empty=0.0,
            generate_filled=0.0,
            batch_invariant=exact if used else None,
        )
        for used, seconds in ((False, plain), (True, blas))
    ]
    return pair[0], pair[1]


def test_prompts_are_read_through_blas_where_that_is_a_tenth_faster() -> None:
    assert choose(record(*blas_rows(1.0, 0.5)), given()).runtime.blas
    assert not choose(record(*blas_rows(1.0, 0.95)), given()).runtime.blas
    assert not choose(
        record(blas_rows(1.0, 0.5)[0]), given()
    ).runtime.blas  # time ran out before the other was measured
    assert not choose(record(*blas_rows(1.0, 0.5)), given(blas=False)).runtime.blas
    assert choose(record(), given(blas=True)).runtime.blas


def test_a_format_stays_exact_with_blas_only_when_blas_is() -> None:
    fast = format_row(KvType.Q8_0, 1.0, exact=True)
    assert choose(record(fast, *blas_rows(1.0, 0.5)), given()).batch_invariant is True
    assert choose(record(fast, *blas_rows(1.0, 0.5, exact=False)), given()).batch_invariant is False


def test_until_a_quieter_start_the_usual_values_are_used() -> None:
    rows = (thread_row(1, 0.1, 0.1), thread_row(2, 9.0, 9.0), *blas_rows(1.0, 0.5))
    assert choose(record(*rows, busy=0.5), given()).runtime == USUAL
    assert choose(record(*rows, busy=0.5, attempts=3), given()).runtime.threads == 1


def test_drafts_are_as_long_as_batches_pay() -> None:
    def batches(eight: float, sixteen: float) -> tuple[Batch, ...]:
        seconds = {1: 1.0, 8: eight, 16: sixteen}
        return tuple(Batch(tokens=tokens, seconds=value) for tokens, value in seconds.items())

    assert drafts_that_pay(batches(2.0, 4.0)) == Drafts(tokens=15, break_even=3 / 15)
    assert drafts_that_pay(batches(4.5, 14.0)) == Drafts(tokens=7, break_even=3.5 / 7)
    assert drafts_that_pay(batches(7.0, 14.0)) == Drafts()
    assert drafts_that_pay(()) == Drafts()


def test_a_quantised_cache_without_flash_attention_is_refused() -> None:
    with pytest.raises(Refusal, match="flash"):
        check(KvType.Q8_0, FlashAttention.OFF)
    check(KvType.Q8_0, FlashAttention.AUTO)


def test_records_are_kept_whole_and_damaged_ones_count_as_none(tmp_path: Path) -> None:
    memory, key = TuningMemory(tmp_path), record_key("hash", "machine")
    assert memory.get(key) is None
    kept = record(thread_row(1, 1.0, 1.0))
    memory.put(key, kept)
    assert memory.get(key) == kept
    assert [file.name for file in (tmp_path / FOLDER).iterdir()] == [f"{key}.json"]
    (tmp_path / FOLDER / f"{key}.json").write_text('{"rows": [')
    assert memory.get(key) is None
    assert record_key("hash", "other") != key != record_key("other", "machine")


def test_what_a_busy_machine_measured_is_measured_again_but_not_for_ever() -> None:
    assert record().is_settled
    assert not record(busy=0.6).is_settled
    assert record(busy=0.6, attempts=3).is_settled


@pytest.mark.real_model
async def test_a_model_is_measured_once_and_runs_as_it_was_chosen(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(tuning=True, tuning_seconds=0.1, threads=None)
    await engine.start()
    await engine.loaded()
    tuned = engine.tuned
    assert tuned is not None
    formats = [row for row in tuned.record.rows if row.question is Question.FORMAT]
    assert formats
    assert all(row.prompt_empty > 0 and row.turn_seconds > 0 for row in formats)
    assert {batch.tokens for batch in formats[0].batches} == {1, 8, 16}
    assert engine.status.runtime == str(tuned.choice.runtime)
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas
    await engine.close()

    files = list((tmp_path / FOLDER).iterdir())
    settled = TuningMemory(tmp_path)
    settled.put(files[0].stem, TuningRecord(build="b", safe_mode=False, usual=USUAL, rows=formats_of(tuned.record)))
    again = make_engine(tuning=True, tuning_seconds=0.1, threads=None)
    await again.start()
    await again.loaded()
    assert again.tuned is not None
    assert again.tuned.record.build == "b"  # not measured again


@pytest.mark.real_model
async def test_formats_are_measured_with_the_threads_that_are_set(make_engine: MakeEngine) -> None:
    engine = make_engine(tuning=True, tuning_seconds=12.0, threads=1)
    await engine.start()
    await engine.loaded()
    assert engine.tuned is not None
    rows = engine.tuned.record.rows
    assert {(row.runtime.threads, row.runtime.threads_batch) for row in rows} == {(1, 1)}
    assert Question.THREADS not in {row.question for row in rows}
    tried = {row.runtime.blas for row in rows if row.question is Question.BLAS}
    assert tried == ({False, True} if blas_library.installed() else set())


def formats_of(measured: TuningRecord) -> tuple[Row, ...]:
    return tuple(row for row in measured.rows if row.question is Question.FORMAT)


@pytest.mark.real_model
async def test_measuring_that_is_interrupted_leaves_nothing(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(tuning=True, threads=None)
    await engine.start()
    await until(lambda: engine.status.tuning_progress is not None)
    await engine.close()
    assert not list(await asyncio.to_thread(tmp_path.rglob, f"{FOLDER}/*"))


@pytest.mark.real_model
async def test_a_crash_in_the_probe_leads_to_safe_mode_with_tuning_too(make_engine: MakeEngine) -> None:
    engine = make_engine(tuning=True, tuning_seconds=0.1, abort_in_probe_with_extra_buffers=True)
    await engine.start()
    await engine.loaded()
    assert engine.status.safe_mode
    assert engine.tuned is not None
    assert engine.tuned.record.safe_mode
