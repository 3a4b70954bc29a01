"""What runs every kind of resource: the queue, the watches, status, Events, metrics, the handler loop."""
