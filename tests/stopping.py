"""Runs that end before their time."""


class StopAt:
    """Ends the run as a crash would, after some round."""

    def __init__(self, round_):
        self.at = round_

    def start(self, setup, history):
        pass

    def round(self, record):
        if record["round"] == self.at:
            raise KeyboardInterrupt

    def end(self, summary):
        pass
