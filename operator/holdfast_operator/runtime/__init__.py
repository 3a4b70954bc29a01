"""What runs the reconcilers: queue, informer, status, events, metrics. It knows nothing of catalogs."""
