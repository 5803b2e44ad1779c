"""The best layouts as MultiQC custom content: a table beside the report."""

import json
from pathlib import Path

from scaling.record.files import write_text
from scaling.report.tables import Tables
from scaling.report.text import device_words, gpu_count
from scaling.study.paths import StudyPaths

_HEADERS = {
    "layout": {"title": "Layout", "description": "Fastest layout at this size"},
    "series": {"title": "Value is", "description": "measured, extended, published or predicted"},
    "tokens_per_s": {"title": "Tokens/s", "format": "{:,.0f}", "min": 0},
    "tokens_per_s_per_gpu": {"title": "Tokens/s per GPU", "format": "{:,.0f}", "min": 0},
    "efficiency": {"title": "Efficiency", "format": "{:,.3f}", "min": 0, "description": "ratio"},
    "mfu": {"title": "MFU", "format": "{:,.3f}", "min": 0, "max": 1, "description": "ratio"},
    "step_time_s": {"title": "Step", "suffix": " s", "format": "{:,.4f}", "min": 0},
}


def write_multiqc(study_dir: Path, tables: Tables) -> Path:
    """Write scaling_mqc.json, which MultiQC (docs.seqera.io/multiqc) picks up by its name.

    A sample is a model, cluster, batch and size. Unknown values are left out.
    """
    settings = {row["setting_id"]: row for row in tables["settings"]}
    data: dict[str, dict[str, object]] = {}
    for row in tables["best"]:
        setting = settings[row["setting_id"]]
        batch = f"{setting['study_kind']} {setting['kept_batch_size']}x{setting['seq_length']}"
        batch += f" {setting['kept_choices']}" * bool(setting["kept_choices"])
        size = gpu_count(row["world_size"], device_words(setting["vendor"]))
        sample = f"{setting['model']} | {setting['cluster']} | {batch} | {size}"
        values = {name: row.get(name) for name in _HEADERS} | {"layout": row["layout_name"]}
        data[f"{sample} | {row['series']}"] = {k: v for k, v in values.items() if v is not None}
    content = {
        "id": "scaling_best_layouts",
        "section_name": "Parallel layouts",
        "description": f"The fastest layout at each GPU count of study {study_dir.name}.",
        "plot_type": "table",
        # MultiQC would sort 16 before 2
        "pconfig": {
            "id": "scaling_best_layouts_table",
            "title": "Fastest layouts",
            "sort_rows": False,
        },
        "headers": _HEADERS,
        "data": data,
    }
    path = StudyPaths(study_dir).multiqc
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path
