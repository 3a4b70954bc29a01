"""The program of SparkApplications of the kind `compact`: the job of the installed library."""

import runpy

if __name__ == "__main__":
    runpy.run_module("holdfast.spark.jobs.compact", run_name="__main__", alter_sys=True)
