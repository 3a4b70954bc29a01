"""The console on a cluster: who may see what, and which resources and locations there are.

The pages are those of `holdfast.console`. This package implements what they need of a cluster:

- `reviews` asks the API server who a token belongs to, and what that user may do.
- `access` decides with these reviews what a viewer sees.
- `resources` follows the resources and their Events with a few watches that all viewers share.
- `locations` opens the locations that Catalogs name, read-only and with their credentials.
- `command` is `holdfast-operator console`.

Nothing here writes to a cluster or a store. The only requests that create something are reviews, which the
API server doesn't keep.
"""
