"""Run Untold on Dagster, as an asset with a partition per date.

Start it with `dagster dev -f dagster_asset.py` and edit the paths.
"""

import json
import subprocess

import dagster

INPUT = "/data/incoming/{date}/*.jsonl"
OUTPUT = "/data/nightly/{date}"
# Budget, outage, spool and interrupt: the same command continues. Other codes need a person
AGAIN = (3, 5, 6, 7, 130)


@dagster.asset(partitions_def=dagster.DailyPartitionsDefinition("2026-01-01"))
def untold_scores(context: dagster.AssetExecutionContext) -> None:
    """Score the samples of a date."""
    command = ["untold", "nightly", "--input", INPUT, "--output", OUTPUT, "--metric", "e2e", "--json"]
    ended = subprocess.run([*command, "--date", context.partition_key], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode in AGAIN:
        raise dagster.RetryRequested(max_retries=12, seconds_to_wait=1800)
    if ended.returncode:
        description = f"untold ended with {ended.returncode}: see its lines on standard error"
        raise dagster.Failure(description, metadata={"summary": ended.stdout}, allow_retries=False)
    (night,) = json.loads(ended.stdout)["dates"]
    means = {f"mean_{row['metric']}": row["mean"] for row in night.get("summary", ()) if row["level"] == "overall"}
    context.add_output_metadata({"status": night["status"], "calls": night.get("calls", 0), **means})


nights = dagster.define_asset_job("untold_nights", selection=[untold_scores])
schedule = dagster.build_schedule_from_partitioned_job(nights, hour_of_day=2, minute_of_hour=30)
definitions = dagster.Definitions(assets=[untold_scores], jobs=[nights], schedules=[schedule])
