"""A trainer that goes through every step of nnU-Net's own, and learns little: some iterations on knees as they are, neither mirrored nor turned. It is found by
`nnUNet_extTrainer`, and runs in nnU-Net's environment.

It learns the same each time: seeded, in one thread, and without processes of nnU-Net's own (`nnUNet_n_proc_DA=0`), which have no seed."""

import random

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoDA import nnUNetTrainerNoDA
from torch.optim import AdamW
from torch.optim.lr_scheduler import ConstantLR

ITERATIONS = 160


class SmokeTrainer(nnUNetTrainerNoDA):
    def __init__(self, plans, configuration, fold, dataset_json, device):  # nnU-Net reads these names
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 1, ITERATIONS, 1
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        torch.set_num_threads(1)

    def configure_optimizers(self):
        optimizer = AdamW(self.network.parameters(), 3e-3)  # in so few steps its own learns nothing at all
        return optimizer, ConstantLR(optimizer, 1.0)

    def perform_actual_validation(self, save_probabilities=False):
        """Every case is predicted afterwards anyway."""
