"""Tells what a test logs from what the clients of other tests log, which may go on behind them."""

import logging
import threading


class OwnRecords(logging.Handler):
    """Keeps what this thread logs, and each thread that begins later."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        # Threads, not their identifiers: the system uses an identifier again.
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record, unless an older thread logs it."""
        if threading.current_thread() not in self._others:
            self.records.append(record)
