"""The program of SparkApplications of the kind `ingest`: the job of the installed library."""

import runpy

if __name__ == "__main__":
    runpy.run_module("holdfast.spark.jobs.ingest", run_name="__main__", alter_sys=True)
