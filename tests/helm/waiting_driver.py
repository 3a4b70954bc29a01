"""A Spark driver that has executors until it gets SIGUSR1: `waiting_driver.py MASTER KEY=VALUE...`."""

import signal
import sys

from pyspark.sql import SparkSession

TOLD = {signal.SIGUSR1}

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    master, *settings = sys.argv[1:]
    builder = SparkSession.builder.master(master)
    for each in settings:
        builder = builder.config(*each.split("=", 1))
    spark = builder.getOrCreate()
    signal.sigwait(TOLD)
    spark.stop()
