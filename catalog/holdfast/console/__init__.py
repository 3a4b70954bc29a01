"""The console: read-only pages about the collections, catalogs and shards of locations.

- `places` opens the locations. `facts` reads them and returns plain values. `drawing` makes SVG of such
  values, and `pages` makes HTML of both with `templates`.
- `access` decides who may see what. `work` bounds what one viewer can ask at a time.
- `ticks` looks at each location from time to time while a page is open, and sends the pages what changed.
- `cluster` is what the pages know of Kubernetes. The operator implements it.
- `server` puts the parts together.

Nothing here writes to a location.
"""
