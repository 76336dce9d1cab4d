"""The recipes without a GPU: what passes through, what is refused, and the order of streams and events."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.recipes import (  # noqa: E402
    Branches,
    cuda_defaults,
    defaults,
    graphed,
    graphs,
    prefetch,
    prefetch_to_device,
)
from healthcheck.recipes.structure import map_tensors, tensors  # noqa: E402

pytestmark = pytest.mark.cpu
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible: nothing to refuse")
Sample = namedtuple("Sample", ["image", "label"])
ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


# Structures


def nested() -> dict[str, Any]:
    return {
        "plain": torch.tensor([1.0]),
        "named": Sample(torch.tensor([2.0]), 7),
        "list": [torch.tensor([3.0]), (torch.tensor([4.0]), "text", None)],
    }


def test_tensors_are_changed_wherever_they_are_and_all_else_stays() -> None:
    before = nested()
    after = map_tensors(lambda tensor: tensor * 10, before)
    assert [float(tensor) for tensor in tensors(after)] == [10.0, 20.0, 30.0, 40.0]
    assert [float(tensor) for tensor in tensors(before)] == [1.0, 2.0, 3.0, 4.0]
    assert (type(after["named"]), after["named"].label) == (Sample, 7)
    assert (type(after["list"]), type(after["list"][1]), after["list"][1][1:]) == (
        list,
        tuple,
        ("text", None),
    )


def test_mappings_keep_their_type_and_what_belongs_to_it() -> None:
    counts: defaultdict[str, Any] = defaultdict(list, x=torch.ones(1))
    changed = map_tensors(lambda tensor: tensor + 1, counts)
    assert (float(changed["x"]), changed["absent"], "absent" in counts) == (2.0, [], False)
    ordered = map_tensors(lambda tensor: tensor, OrderedDict(b=1, a=2))
    assert (type(ordered), list(ordered)) == (OrderedDict, ["b", "a"])


# Prefetching


def test_on_the_cpu_batches_of_any_iterable_pass_through_unchanged() -> None:
    batches = [nested(), torch.ones(3), "no tensor"]
    for source in (batches, iter(batches), (batch for batch in batches)):
        assert all(
            got is given for got, given in zip(prefetch_to_device(source, "cpu"), batches, strict=True)
        )


def test_on_the_cpu_the_exception_of_the_source_comes_out_and_closing_ends_it() -> None:
    seen = prefetch_to_device(failing_after(2), "cpu")
    assert [next(seen), next(seen)] == [0, 1]
    with pytest.raises(OSError, match="disk"):
        next(seen)
    closed: Any = prefetch_to_device([1, 2], "cpu")
    closed.close()
    assert list(closed) == []


def failing_after(count: int, made: Any = lambda i: i) -> Iterator[Any]:
    for i in range(count):
        yield made(i)
    raise OSError("the disk is gone")


def test_prefetching_refuses_a_depth_of_nothing_at_once() -> None:
    with pytest.raises(ValueError, match="depth is 0; needs at least 1"):
        prefetch_to_device([], depth=0)


@without_gpu
def test_prefetching_to_a_gpu_that_is_not_there_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="torch sees none; use device='cpu'"):
        prefetch_to_device([])


class FakeStream:
    """Writes down what it is told; its events say when the host waits for them."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def record_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(f"{self.name}{self.events}", self.log)

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.name}")


class FakeEvent:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams are told, with fakes for the current stream and for torch's switching to another."""
    told: list[str] = []
    current = FakeStream("main", told)

    @contextlib.contextmanager
    def switched(stream: FakeStream) -> Iterator[None]:
        told.append(f"on {stream.name}:")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current)
    monkeypatch.setattr(torch.cuda, "stream", switched)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    return told


def prefetched(source: Any, log: list[str], depth: int = 1) -> Any:
    """The machinery with fake streams, copying from the CPU to the CPU."""
    return prefetch._prefetched(source, torch.device("cpu"), FakeStream("side", log), depth)


def test_the_next_copy_starts_before_a_batch_is_handed_out_and_only_its_own_is_waited_for(
    log: list[str],
) -> None:
    batches = prefetched([torch.tensor(float(i)) for i in range(3)], log)
    assert float(next(batches)) == 0.0
    assert log == ["side waits for main", "on side:", "on side:", "main waits for side1"]
    log.clear()
    assert [float(batch) for batch in batches] == [1.0, 2.0]
    assert log == [
        "on side:",
        "main waits for side2",
        "host waits for main1",
        "main waits for side3",
        "host waits for main2",
    ]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_host_runs_no_further_ahead_than_said(depth: int, log: list[str]) -> None:
    """Before batch k is handed out, the work on batch k - depth - 2 and earlier is done."""
    for k, _ in enumerate(prefetched([torch.zeros(1)] * 8, log, depth)):
        waits = [line for line in log if line.startswith("host")]
        assert waits == [f"host waits for main{i}" for i in range(1, k - depth + 1)]
        copies = log.count("on side:")
        assert copies == min(8, k + depth + 1)
        assert copies - len(waits) <= 2 * depth + 2


def test_what_the_source_raises_comes_after_the_batches_before_it(log: list[str]) -> None:
    batches = prefetched(failing_after(3, lambda i: torch.tensor(float(i))), log, depth=2)
    assert [float(next(batches)) for _ in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert list(batches) == []


def test_closing_waits_for_the_copies_under_way_and_lets_go_of_the_source(log: list[str]) -> None:
    ended = []

    def source() -> Iterator[Any]:
        try:
            while True:
                yield torch.zeros(1)
        finally:
            ended.append(True)

    batches = prefetched(source(), log, depth=2)
    next(batches)
    log.clear()
    batches.close()
    assert log == ["host waits for side2", "host waits for side3"]
    assert ended == [True]


def test_every_tensor_of_a_nested_batch_is_copied(log: list[str]) -> None:
    (batch,) = prefetched([nested()], log)
    assert [float(tensor) for tensor in tensors(batch)] == [1.0, 2.0, 3.0, 4.0]
    assert type(batch["named"]) is Sample


def test_pageable_memory_is_refused_and_an_empty_tensor_is_not(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    (empty,) = prefetched([torch.zeros(0, 3)], log)
    assert tuple(empty.shape) == (0, 3)
    with pytest.raises(ValueError, match=r"shape \(4, 2\) in pageable memory; .* use DataLoader"):
        next(prefetched([[torch.zeros(4, 2)]], log))


# Branches


def test_on_the_cpu_pieces_run_in_turn() -> None:
    order = []
    branches = Branches(2, "cpu")
    assert branches.streams == ()
    assert branches([lambda i=i: order.append(i) or i * 10 for i in range(3)]) == [0, 10, 20]
    assert order == [0, 1, 2]


def forked(log: list[str], count: int) -> Branches:
    branches = Branches(count, "cpu")
    branches.streams = tuple(FakeStream(f"side{i}", log) for i in range(count))
    return branches


def test_side_streams_are_forked_and_joined_and_take_pieces_in_turn(log: list[str]) -> None:
    results = forked(log, 2)([lambda: torch.tensor(1), lambda: torch.tensor(2), lambda: torch.tensor(3)])
    assert [int(result) for result in results] == [1, 2, 3]
    assert log == [
        *("side0 waits for main", "side1 waits for main"),
        *("on side0:", "on side1:", "on side0:"),
        *("main waits for side0", "main waits for side1"),
    ]


def test_unused_streams_are_left_alone(log: list[str]) -> None:
    forked(log, 4)([lambda: 1])
    assert log == ["side0 waits for main", "on side0:", "main waits for side0"]


def test_streams_are_joined_when_a_piece_fails(log: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        forked(log, 2)([lambda: 1, lambda: 1 // 0])
    assert log[-2:] == ["main waits for side0", "main waits for side1"]


def test_branches_refuse_a_count_of_nothing() -> None:
    with pytest.raises(ValueError, match="count is 0"):
        Branches(0, "cpu")


@without_gpu
def test_branches_without_a_gpu_say_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="torch sees none; use device='cpu'"):
        Branches(2)


# Graphs


@without_gpu
def test_a_graph_without_a_gpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a CUDA graph needs a GPU, and torch sees none"):
        graphed(lambda x: x, torch.ones(1))


def test_a_graph_without_warming_up_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup is 0"):
        graphed(lambda: None, warmup=0)


@pytest.mark.parametrize(
    ("example", "error", "said"),
    [
        (3.0, TypeError, "example 0 is of type float"),
        (torch.ones(1), ValueError, r"example 0 is on cpu; .* use \.cuda\(\)"),
    ],
)
def test_examples_that_a_graph_cannot_take_are_refused(example: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        graphs._device((example,))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((), TypeError, "0 arguments; the graph was captured with 1"),
        ((1.0,), TypeError, "argument 0 is of type float; the graph takes tensors"),
        ((torch.ones(2, 4),), ValueError, r"shape \(2, 4\); the graph was captured with \(2, 3\)"),
        ((torch.ones(2, 3).half(),), ValueError, "dtype torch.float16; .* with torch.float32"),
        ((torch.ones(2, 3, device="meta"),), ValueError, "device meta; the graph was captured with cpu"),
    ],
)
def test_arguments_that_a_graph_cannot_take_are_refused(arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        graphs._check(arguments, (torch.zeros(2, 3),))


def test_arguments_like_the_examples_are_accepted_whatever_their_layout() -> None:
    graphs._check((torch.ones(3, 2).T,), (torch.zeros(2, 3),))


# Defaults


@pytest.fixture(autouse=True)
def settings_left_alone() -> Iterator[None]:
    """Every test has to leave the settings as it found them."""
    before = state()
    yield
    assert state() == before


def state() -> dict[str, Any]:
    return {
        "benchmark": torch.backends.cudnn.benchmark,
        "products": torch.get_float32_matmul_precision(),
        "convolutions": torch.backends.cudnn.allow_tf32,
        "precisions": [owner.fp32_precision for owner in defaults._precision_owners()],
        "environment": [os.environ.get(name) for name in ENVIRONMENT],
    }


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_set_for_products_and_convolutions_and_can_be_read_both_ways(allowed: bool) -> None:
    with cuda_defaults(tf32=allowed):
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        for owner in defaults._precision_owners():
            assert owner.fp32_precision == ("tf32" if allowed else "ieee")


def test_settings_made_by_a_program_come_back() -> None:
    """Whatever it had set, by whichever API its torch has."""
    precisions = [owner.fp32_precision for owner in defaults._precision_owners()]
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = False
    found = state()
    try:
        with cuda_defaults():
            assert torch.backends.cudnn.allow_tf32 is True
            assert state() != found
        assert state() == found
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        for owner, precision in zip(defaults._precision_owners(), precisions, strict=True):
            owner.fp32_precision = precision


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="fp32_precision came with torch 2.9"
)
def test_settings_of_the_newer_api_alone_come_back_where_the_older_cannot_be_read() -> None:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision
    matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new API"):
            torch.get_float32_matmul_precision()
        with cuda_defaults(tf32=False):
            assert torch.get_float32_matmul_precision() == "highest"
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "ieee")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before, "tf32"


def test_defaults_may_be_set_for_good_and_restored_once() -> None:
    settings = cuda_defaults()
    assert torch.backends.cudnn.benchmark is True
    settings.restore()
    settings.restore()
    assert torch.backends.cudnn.benchmark is False


def test_none_leaves_a_setting_as_it_is() -> None:
    before = state()
    with cuda_defaults(tf32=None, cudnn_benchmark=None, expandable_segments=None):
        assert state() == before


def test_what_was_found_comes_back_after_an_exception() -> None:
    with pytest.raises(KeyError), cuda_defaults():
        raise KeyError("x")
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize(
    ("version", "found", "name"),
    [
        ("2.6.0", (), "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.9.1+cu128", ("PYTORCH_ALLOC_CONF",), "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.10.0", (), "PYTORCH_ALLOC_CONF"),
        ("2.11.0+cu130", ("PYTORCH_CUDA_ALLOC_CONF",), "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.11.0+cu130", ENVIRONMENT, "PYTORCH_ALLOC_CONF"),
    ],
)
def test_the_variable_is_the_one_that_this_torch_obeys(
    version: str, found: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ENVIRONMENT:
        monkeypatch.delenv(each, raising=False)
    for each in found:
        monkeypatch.setenv(each, "max_split_size_mb:64")
    monkeypatch.setattr(torch, "__version__", version)
    assert defaults._variable() == name
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("found", "inside", "told"),
    [
        (
            None,
            "expandable_segments:True",
            ["expandable_segments:True", "expandable_segments:False"],
        ),
        (
            "max_split_size_mb:64",
            "max_split_size_mb:64,expandable_segments:True",
            [
                "max_split_size_mb:64,expandable_segments:True",
                "max_split_size_mb:64,expandable_segments:False",
            ],
        ),
        ("expandable_segments:False", "expandable_segments:False", []),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync", []),
    ],
)
def test_the_allocator_is_told_and_what_the_environment_says_already_stands(
    found: str | None, inside: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        heard: list[str] = []
        patch.setattr(defaults, "_tell_allocator", heard.append)
        patch.setattr(defaults, "_variable", lambda: "PYTORCH_CUDA_ALLOC_CONF")
        patch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
        if found is not None:
            patch.setenv("PYTORCH_CUDA_ALLOC_CONF", found)
        with cuda_defaults(tf32=None, cudnn_benchmark=None):
            assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == inside
        assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == found
        assert heard == told
