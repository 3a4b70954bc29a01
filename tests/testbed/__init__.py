"""The test bed: the servers, clusters and helpers that tests and the demo use.

Everything runs on this machine and ends with its test.

- `build` builds the binaries of a Kubernetes control plane into a cache folder. `go` finds the toolchain.
- `kube` starts them, `spark` finds Java and pyspark, and `require` shows which tiers the machine has.
- `minio`, `postgres` and `kafka` start servers, and `java` finds what some of them need.
- `sparkoperator` stands in for the Kubeflow Spark operator, and `sparkdriver` runs its drivers.
- `pytest_plugin` offers all of it to tests, and `python -m testbed` to people.

No distribution contains the test bed. It reads a kubeconfig only if you name one.
"""
