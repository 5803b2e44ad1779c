"""Every mistake in a study, a model or a cluster is one sentence, and nothing else happens."""

from pathlib import Path

import pytest
import yaml

from scaling.cli.verbs import main
from scaling.errors import InputError
from scaling.study import grid
from scaling.study.inputs import study_path
from scaling.study.load import load_clusters, load_models, load_study
from scaling.study.paths import SHIPPED
from scaling.study.study import replication_queries
from tests.conftest import CLUSTERS, MODELS, PROJECT
from tests.study.malformed import MALFORMED, changed


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_study_is_told_in_one_sentence(name, config):
    text, expected = MALFORMED[name]
    path = config / "studies" / "one.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as told:
        grid.expand_grid(load_study(path, config))
    message = str(told.value)
    assert message.startswith(str(path))
    assert expected in message
    assert "\n" not in message


def test_several_mistakes_are_counted_and_the_first_is_told(config):
    path = config / "studies" / "one.yaml"
    path.write_text(changed(kind="x", max_points=0, mode="y"))
    with pytest.raises(InputError, match=r"\(2 more problems in this file\)$"):
        load_study(path, config)


def test_a_folder_of_ones_own_finds_the_shipped_studies_too(config, write_study, monkeypatch):
    monkeypatch.chdir(config.parent)
    write_study("engines")
    assert study_path("engines") == Path("config/studies/engines.yaml")
    assert study_path("zero_stages") == SHIPPED / "config/studies/zero_stages.yaml"
    with pytest.raises(InputError, match=r"no such study: did you mean 'zero_stages'\?"):
        study_path("zero_stage")


def test_a_folder_without_studies_is_said_to_be_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"no such study \({tmp_path} has no config/studies\): "):
        study_path("mine")
    with pytest.raises(
        InputError, match=r"^config/clusters\.yaml: no such file; `scaling new FOLD"
    ):
        load_study("quickstart")


@pytest.mark.parametrize("name", ["two words", "-dash", "ümlaut", "a" * 65])
def test_a_study_whose_file_name_is_unsafe_is_refused(name, config):
    path = config / "studies" / f"{name}.yaml"
    path.write_text(changed())
    with pytest.raises(InputError, match="the file name"):
        load_study(path, config)


MISTAKES = [
    ("models", {"vocab_size": None}, "mini.vocab_size=null: must be a whole number"),
    ("models", {"layers": 3}, "mini.layers: unknown key 'layers': did you mean 'num_layers'?"),
    ("models", {"family": "lllama"}, "mini.family='lllama': did you mean 'llama'?"),
    (
        "models",
        {"num_heads": 3, "num_kv_heads": 3},
        "mini: hidden_size=64 is not divisible by num_heads=3",
    ),
    ("models", {"num_kv_heads": 3}, "mini: num_heads=4 is not divisible by num_kv_heads=3"),
    ("models", {"family": "t5"}, "mini: num_encoder_layers=0: family t5 needs at least 1"),
    ("models", {"family": "gpt"}, "mini: max_positions=0: family gpt needs at least 1"),
    ("models", {"head_dim": 5}, "mini: rotary positions need an even head_dim"),
    ("models", {"source": ""}, "mini.source='': must not be empty"),
    ("clusters", {"gpu": "h10-80gb"}, "here.gpu='h10-80gb': did you mean 'h100-80gb'?"),
    ("clusters", {"gpu": None}, "here.gpu=null: allowed: a100-40gb"),
    ("clusters", {"nodes": 0}, "here.nodes=0: must be at least 1"),
    ("clusters", {"usd_per_gpu_hour": 0}, "here.usd_per_gpu_hour=0: must be more than 0"),
    ("clusters", {"node_link_gbit_per_s": "fast"}, "here.node_link_gbit_per_s='fast': must be a"),
]


@pytest.mark.parametrize(("file", "changes", "expected"), MISTAKES, ids=str)
def test_a_mistake_in_a_model_or_cluster_is_told_in_one_sentence(file, changes, expected, config):
    path = config / f"{file}.yaml"
    name, entries, load = {
        "models": ("mini", MODELS, load_models),
        "clusters": ("here", CLUSTERS, load_clusters),
    }[file]
    path.write_text(yaml.safe_dump({name: {**entries[name], **changes}}))
    with pytest.raises(InputError) as told:
        load(path)
    assert str(told.value).startswith(f"{path}: {expected}")


@pytest.mark.parametrize("verb", ["plan", "status", "run"])
def test_on_the_command_line_it_is_the_sentence_and_exit_code_2(verb, config, monkeypatch, capsys):
    (config / "studies" / "broken.yaml").write_text(changed(kind="stronk"))
    monkeypatch.chdir(config.parent)
    monkeypatch.setattr("sys.argv", ["scaling", verb, "broken"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr()
    assert told.err == "config/studies/broken.yaml: kind='stronk': did you mean 'strong'?\n"
    assert told.out == ""
    assert not Path("results").exists()


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "config" / "studies").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_study_is_in_order(path):
    assert grid.expand_grid(load_study(path, PROJECT / "config")).points


def test_another_cluster_drops_the_blocks_about_other_gpus_unless_all_are(config, write_study):
    path = write_study(
        axes={"cluster": ["here", "there"], "world_size": [2]}, mode="predict",
        layouts=[{}, {"cluster": "there", "tp": 2}, {"cluster": "here", "pp": 2}],
    )  # fmt: skip
    found = load_study(path, config, mode="measure", cluster="there")
    assert (found.mode, found.axes["cluster"]) == ("measure", ("there",))
    assert found.layouts == ({}, {"tp": (2,)})
    with pytest.raises(
        InputError, match=r"cluster='nowhere': unknown cluster: did you mean 'here'\?"
    ):
        load_study(path, config, cluster="nowhere")
    with pytest.raises(InputError, match=r"mode='measured': did you mean 'measure'\?"):
        load_study(path, config, mode="measured")
    path = write_study(axes={"cluster": "here"}, layouts=[{"tp": 1}, {"tp": 2}])
    found = load_study(path, config, cluster="there")
    assert (found.axes["cluster"], len(found.layouts)) == (("there",), 2)


def test_what_a_study_replicates_must_be_there(config, write_study, tmp_path):
    findings = tmp_path / "reports" / "replication" / "old_paper"
    findings.mkdir(parents=True)
    (findings / "claim.sql").write_text("select 1")
    found = load_study(write_study(replicates="old_paper"), config)
    assert replication_queries(found, tmp_path / "reports") == [findings / "claim.sql"]
    wrong = load_study(write_study(replicates="old_papers"), config)
    with pytest.raises(InputError, match=r"replicates='old_papers': .* did you mean 'old_paper'\?"):
        replication_queries(wrong, tmp_path / "reports")
    assert replication_queries(load_study(write_study(), config)) == []


def test_a_guided_sweep_needs_gpus_whose_steps_can_be_predicted(config, write_study):
    with pytest.raises(InputError, match=r"measure\.guided=True: .* cluster here has gpu: cpu"):
        load_study(write_study(measure={"guided": True}), config)
    there = {"cluster": "there", "precision": "bf16"}
    study = load_study(write_study(axes=there, measure={"budget_gpu_hours": 1.5}), config)
    assert study.measure.is_guided
    assert not load_study(write_study(axes=there), config).measure.is_guided


def test_probe_is_a_word_or_a_block(config, write_study):
    assert load_study(write_study(), config).probe.enabled is None
    assert load_study(write_study(probe=False), config).probe.enabled is False
    block = load_study(write_study(probe={"world_size": 2}), config).probe
    assert (block.enabled, block.world_size) == (None, 2)
    with pytest.raises(InputError, match=r"probe\.wordl_size: .* did you mean 'world_size'"):
        load_study(write_study(probe={"wordl_size": 2}), config)
