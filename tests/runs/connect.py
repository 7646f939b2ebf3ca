"""Scripts for Spark Connect: a server, and a client that scores with it.

A process cannot mix Connect and local Spark.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow.parquet as pq


def serve(port: str) -> None:
    """Serve Spark Connect on this port until standard input is closed. Print one line when the server is ready."""
    from pyspark import SparkConf, SparkContext

    options = {
        "spark.master": "local[2]",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.ui.enabled": "false",
    }
    context = SparkContext.getOrCreate(SparkConf().setAll(list(options.items())))
    print("serving", flush=True)
    sys.stdin.read()
    context.stop()


def score(given: dict[str, Any]) -> dict[str, Any]:
    """Score a frame over `remote` and print the result. If `whole` is set, also plan and score its file."""
    from pyspark.sql import SparkSession

    import untold

    spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
    before, metrics = dict(spark.conf.getAll), given["metrics"]
    with untold.Session(spark, settings=given["settings"]) as session:
        rows = pq.read_table(given["input"]).to_pandas()
        planned = session.plan(given["input"], metrics).totals["requests"] if given["whole"] else None
        runs = [session.score(spark.createDataFrame(rows), metrics, given["framed"], progress=lambda _: None)]
        if given["whole"]:
            runs.append(session.score(given["input"], metrics, given["output"], progress=lambda _: None))
    refused = None
    try:
        with untold.Session(spark, settings={**given["settings"], "graph.method": "graphframes"}) as session:
            session.score(given["input"], "nli", progress=lambda _: None)
    except untold.UntoldError as error:
        refused = str(error)
    kept = dict(spark.conf.getAll) == before and spark.range(3).count() == 3
    return {"planned": planned, "status": [run.status for run in runs], "refused": refused, "kept": kept}


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(score(json.loads(sys.argv[2]))))
