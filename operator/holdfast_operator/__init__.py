"""The Kubernetes operator of Holdfast: keeps stored catalogs and collections as custom resources describe."""
