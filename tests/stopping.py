"""Runs that end before their time."""

import efl


class StopAt(efl.Callback):
    """Ends the run as a crash would, after some round: nothing more is written."""

    def __init__(self, round_):
        self.at = round_

    def round(self, record):
        if record["round"] == self.at:
            self.run.directory = None
            raise KeyboardInterrupt
