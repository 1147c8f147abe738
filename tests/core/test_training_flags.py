"""Modes of submodules: those of training are set again before each job."""

from torch import nn

from fedmos.core.training_flags import TrainingFlags


class OwnTrain(nn.Module):
    """Keeps a part in evaluation mode by a `train` of its own."""

    def __init__(self):
        super().__init__()
        self.part, self.calls = nn.Dropout(), 0

    def train(self, mode=True):
        super().train(mode)
        self.part.training = False
        self.calls += 1
        return self


def modes(module):
    return [part.training for part in module.modules()]


def test_modes_that_changed_are_set_again():
    net = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    flags = TrainingFlags(net)
    for change in (net.eval, net.train, net[0].eval, net[1].train):
        change()
        flags.train()
        assert modes(net) == [True, True, False]


def test_a_train_of_the_users_own_is_called():
    net = OwnTrain()
    flags = TrainingFlags(net)
    for calls in (1, 2):
        flags.train()
        assert net.calls == calls
        assert modes(net) == [True, False]
