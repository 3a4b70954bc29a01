"""The parts that all kinds of resources share: queue, watches, status, Events, metrics, the handler loop."""
