"""The YAML grid: what it expands to, and what it refuses in one sentence."""

from __future__ import annotations

import pytest
import yaml

from kvcomp_eval.compare.config import Cell, ConfigError, Row, budget_text, load_config, shipped_configs, with_limit
from tests.compare import synthetic

GOOD = {
    "name": "good",
    "model": {"family": "qwen2_5_vl", "args": {"pretrained": "demo"}},
    "methods": ["snapkv", {"method": "random", "budgets": [64]}],
    "budgets": [0.1, 0.2],
    "tasks": ["some_task", {"task": "other", "limit": 3, "metric": "anls"}],
    "limit": 7,
}


def load(tmp_path, **changes):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(GOOD | changes))
    return load_config(path)


def test_rows_are_methods_times_budgets_with_the_full_cache_first(tmp_path):
    rows = load(tmp_path).rows()
    assert [row.name for row in rows] == ["full", "snapkv @ 10 %", "snapkv @ 20 %", "random @ 64 entries"]


def test_cells_take_limits_and_metrics_of_their_task(tmp_path):
    cells = load(tmp_path).cells({"some_task": ["some_task"], "other": ["other_a", "other_b"]})
    assert {(cell.task, cell.limit, cell.metric) for cell in cells} == {
        ("some_task", 7, None),
        ("other_a", 3, "anls"),
        ("other_b", 3, "anls"),
    }
    assert len(cells) == 4 * 3
    assert len({cell.key for cell in cells}) == len(cells)


def test_budgets_become_ratios_up_to_one_and_entries_above(tmp_path):
    rows = load(tmp_path).rows()
    assert rows[1].make(0).budget_ratio == 0.1
    assert rows[3].make(0).budget_entries == 64


def test_the_seed_of_a_cell_reaches_methods_that_have_one_unless_the_file_sets_it(tmp_path):
    assert load(tmp_path).rows()[3].make(5).seed == 5
    fixed = load(tmp_path, methods=[{"method": "random", "parameters": {"seed": 9}}])
    assert fixed.rows()[1].make(5).seed == 9


def test_the_reference_is_the_first_compressed_method_unless_named(tmp_path):
    assert load(tmp_path).reference_label == "snapkv"
    assert load(tmp_path, reference="random").reference_label == "random"


def test_with_limit_replaces_every_limit(tmp_path):
    cells = with_limit(load(tmp_path), 2).cells({"some_task": ["a"], "other": ["b"]})
    assert {cell.limit for cell in cells} == {2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["snapvk"]}, r"'snapvk' is not known \(did you mean 'snapkv'"),
        (
            {"methods": [{"method": "snapkv", "parameters": {"windw": 1}}]},
            r"no parameter 'windw' \(did you mean 'window'",
        ),
        ({"methods": ["snapkv", "snapkv"]}, "snapkv at 10 %.* occurs more than once"),
        ({"methods": ["snapkv"], "budgets": []}, "method snapkv has no budget; give budgets"),
        ({"budgets": [0]}, r"budgets.0: .*greater than 0 \(got 0\)"),
        ({"budget": [0.1]}, "budget is not a known setting"),
        ({"model": {"family": "qwen"}}, "'qwen' is not a family"),
        ({"model": {"family": "qwen2_vl", "args": {"budget_ratio": 1}}}, "args.budget_ratio is set by the grid"),
        (
            {"model": {"family": "qwen2_vl", "args": {"reference": "auto"}}},
            "args.reference='auto' would make .* fidelity to its own full row; drop it",
        ),
        ({"tasks": ["milebench_fidelity"]}, "'milebench_fidelity' scores nothing but fidelity.*; use 'milebench'"),
        ({"tasks": [{"task": "demo_fidelity", "limit": 1}]}, "tasks.0.*; use 'demo'"),
        ({"reference": "lookm2"}, "no method is called 'lookm2'"),
        (
            {"paper": [{"source": "t", "columns": ["some_task a"], "rows": {"snapkv": [1]}}]},
            "paper: no row is called snapkv; rows are .*snapkv @ 10 %",
        ),
        (
            {"paper": [{"source": "t", "columns": ["some_task a"], "rows": {"snapkv @ 10 %": []}}]},
            "row 'snapkv @ 10 %' has 0 numbers for 1 columns",
        ),
        ({"tasks": []}, "tasks: .*at least 1 item"),
        ({"seeds": [1, 1]}, "seeds: 1 occurs more than once"),
        ({"name": "a/b"}, "name: .*pattern"),
    ],
)
def test_wrong_files_are_refused_with_place_and_remedy(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, **changes)
    assert str(caught.value).startswith(str(tmp_path / "grid.yaml"))
    assert "\n" not in str(caught.value)


def test_references_that_are_off_are_no_fault(tmp_path):
    assert load(tmp_path, model={"family": "qwen2_vl", "args": {"reference": "off"}}).rows()


def test_a_file_that_is_no_mapping_or_no_yaml_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("- a\n- b")
    with pytest.raises(ConfigError, match="must hold a mapping"):
        load_config(path)
    path.write_text("{a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(path)


def test_an_unknown_name_lists_what_ships():
    with pytest.raises(ConfigError, match="did you mean 'demo'.*shipped are: .*ci.*demo"):
        load_config("dem")


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_shipped_configuration_is_valid_and_named_like_its_file(name):
    assert load_config(name).name == name


def test_a_row_with_its_budget_is_told_from_the_same_method_with_another():
    rows = [Row("a", "snapkv", {}, budget) for budget in (0.1, 0.125, 64, None)]
    assert [budget_text(row.budget) for row in rows] == ["10 %", "12.5 %", "64 entries", "100 %"]
    assert len({Cell(row, "t", None, 0).key for row in rows}) == 4


def test_the_stored_form_of_a_configuration_gives_the_same_cells():
    made = synthetic.config()
    again = type(made).model_validate(made.model_dump())
    assert again.cells({synthetic.TASK: ["t"]}) == made.cells({synthetic.TASK: ["t"]})
