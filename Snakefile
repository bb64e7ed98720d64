from snakemake.utils import min_version

min_version("9.19")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/host.smk"
include: "workflow/rules/engine.smk"
include: "workflow/rules/model.smk"
include: "workflow/rules/trace.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/archive.smk"


rule all:
    default_target: True
    input:
        f"{RUN}/manifest.json",
