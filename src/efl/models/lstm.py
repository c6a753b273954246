"""Recurrent networks for text."""

from torch import Tensor, nn

from efl.models.input_spec import Task
from efl.models.registry import NETWORKS

PADDING = 0


class CharLSTM(nn.Module):
    """Next character at every position: embedding 8, two LSTM layers of 256, as in McMahan et al. 2017 and LEAF."""

    def __init__(self, vocabulary: int, classes: int, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        start_well(self.lstm)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T) to scores (B, T, classes)."""
        outputs, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.head(outputs)
        return scores


class SentimentLSTM(nn.Module):
    """A class for a whole text: embedding, one LSTM layer, the mean of its outputs over the words there are."""

    def __init__(self, vocabulary: int, classes: int, embedding: int = 64, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        start_well(self.lstm)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T), padded with zeros at the end, to scores (B, classes)."""
        outputs, _ = self.lstm(self.embedding(x))
        words = (x != PADDING).unsqueeze(-1).to(outputs.dtype)
        mean = (outputs * words).sum(1) / words.sum(1).clamp(min=1)
        scores: Tensor = self.head(mean)
        return scores


def start_well(lstm: nn.LSTM) -> None:
    """Inputs and states enter the gates at unit variance: orthogonal recurrent weights, N(0, 1/fan-in) for the others.

    With PyTorch's own start, plain SGD stays at the frequencies of single characters for hundreds of steps.
    """
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_hh"):
            for gate in parameter.data.chunk(4):
                nn.init.orthogonal_(gate)
        elif name.startswith("weight_ih"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.zeros_(parameter)


@NETWORKS.register("char_lstm")
def char_lstm(task: Task) -> nn.Module:
    """For text whose next characters are to be predicted."""
    return CharLSTM(task.tokens("char_lstm"), task.classes)


@NETWORKS.register("sentiment_lstm")
def sentiment_lstm(task: Task) -> nn.Module:
    """For short texts of one class each."""
    return SentimentLSTM(task.tokens("sentiment_lstm"), task.classes)
