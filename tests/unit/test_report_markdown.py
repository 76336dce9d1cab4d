"""The page holds conditions, results, limits, activity, claims and findings, and is whole Markdown."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import HEALTHY, START_UP, benchmark, report_of, variant

from healthcheck.judge import claims
from healthcheck.report import markdown
from healthcheck.report.model import Benchmark

CONDITIONS = {"torch": "2.8.0+cu128", "batch": 64, "float32_matmul_precision": "highest"}


def page(*benchmarks: Benchmark) -> str:
    return markdown.render(report_of(benchmarks=benchmarks or START_UP, command="bench run"))


def tables_of(text: str) -> list[list[str]]:
    """The lines of each table."""
    return [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def test_the_page_has_every_section_in_its_order() -> None:
    found = tuple(b.model_copy(update={"conditions": CONDITIONS}) for b in START_UP)
    headings = [line for line in page(*found).splitlines() if line.startswith(("# ", "## "))]
    assert headings == [
        "# Results on NVIDIA GeForce RTX 4090 D",
        "## Conditions",
        "## Summary",
        "## Attention",
        "## Compilation",
        "## Streams",
        "## Held against what is possible",
        "## Utilisation",
        "## Published figures",
        "## What does not add up on paper",
    ]


def test_the_page_names_version_torch_build_and_time() -> None:
    text = page(*(b.model_copy(update={"torch": "2.8.0+cu128"}) for b in START_UP))
    assert "`bench run`, 2026-01-02 00:00 UTC, torch 2.8.0+cu128, build 0123456789abcdef." in text
    assert "| driver's CUDA | 12.4 |" in text


def test_rows_are_those_of_the_tables() -> None:
    text = page()
    assert "| compile blocks | eager | 3 | torch.compile | 1.5 | 2.00x | - |" in text
    assert "| blocks | torch.compile | 1.5 | 2.00x | 2.00x | 6 | - | 4,000 calls |" in text
    assert "| attention L2048 | 98 % | 96 MiB |" in text
    assert "| forward causal bf16 | flash |" in text
    assert (
        "| ResNet-50 b64: eager | 58.3 ms | - | >= 3.56 ms | not comparable | another workload was measured"
        in text
    )


def test_every_finding_is_there_with_its_sums() -> None:
    text = page()
    for finding in claims.load().findings:
        assert f"### {finding.title}" in text
        for each in finding.sums:
            assert f"- `{each.formula}` = {each.gives}" in text
    assert text.count("An argument, not a measurement") == 1


def test_what_a_claim_leaves_open_is_listed() -> None:
    assert "- Stable Diffusion 1.5, 512 x 512: plain: number of steps, scheduler, batch" in page()


def test_a_note_is_told_once_with_all_its_variants() -> None:
    text = page(benchmark(variant("a", notes=["TF32 on"]), variant("b", notes=["TF32 on", "noisy"])))
    assert "- a, b: TF32 on\n- b: noisy\n" in text


def test_without_benchmarks_there_is_still_a_page() -> None:
    text = markdown.render(report_of(command="bench run"))
    assert text.startswith("# Results on cuda\n") and "## Summary" not in text


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_whatever_a_label_holds_every_table_stays_a_table(label: str, workload: str, note: str) -> None:
    found = benchmark(variant("a", label=label, notes=[note]), workload=workload, case=label, title=note)
    text = markdown.render(report_of(HEALTHY, benchmarks=(found,), command="bench run"))
    for table in tables_of(text):
        assert {cells(line) for line in table} == {cells(table[0])}
        assert all(line.startswith("| ") and line.endswith(" |") for line in table)
