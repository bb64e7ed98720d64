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
            caption="../report/agreement.rst",
            category="Agreement",
        ),
        fidelity=f"{RUN}/analysis/fidelity.parquet",
        tasks=f"{RUN}/analysis/tasks.parquet",
        replay=f"{RUN}/replay.parquet",
        lines=f"{RUN}/replay.jsonl",
        verdict=f"{RUN}/summary.json",
        plots=report(
            expand(
                f"{RUN}/analysis/{{plot}}.{{suffix}}",
                plot=[
                    "prefill_against_depth",
                    "measured_against_estimate",
                    "cumulative",
                    "fidelity",
                    "residuals",
                    "running_order",
                ],
                suffix=["svg", "png"],
            ),
            caption="../report/plots.rst",
            category="Plots",
        ),
    log:
        f"{RUN}/logs/analysis/analysis.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        analysis=CONFIG["analysis"],
        fill=CONFIG["measure"]["fill"],
        code=code("analysis/"),
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
            caption="../report/report.rst",
            category="Report",
        ),
    log:
        f"{RUN}/logs/report/report.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        template=WORKFLOW / "report" / "report.html.jinja",
    script:
        "../scripts/report.py"
