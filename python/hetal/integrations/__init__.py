"""Callbacks for experiment trackers. Each imports its package only when a training begins.

Losses and accuracies are computed from decrypted values and are private: a tracker that others
read tells them how well your model does. The digits that :class:`MLflow` and the others record are
rounded to thousandths, as the program ``hetal`` shows them.
"""

from hetal.integrations._mlflow import MLflow
from hetal.integrations._tensorboard import TensorBoard
from hetal.integrations._wandb import WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]
