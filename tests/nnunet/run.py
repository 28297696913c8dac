"""`python run.py train|predict ...`: nnU-Net's own entry points, by which a trainer outside of its package is found also where torchvision, which
one of its dependencies imports, is of another build than torch: two operators that nothing here calls are then declared."""

import sys

import torch


def declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        kept = declare_operators()
    program = sys.argv.pop(1)
    if program == "train":
        from nnunetv2.run.run_training import run_training_entry

        run_training_entry()
    else:
        from nnunetv2.inference.predict_from_raw_data import predict_entry_point

        predict_entry_point()
