"""The custom resources: their models, their names, and the CRDs that are generated from them."""
