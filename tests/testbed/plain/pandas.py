"""Stands in the place of pandas: on the path of a process, it says that pandas isn't installed."""

raise ImportError("this process does without pandas, as one of a plain `pip install holdfast`")
