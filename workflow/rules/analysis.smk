PLOTS = [
    "prefill_against_depth",
    "measured_against_estimate",
    "waterfall",
    "cumulative",
    "fidelity",
    "depth_curve",
    "residuals",
    "running_order",
]


rule analysis:
    """Takes the measurements, the plan and the benchmark's samples, gives tables, replay, verdict and plots."""
    input:
        measurements=f"{RUN}/measurements.parquet",
        plan=f"{RUN}/trace/plan.parquet",
        rejected=f"{RUN}/trace/rejected.parquet",
        summary=f"{RUN}/trace/plan.json",
        imported=f"{RUN}/trace/import.json",
        rates=depth_rates,
        logits=fidelity_rows("logits.json"),
        server_config=f"{RUN}/engine/server_config.json",
    output:
        agreement=f"{RUN}/analysis/agreement.parquet",
        table=report(
            f"{RUN}/analysis/agreement.csv",
            caption="../fakeprefix/report/templates/captions/agreement.rst",
            category="Tables",
            labels={"table": "agreement by step, kind and bucket", "format": "CSV"},
        ),
        fidelity=f"{RUN}/analysis/fidelity.parquet",
        tasks=f"{RUN}/analysis/tasks.parquet",
        depth=f"{RUN}/analysis/depth.parquet",
        replay=f"{RUN}/replay.parquet",
        lines=f"{RUN}/replay.jsonl",
        verdict=f"{RUN}/summary.json",
        drawings=[
            report(
                f"{RUN}/analysis/{plot}.svg",
                caption=f"../fakeprefix/report/templates/captions/{plot}.rst",
                category="Plots",
                labels={"plot": plot.replace("_", " "), "format": "SVG"},
            )
            for plot in PLOTS
        ],
        pictures=expand(f"{RUN}/analysis/{{plot}}.png", plot=PLOTS),
    log:
        f"{RUN}/logs/analysis/analysis.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        analysis=CONFIG["analysis"],
        fill=CONFIG["measure"]["fill"],
        code=code("analysis"),
    script:
        "../scripts/analysis.py"


rule report:
    """Takes everything that a run has found out, gives one page that opens offline."""
    input:
        verdict=f"{RUN}/summary.json",
        fidelity=f"{RUN}/analysis/fidelity.parquet",
        host=f"{RUN}/host/snapshot.json",
        engine=f"{RUN}/engine/manifest.json",
        contract=f"{RUN}/engine/contract.json",
        server_config=f"{RUN}/engine/server_config.json",
        model=f"{RUN}/pipeline/model.json",
        facts=f"{RUN}/pipeline/model_facts.json",
        rejected=f"{RUN}/trace/rejected.parquet",
        imported=f"{RUN}/trace/import.json",
    output:
        page=report(
            f"{RUN}/report.html",
            caption="../fakeprefix/report/templates/captions/report.rst",
            category="Report",
            labels={"page": "verdict, tables, plots, method and limits", "format": "HTML"},
        ),
    log:
        f"{RUN}/logs/report/report.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        template=TEMPLATES / "report.html.jinja",
        code=code("report"),
        templates=TEMPLATES_SHA256,
    script:
        "../scripts/report.py"
