"""A trainer that goes through every step of nnU-Net's own, and learns next to nothing: some iterations, no mirroring. It is found by
`nnUNet_extTrainer`, and runs in nnU-Net's environment."""

from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)
from torch.optim import AdamW
from torch.optim.lr_scheduler import ConstantLR


class SmokeTrainer(nnUNetTrainerNoMirroring):
    def __init__(self, plans, configuration, fold, dataset_json, device):  # nnU-Net reads these names
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 1, 40, 1

    def configure_optimizers(self):
        optimizer = AdamW(self.network.parameters(), 3e-3)  # in so few steps its own learns nothing at all
        return optimizer, ConstantLR(optimizer, 1.0)
