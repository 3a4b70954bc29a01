"""The Kubernetes operator of Holdfast: it keeps durable state as custom resources ask for it."""
