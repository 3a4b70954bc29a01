"""The kubectl plugin `kubectl holdfast`: shows Holdfast's resources, and requests work from the operator.

Invariants
- It acts only through the Kubernetes API. It changes specs, and the operator follows them. It needs no access
  to stores.
- It runs `kubectl` itself for each request. So the user's contexts, logins and proxies apply.
"""
