"""The kubectl plugin `kubectl holdfast`: looks at our resources, and asks the operator for things.

Invariants
- It acts through the Kubernetes API alone: what it changes are specs, which the operator then follows. It has
  no access to stores and needs none.
- The API is asked by `kubectl` itself, so contexts, logins and proxies are those of the user.
"""
