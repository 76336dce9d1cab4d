"""The recipes on a real GPU: right results while copies and branches are late, and clear refusals."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.recipes import Branches, cuda_defaults, graphed, prefetch_to_device  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
LONG = 5_000_000  # clock cycles: some milliseconds


def pinned(value: float, *shape: int) -> Any:
    return torch.full(shape or (256, 1024), value).pin_memory()


# Prefetching


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_batch_arrives_unchanged_while_the_consumer_is_slow(depth: int) -> None:
    seen = []
    for batch in prefetch_to_device([pinned(i) for i in range(12)], depth=depth):
        torch.cuda._sleep(LONG // 10)
        seen.append(batch * 2)
    assert [(float(x.min()), float(x.max())) for x in seen] == [(2.0 * i, 2.0 * i) for i in range(12)]


def test_a_batch_is_not_read_before_a_late_copy_has_arrived() -> None:
    side = torch.cuda.Stream()
    batches = [pinned(i + 1.0) for i in range(4)]
    seen = []
    for batch in prefetch_to_device(batches, stream=side):
        seen.append(batch.sum())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
    assert [float(x) for x in seen] == [(i + 1.0) * 256 * 1024 for i in range(4)]


def test_memory_is_not_reused_while_a_late_reader_still_needs_it() -> None:
    """The consumer is a stream of its own that starts late; batches are dropped at once."""
    consumer = torch.cuda.Stream()
    seen = []
    with torch.cuda.stream(consumer):
        for batch in prefetch_to_device([pinned(i + 1.0) for i in range(16)]):
            torch.cuda._sleep(LONG // 5)
            seen.append(batch.sum())
            del batch
    consumer.synchronize()
    assert [float(x) for x in seen] == [(i + 1.0) * 256 * 1024 for i in range(16)]


def test_no_more_batches_than_said_lie_on_the_gpu() -> None:
    """A consumer that never waits: 2 x depth + 2 batches, and one whose copy is still under way."""
    size = 8 * 2**20
    batches = [torch.zeros(size, dtype=torch.uint8).pin_memory()] * 40
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]  # with what other streams still read
    torch.cuda.reset_peak_memory_stats()
    for batch in prefetch_to_device(batches):
        torch.cuda._sleep(LONG // 5)
        batch.add_(1)
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= 5 * size


def test_nested_batches_keep_their_form_and_what_is_no_tensor() -> None:
    already = torch.ones(2, device="cuda")
    batch = {"x": (pinned(1.0, 4), [pinned(2.0, 4)]), "name": "first", "there": already}
    (got,) = prefetch_to_device([batch])
    x, (y,) = got["x"]
    assert (x.is_cuda, y.is_cuda, got["name"], got["there"] is already) == (True, True, "first", True)
    assert (float(x.sum()), float(y.sum())) == (4.0, 8.0)


def test_an_exception_of_the_source_comes_after_the_batches_before_it() -> None:
    def source() -> Iterator[Any]:
        yield pinned(1.0)
        yield pinned(2.0)
        raise OSError("the disk is gone")

    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        for batch in prefetch_to_device(source(), depth=3):
            seen.append(float(batch[0, 0]))
    assert seen == [1.0, 2.0]


def test_closing_early_leaves_the_gpu_usable() -> None:
    batches: Any = prefetch_to_device([pinned(i) for i in range(8)], depth=3)
    assert float(next(batches)[0, 0]) == 0.0
    batches.close()
    assert list(batches) == []
    assert float(torch.ones(4, device="cuda").sum()) == 4.0


def test_pageable_memory_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"pin_memory\(\)"):
        list(prefetch_to_device([torch.zeros(4)]))


# Graphs


def test_a_graph_computes_anew_from_each_input() -> None:
    weight = torch.randn(64, 64, device="cuda")
    step = graphed(lambda x: torch.relu(x @ weight) + 1, torch.zeros(8, 64, device="cuda"))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(8, 64, device="cuda")
        assert torch.allclose(step(x).clone(), torch.relu(x @ weight) + 1, atol=1e-4)


def test_a_graph_keeps_alive_what_only_its_function_holds() -> None:
    def make() -> Any:
        weight = torch.full((4,), 3.0, device="cuda")
        return graphed(lambda x: x * weight, torch.zeros(4, device="cuda"))

    step = make()
    gc.collect()
    torch.cuda.empty_cache()
    junk = [torch.zeros(4, device="cuda") for _ in range(100)]
    assert step(torch.ones(4, device="cuda")).tolist() == [3.0] * 4
    assert len(junk) == 100


def test_a_graph_without_inputs_reads_its_tensors_where_they_lie() -> None:
    x = torch.ones(4, device="cuda")
    double = graphed(lambda: x * 2)
    assert double().tolist() == [2.0] * 4
    x.fill_(5.0)
    assert double().tolist() == [10.0] * 4


def test_what_a_graph_cannot_take_is_refused_in_words() -> None:
    step = graphed(lambda x: x + 1, torch.zeros(2, 3, device="cuda"))
    with pytest.raises(ValueError, match=r"shape \(2, 4\); the graph was captured with \(2, 3\)"):
        step(torch.zeros(2, 4, device="cuda"))
    with pytest.raises(ValueError, match=r"dtype torch\.float16"):
        step(torch.zeros(2, 3, device="cuda", dtype=torch.float16))
    with pytest.raises(ValueError, match="device cpu"):
        step(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="2 arguments"):
        step(torch.zeros(2, 3, device="cuda"), 1)
    with pytest.raises(ValueError, match=r"on cpu; .* use \.cuda\(\)"):
        graphed(lambda x: x, torch.zeros(2))


def test_a_function_that_cannot_be_captured_fails_and_leaves_the_gpu_usable() -> None:
    with pytest.raises(RuntimeError):
        graphed(lambda x: x * x.sum().item(), torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    assert float(torch.ones(4, device="cuda").sum()) == 4.0


# Branches


def test_results_of_late_branches_are_waited_for() -> None:
    branches = Branches(4)
    x = torch.ones(1000, device="cuda")

    def piece(i: int) -> Any:
        torch.cuda._sleep(LONG)
        return x * i

    results = branches([lambda i=i: piece(i) for i in range(6)])
    assert [float(result.sum()) for result in results] == [1000.0 * i for i in range(6)]


def test_branches_start_after_what_was_queued_before_them() -> None:
    x = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(LONG)
    x.fill_(3.0)
    (result,) = Branches(2)([lambda: x + 1])
    assert float(result.sum()) == 4000.0


def test_results_survive_further_branches() -> None:
    """Memory of a side stream, used late on the current one, must not be handed out again meanwhile."""
    branches = Branches(2)
    sums = []
    for i in range(20):
        left, right = branches([lambda i=i: torch.full((2**20,), float(i), device="cuda") for _ in range(2)])
        torch.cuda._sleep(LONG // 20)
        sums.append(left[:4].sum() + right[:4].sum())
        del left, right
    assert [float(s) for s in sums] == [8.0 * i for i in range(20)]


def test_branches_become_branches_of_a_graph() -> None:
    branches = Branches(4)

    def work(x: Any) -> tuple[Any, ...]:
        return tuple(branches([lambda i=i: (x + i).square() for i in range(4)]))

    both = graphed(work, torch.zeros(1000, device="cuda"))
    for value in (1.0, 2.0):
        results = both(torch.full((1000,), value, device="cuda"))
        assert [float(result[0]) for result in results] == [(value + i) ** 2 for i in range(4)]
    assert len(branches.streams) == 4


# Defaults


def test_defaults_reach_the_allocator_and_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)

    def expandable() -> bool:
        return bool(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])

    torch.ones(1, device="cuda")
    before = expandable()
    with cuda_defaults():
        assert expandable() is True
        assert torch.ones(10, device="cuda").sum().item() == 10
    assert before is False
    assert expandable() is False


def test_tf32_rounds_products_and_its_absence_does_not() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 came with Ampere (compute capability 8.0)")
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()

    def error(allowed: bool) -> float:
        with cuda_defaults(tf32=allowed, cudnn_benchmark=None, expandable_segments=None):
            return float((a @ b - exact).norm() / exact.norm())

    assert error(False) < 1e-5 < error(True) < 1e-2
