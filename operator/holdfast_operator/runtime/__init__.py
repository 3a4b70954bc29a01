"""What runs the reconcilers: queue, informer, status, events, metrics. Only `app` knows of catalogs."""
