"""The test bed: what tests and the demo need around Holdfast, made on this machine and gone afterwards.

- `build` brings the binaries of a Kubernetes control plane into a cache folder, `go` the toolchain for it;
- `kube` boots them, `spark` finds Java and pyspark, `require` says which of these tiers there are;
- `sparkoperator` stands in for the Kubeflow Spark operator, `sparkdriver` runs its drivers;
- `pytest_plugin` hands all of it to tests, `python -m testbed` to people.

Nothing here is part of a distribution, and nothing reads a kubeconfig that nobody named.
"""
